"""What an answer shall be, as Ollama is told of it."""

from collections.abc import Mapping
from typing import Any, cast

from metis.catalog.output import Dialect
from metis.wire.output import UNSPOKEN, OutputFormat, OutputKeys, SpokenOutput
from metis.wire.shape import Wire

_FORMAT, _JSON = "format", "json"
_KEYS = frozenset({_FORMAT})


def _decode(wire: Mapping[str, Any]) -> SpokenOutput:
    told = wire.get(_FORMAT)
    if told == _JSON:
        return SpokenOutput(OutputFormat(), _KEYS)
    if isinstance(told, dict) and told:
        return SpokenOutput(OutputFormat(cast("Wire", told)), _KEYS)
    return UNSPOKEN


def _spell(wire: Wire, output: OutputFormat | None, _dialect: Dialect) -> None:
    wire.pop(_FORMAT, None)
    if output is not None:
        wire[_FORMAT] = _JSON if output.schema is None else output.schema


OUTPUT = OutputKeys(_decode, _spell)
