"""Tools of Gemini: the functions of the client in lists, and beside them what the provider runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.gemini.names import camel, field, snake, spelled_key
from metis.wire.gemini.schema import json_schema
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

_DECLARED = "functionDeclarations"
_SAID = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
"""The keys of a declaration that our definition speaks for."""


def decode_tools(wire: object) -> tuple[ToolDefinition, ...]:
    """The tools that the client runs itself; server-side tools stay with the options."""
    return tuple(_decode(declared) for _, declared in _declarations(wire))


def _decode(declared: Wire) -> ToolDefinition:
    return ToolDefinition(
        name=declared["name"],
        description=maybe_text(declared.get("description")) or "",
        input_schema=_input_schema(declared),
        side_effects=SideEffects.EXECUTE,
    )


def _declarations(wire: object) -> Iterator[tuple[str, Wire]]:
    """The functions that have a name, each with its path."""
    for number, tool in enumerate(_tools(wire)):
        own = maybe_object(tool)
        key = spelled_key(own, _DECLARED)
        for index, declared in enumerate(map(maybe_object, maybe_list(own.get(key)))):
            if isinstance(declared.get("name"), str):
                yield f"tools[{number}].{key}[{index}]", declared


def _tools(wire: object) -> list[Any]:
    """The list of tools; the servers also take one tool for a list of one."""
    return [wire] if isinstance(wire, dict) else maybe_list(wire)


def _input_schema(declared: Wire) -> Wire:
    """The schema of a tool: JSON Schema if it is given, else read from the dialect."""
    given = field(declared, "parametersJsonSchema")
    if isinstance(given, dict):
        return cast("Wire", given)
    return maybe_object(json_schema(declared.get("parameters"))) or {
        "type": "object",
        "properties": {},
    }


def encode_tools(tools: Sequence[ToolDefinition], spelled: object = None) -> list[Any]:
    """The tools of a request; what was spelled of them before is kept as far as it still holds."""
    known = {declared["name"]: declared for _, declared in _declarations(spelled)}
    declared = [_encode(tool, known.get(tool.name, {})) for tool in tools]
    server = [rest for tool in _tools(spelled) if (rest := _undeclared(tool))]
    return [{_DECLARED: declared}, *server] if declared else server


def _encode(tool: ToolDefinition, spelled: Wire) -> Wire:
    """One definition, in JSON Schema, which loses nothing (T102)."""
    if spelled and _decode(spelled) == tool:
        return spelled
    wire: Wire = {key: value for key, value in spelled.items() if camel(key) not in _SAID}
    wire["name"] = tool.name
    if tool.description:
        wire["description"] = tool.description
    # An object without properties is refused; such a tool has no parameters (T105).
    if tool.input_schema.get("properties") or "type" not in tool.input_schema:
        wire["parametersJsonSchema"] = tool.input_schema
    return wire


def _undeclared(tool: Any) -> Any:
    """A tool without the functions of the client; empty if it is nothing else."""
    if not isinstance(tool, dict):
        return tool
    return {k: v for k, v in cast("Wire", tool).items() if camel(k) != _DECLARED}


def server_tools(wire: Mapping[str, Any]) -> list[str]:
    """The names of the tools that the provider runs itself."""
    return [
        key
        for tool in _tools(field(wire, "tools"))
        for key in maybe_object(tool)
        if key not in (_DECLARED, snake(_DECLARED))
    ]


def unsaid_of_tools(wire: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the declarations of functions say beyond our definitions: the tool, and the path."""
    for path, declared in _declarations(field(wire, "tools")):
        for key, value in declared.items():
            if value and camel(key) not in _SAID:
                yield declared["name"], f"{path}.{key}"
