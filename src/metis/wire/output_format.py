"""The output format of a response as an option, and how protocols encode it."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.canonical.json_value import json_fault
from metis.catalog.model_rules import SchemaDialect
from metis.wire.json_access import Wire, maybe_object, maybe_text

DEFAULT_SCHEMA_NAME = "answer"
"""The name for a schema without a name, because OpenAI requires one."""


class OutputFormat(Struct, frozen=True):
    """The format of a response: JSON that follows a schema, or any JSON object.

    >>> OutputFormat({"type": "object", "properties": {"city": {"type": "string"}}}, "place").name
    'place'
    """

    schema: Mapping[str, Any] | None = None
    """The JSON Schema; None accepts any object."""
    name: str | None = None
    description: str | None = None
    strict: bool = True
    """Whether the provider must enforce the schema, and not only show it to the model."""

    def __post_init__(self) -> None:
        """Raise an error for a schema that is not a JSON object."""
        if self.schema is None:
            return
        fault = json_fault(self.schema)
        if fault or not isinstance(cast("object", self.schema), dict):
            path, text = fault or ("$", "a schema is an object")
            raise InvalidValueError(text, path=path.replace("$", "$.schema", 1))


class DecodedOutput(Struct, frozen=True):
    """The output format that a request states, and the keys that state it."""

    output: OutputFormat | None = None
    keys: frozenset[str] = frozenset()


UNSTATED_OUTPUT = DecodedOutput()
"""The value for a request that states no output format."""


class OutputFormatCodec(Struct, frozen=True):
    """How one protocol decodes and encodes the output format."""

    decode: Callable[[Mapping[str, Any]], DecodedOutput]
    encode: Callable[[Wire, OutputFormat | None, SchemaDialect], None]
    """Sets the keys of a request; None removes them."""
    has_name: bool = False
    """Whether the protocol has a name and a description for a schema."""
    is_strict: bool = False
    """Whether the provider always enforces the schema."""

    def apply(self, wire: Wire, output: OutputFormat | None, *, keep_native: bool) -> None:
        """Set the option in a request; native keys with the same meaning remain unchanged.

        With `keep_native`, the native keys also remain if the option is not set: then they were
        not decoded into it.
        """
        if output is None and keep_native:
            return
        # Compared by meaning: equivalent keys of a client are sent byte for byte.
        if output != self.decode(wire).output:
            self.encode(wire, output, "json")


def decode_named_schema(wire: object, prefix: str) -> DecodedOutput:
    """Decode a schema with its name, in the form of both OpenAI protocols.

    `prefix` is the path of the object in the request, which the returned keys begin with.
    """
    named_schema = maybe_object(wire)
    schema = named_schema.get("schema")
    if not isinstance(schema, dict | None):
        return UNSTATED_OUTPUT
    output = OutputFormat(
        cast("Wire", schema or {}),
        maybe_text(named_schema.get("name")),
        maybe_text(named_schema.get("description")),
        strict=named_schema.get("strict") is True,
    )
    keys = ("schema", "name", "description", "strict", "type")
    return DecodedOutput(output, frozenset(prefix + key for key in keys))


def encode_named_schema(output: OutputFormat) -> Wire:
    """Encode a schema with its name, in the form of both OpenAI protocols."""
    wire: Wire = {"name": output.name or DEFAULT_SCHEMA_NAME}
    if output.description:
        wire["description"] = output.description
    wire["schema"] = output.schema
    if output.strict:
        wire["strict"] = True
    return wire
