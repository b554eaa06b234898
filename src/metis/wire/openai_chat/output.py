"""What an answer shall be, as Chat Completions is told of it."""

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
from metis.wire.shape import Wire, maybe_object

_FORMAT = "response_format"
_TYPE = frozenset({f"{_FORMAT}.type"})


def _decode(wire: Mapping[str, Any]) -> SpokenOutput:
    if _FORMAT not in wire:
        return UNSPOKEN
    own = maybe_object(wire[_FORMAT])
    match own.get("type"):
        case "text":
            return SpokenOutput(None, _TYPE)
        case "json_object":
            return SpokenOutput(OutputFormat(), _TYPE)
        case "json_schema":
            named = decode_named(own.get("json_schema"), f"{_FORMAT}.json_schema.")
            return SpokenOutput(named.output, named.keys | _TYPE)
        case _:
            return UNSPOKEN


def _spell(wire: Wire, output: OutputFormat | None, _dialect: Dialect) -> None:
    wire.pop(_FORMAT, None)
    if output is None:
        return
    if output.schema is None:
        wire[_FORMAT] = {"type": "json_object"}
    else:
        wire[_FORMAT] = {"type": "json_schema", "json_schema": encode_named(output)}


OUTPUT = OutputKeys(_decode, _spell, names=True)
