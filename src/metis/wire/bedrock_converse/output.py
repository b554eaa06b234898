"""What an answer shall be, as Bedrock Converse is told of it: a schema that is a text."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from metis.catalog.output import Dialect
from metis.wire.output import UNSPOKEN, OutputFormat, OutputKeys, SpokenOutput
from metis.wire.reasoning import put_inside
from metis.wire.shape import Wire, maybe_object, maybe_text

_CONFIG, _FORMAT = "outputConfig", "textFormat"
_PLACE = f"{_CONFIG}.{_FORMAT}"
_SAID = frozenset(
    {f"{_PLACE}.type"}
    | {f"{_PLACE}.structure.jsonSchema.{key}" for key in ("schema", "name", "description")}
)
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


def _decode(wire: Mapping[str, Any]) -> SpokenOutput:
    if _CONFIG not in wire:
        return UNSPOKEN
    told = maybe_object(maybe_object(wire[_CONFIG]).get(_FORMAT))
    own = maybe_object(maybe_object(told.get("structure")).get("jsonSchema"))
    schema = _schema(own.get("schema"))
    if told.get("type") != "json_schema" or schema is None:
        return UNSPOKEN
    name, description = maybe_text(own.get("name")), maybe_text(own.get("description"))
    return SpokenOutput(OutputFormat(schema, name, description), _SAID)


def _schema(text: Any) -> Wire | None:
    try:
        found = _read(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return cast("Wire", found) if isinstance(found, dict) else None


def _spell(wire: Wire, output: OutputFormat | None, _dialect: Dialect) -> None:
    told: Wire | None = None
    if output is not None:
        own: Wire = {"schema": _write(output.schema or {}).decode()}
        if output.name:
            own["name"] = output.name
        if output.description:
            own["description"] = output.description
        told = {"type": "json_schema", "structure": {"jsonSchema": own}}
    if told is not None or _CONFIG in wire:
        put_inside(wire, _CONFIG, {_FORMAT: told})


OUTPUT = OutputKeys(_decode, _spell, names=True, is_strict=True)
