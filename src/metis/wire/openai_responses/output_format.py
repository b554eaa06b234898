"""What an answer shall be, as OpenAI Responses is told of it."""

from collections.abc import Mapping
from typing import Any

from metis.catalog.output import Dialect
from metis.wire.output import (
    UNSPOKEN,
    OutputFormat,
    OutputKeys,
    SpokenOutput,
    decode_named,
    encode_named,
)
from metis.wire.reasoning import put_inside
from metis.wire.shape import Wire, maybe_object

_TEXT, _FORMAT = "text", "format"
_PLACE = f"{_TEXT}.{_FORMAT}."
_TYPE = frozenset({f"{_PLACE}type"})


def _decode(wire: Mapping[str, Any]) -> SpokenOutput:
    if _TEXT not in wire:
        return UNSPOKEN
    own = maybe_object(maybe_object(wire[_TEXT]).get(_FORMAT))
    match own.get("type"):
        case "text":
            return SpokenOutput(None, _TYPE)
        case "json_object":
            return SpokenOutput(OutputFormat(), _TYPE)
        case "json_schema":
            return decode_named(own, _PLACE)
        case _:
            return UNSPOKEN


def _spell(wire: Wire, output: OutputFormat | None, _dialect: Dialect) -> None:
    told: Wire | None = None
    if output is not None and output.schema is None:
        told = {"type": "json_object"}
    elif output is not None:
        told = {"type": "json_schema", **encode_named(output)}
    put_inside(wire, _TEXT, {_FORMAT: told})


OUTPUT = OutputKeys(_decode, _spell, names=True)
