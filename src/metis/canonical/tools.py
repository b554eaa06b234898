"""Tool definitions, and tool sets with unique names and schemas in the supported subset."""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Never, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import asdict

from metis.canonical.errors import (
    DecodeError,
    DuplicateToolError,
    EncodeError,
    InvalidValueError,
    Problem,
    ToolDefinitionError,
    UnknownToolError,
)
from metis.canonical.json_value import join_path, json_fault
from metis.canonical.reader import check_json, read_fields, to_bytes
from metis.canonical.schema.subset import check_schema, describe, is_json_scalar
from metis.canonical.schema.validate import Validator, compile_tool_input
from metis.canonical.schema.walk import is_object
from metis.canonical.value import Value, canonical_bytes, fields_of, set_field

MAX_NAME_LENGTH = 64
"""The longest tool name that every provider accepts."""

_NAME = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode

T = TypeVar("T")


class SideEffects(StrEnum):
    """The strongest effect that a tool can have."""

    NONE = "none"
    """Pure reading or computation."""
    READ = "read"
    """Reads files or the network."""
    WRITE = "write"
    """Writes files."""
    EXECUTE = "execute"
    """Runs a shell or any code."""
    NETWORK = "network"
    """Changes something over the network."""


class ToolDefinition(Value, frozen=True):
    """A tool that a model may call; `ToolUseBlock.name` refers to it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    side_effects: SideEffects
    requires_workspace: bool = True

    def normalise(self) -> None:
        """Raise an error for unknown fields, and convert a plain string to SideEffects."""
        # Programmers write definitions: an unknown field is a mistake, not a newer version.
        if self.extra is not UNSET:
            raise TypeError("a tool definition has no extra fields")
        try:
            set_field(self, "side_effects", SideEffects(self.side_effects))
        except ValueError as error:
            raise InvalidValueError(str(error), path="$.side_effects") from None


_FIELDS = frozenset(field.name for field in fields_of(ToolDefinition))


class ToolSet(Mapping[str, ToolDefinition]):
    """An immutable mapping of tools by name; the constructor checks each definition."""

    __slots__ = ("_tools", "_validators")
    _tools: dict[str, ToolDefinition]
    _validators: dict[str, Validator]

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        tools: dict[str, ToolDefinition] = {}
        for definition in definitions:
            problems = check_tool(definition)
            if problems:
                subject = f"the tool {describe(definition.name)} is refused"
                raise ToolDefinitionError(subject, problems)
            if definition.name in tools:
                raise DuplicateToolError(definition.name)
            tools[definition.name] = definition
        validators = {name: compile_tool_input(tool.input_schema) for name, tool in tools.items()}
        object.__setattr__(self, "_tools", tools)
        object.__setattr__(self, "_validators", validators)

    def check_input(self, name: str, value: object, path: str = "$") -> list[Problem]:
        """Return every problem of the input of a call according to the schema of its tool."""
        validate = self._validators.get(name)
        if validate is None:
            raise UnknownToolError(name)
        return validate(value, path)

    def __getitem__(self, name: str) -> ToolDefinition:
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownToolError(name) from None

    @overload
    def get(self, key: str, default: None = None, /) -> ToolDefinition | None: ...
    @overload
    def get(self, key: str, default: ToolDefinition | T, /) -> ToolDefinition | T: ...
    # `Mapping.get` catches only KeyError, but an unknown tool raises UnknownToolError.
    def get(self, key: str, default: object = None, /) -> object:
        """Return the tool of that name, or the default."""
        return self._tools.get(key, default)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"ToolSet({list(self._tools.values())!r})"

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"immutable type: {type(self).__name__!r}")

    def __reduce__(self) -> tuple[type["ToolSet"], tuple[tuple[ToolDefinition, ...]]]:
        return ToolSet, (tuple(self._tools.values()),)


def check_tool(definition: ToolDefinition) -> list[Problem]:
    """Return every problem of a tool definition, each with its path."""
    # Constructors do not check types, so that the fields may have any value.
    fields: Mapping[str, object] = asdict(definition)
    description, requires_workspace = fields["description"], fields["requires_workspace"]
    schema = fields["input_schema"]
    problems = list(_check_name(definition.name))
    if not isinstance(description, str) or not is_json_scalar(description):
        text = f"a description must be a string, got {describe(description)}"
        problems.append(Problem("$.description", "M-109", text))
    problems += check_schema(schema, "$.input_schema")
    if is_object(schema) and schema.get("type") != "object":
        text = 'the schema of a tool input must have `"type": "object"`'
        problems.append(Problem("$.input_schema", "M-110", text))
    if not isinstance(requires_workspace, bool):
        text = f"expected true or false, got {describe(requires_workspace)}"
        problems.append(Problem("$.requires_workspace", "M-112", text))
    return problems


def encode_tool(definition: ToolDefinition) -> bytes:
    """Encode a tool definition canonically."""
    fault = json_fault(definition.input_schema, "$.input_schema")
    if fault:
        path, reason = fault
        raise EncodeError(reason, path=path)
    return canonical_bytes(definition)


def decode_tool(data: bytes | str) -> ToolDefinition:
    """Decode a tool definition; raise DecodeError for an unknown field."""
    data = to_bytes(data)
    check_json(data)
    try:
        fields = _split_object(data)
    except msgspec.ValidationError:
        raise DecodeError("a tool definition is a JSON object") from None
    for name in fields:
        if name not in _FIELDS:
            raise DecodeError("a tool definition has no such field", path=join_path("$", name))
    return read_fields(ToolDefinition, fields, "$", [])


def _check_name(name: object) -> Iterator[Problem]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = (
            "a tool name must be snake_case: a to z, 0 to 9 and underscores, a letter first "
            f"and no underscore last; got {describe(name)}"
        )
        yield Problem("$.name", "M-108", text)
    if isinstance(name, str) and len(name) > MAX_NAME_LENGTH:
        text = f"a tool name has at most {MAX_NAME_LENGTH} characters, this one has {len(name)}"
        yield Problem("$.name", "M-108", text)
