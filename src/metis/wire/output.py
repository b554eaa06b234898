"""Output: what an answer shall be, as one option, and how protocols say it."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.canonical.json_value import json_fault
from metis.catalog.output import Dialect
from metis.wire.shape import Wire, maybe_object, maybe_text

NAME = "answer"
"""What a schema is called where a protocol wants a name and nobody gave one."""


class OutputFormat(Struct, frozen=True):
    """What an answer shall be: JSON that keeps to a schema, or any JSON object.

    >>> OutputFormat({"type": "object", "properties": {"city": {"type": "string"}}}, "place").name
    'place'
    """

    schema: Mapping[str, Any] | None = None
    """The JSON Schema; None leaves it to the model which object it writes."""
    name: str | None = None
    description: str | None = None
    strict: bool = True
    """Whether the answer must keep to the schema, and not only try to."""

    def __post_init__(self) -> None:
        """Refuse what no provider could be told."""
        if self.schema is None:
            return
        fault = json_fault(self.schema)
        if fault or not isinstance(cast("object", self.schema), dict):
            place, text = fault or ("$", "a schema is an object")
            raise InvalidValueError(text, path=place.replace("$", "$.schema", 1))


class SpokenOutput(Struct, frozen=True):
    """What the keys of a request say of the answer, and which keys say it."""

    output: OutputFormat | None = None
    keys: frozenset[str] = frozenset()


UNSPOKEN = SpokenOutput()
"""Nothing."""


def _unspoken(_: Mapping[str, Any]) -> SpokenOutput:
    return UNSPOKEN


def _mute(_: Wire, _output: OutputFormat | None, _dialect: Dialect) -> None:
    """Say nothing."""


class OutputKeys(Struct, frozen=True):
    """How one protocol says what an answer shall be."""

    decode: Callable[[Mapping[str, Any]], SpokenOutput] = _unspoken
    spell: Callable[[Wire, OutputFormat | None, Dialect], None] = _mute
    """Say it in a request; None takes it out."""
    names: bool = False
    """Whether a schema has a name and a description beside it."""
    is_strict: bool = False
    """Whether an answer must keep to the schema, and nobody can say otherwise."""

    def write(self, wire: Wire, output: OutputFormat | None, *, is_free: bool) -> None:
        """Bring a request in line with the option; a spelling that says the same is kept.

        Without the option a spelling stays where `is_free` says that nobody decoded it.
        """
        if output is None and is_free:
            return
        if output != self.decode(wire).output:
            self.spell(wire, output, "json")


def decode_named(wire: object, place: str) -> SpokenOutput:
    """A schema with its name, as both protocols of OpenAI write it; `place` leads to it."""
    own = maybe_object(wire)
    schema = own.get("schema")
    if not isinstance(schema, dict | None):
        return UNSPOKEN
    found = OutputFormat(
        cast("Wire", schema or {}),
        maybe_text(own.get("name")),
        maybe_text(own.get("description")),
        strict=own.get("strict") is True,
    )
    said = ("schema", "name", "description", "strict", "type")
    return SpokenOutput(found, frozenset(place + key for key in said))


def encode_named(output: OutputFormat) -> Wire:
    """A schema with its name, as both protocols of OpenAI write it."""
    wire: Wire = {"name": output.name or NAME}
    if output.description:
        wire["description"] = output.description
    wire["schema"] = output.schema
    if output.strict:
        wire["strict"] = True
    return wire
