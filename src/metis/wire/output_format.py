"""The output format of a response as an option, and how protocols encode it."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.canonical.json_value import json_fault
from metis.catalog.model_rules import SchemaDialect
from metis.wire.json_access import Wire, maybe_object, maybe_text

DEFAULT_SCHEMA_NAME = "answer"
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


class DecodedOutput(Struct, frozen=True):
    """What the keys of a request say of the answer, and which keys say it."""

    output: OutputFormat | None = None
    keys: frozenset[str] = frozenset()


UNSTATED_OUTPUT = DecodedOutput()
"""Nothing."""


def _unspoken(_: Mapping[str, Any]) -> DecodedOutput:
    return UNSTATED_OUTPUT


def _mute(_: Wire, _output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    """Say nothing."""


class OutputFormatCodec(Struct, frozen=True):
    """How one protocol says what an answer shall be."""

    decode: Callable[[Mapping[str, Any]], DecodedOutput] = _unspoken
    encode: Callable[[Wire, OutputFormat | None, SchemaDialect], None] = _mute
    """Say it in a request; None takes it out."""
    has_name: bool = False
    """Whether a schema has a name and a description beside it."""
    is_strict: bool = False
    """Whether an answer must keep to the schema, and nobody can say otherwise."""

    def apply(self, wire: Wire, output: OutputFormat | None, *, keep_native: bool) -> None:
        """Bring a request in line with the option; a spelling that says the same is kept.

        Without the option a spelling stays where `is_free` says that nobody decoded it.
        """
        if output is None and keep_native:
            return
        if output != self.decode(wire).output:
            self.encode(wire, output, "json")


def decode_named_schema(wire: object, prefix: str) -> DecodedOutput:
    """A schema with its name, as both protocols of OpenAI write it; `place` leads to it."""
    own = maybe_object(wire)
    schema = own.get("schema")
    if not isinstance(schema, dict | None):
        return UNSTATED_OUTPUT
    found = OutputFormat(
        cast("Wire", schema or {}),
        maybe_text(own.get("name")),
        maybe_text(own.get("description")),
        strict=own.get("strict") is True,
    )
    said = ("schema", "name", "description", "strict", "type")
    return DecodedOutput(found, frozenset(prefix + key for key in said))


def encode_named_schema(output: OutputFormat) -> Wire:
    """A schema with its name, as both protocols of OpenAI write it."""
    wire: Wire = {"name": output.name or DEFAULT_SCHEMA_NAME}
    if output.description:
        wire["description"] = output.description
    wire["schema"] = output.schema
    if output.strict:
        wire["strict"] = True
    return wire
