"""What an answer shall be, as Anthropic Messages is told of it."""

from collections.abc import Mapping
from typing import Any, cast

from metis.catalog.output import Dialect
from metis.wire.output import UNSPOKEN, OutputFormat, OutputKeys, SpokenOutput
from metis.wire.reasoning import put_inside
from metis.wire.shape import Wire, maybe_object

_CONFIG, _FORMAT, _OLD = "output_config", "format", "output_format"


def _decode(wire: Mapping[str, Any]) -> SpokenOutput:
    if not (_CONFIG in wire or _OLD in wire):
        return UNSPOKEN
    place, own = f"{_CONFIG}.{_FORMAT}.", maybe_object(wire.get(_CONFIG)).get(_FORMAT)
    if own is None:
        # The name that the key had while it was tried out.
        place, own = f"{_OLD}.", wire.get(_OLD)
    told = maybe_object(own)
    if told.get("type") != "json_schema" or not isinstance(told.get("schema"), dict):
        return UNSPOKEN
    keys = frozenset({f"{place}type", f"{place}schema"})
    return SpokenOutput(OutputFormat(cast("Wire", told["schema"])), keys)


def _spell(wire: Wire, output: OutputFormat | None, _dialect: Dialect) -> None:
    wire.pop(_OLD, None)
    told: Wire | None = None
    if output is not None:
        told = {"type": "json_schema", "schema": output.schema or {}}
    if told is not None or _CONFIG in wire:
        put_inside(wire, _CONFIG, {_FORMAT: told})


OUTPUT = OutputKeys(_decode, _spell)
