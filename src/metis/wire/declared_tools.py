"""Tools that are not plain functions, converted to functions for targets that accept only those.

An OpenAI client may declare tools that take free text (`custom`, with or without a grammar), tools
that OpenAI defines and the client runs (shells, patches, a tool search), and tools in a namespace.
For another provider each becomes a function; calls of the function are returned to the client as
the kind of call that it declared (T219).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

FUNCTION_KIND, CUSTOM_KIND = "function", "custom"
INPUT_KEY = "input"
"""The only field of a function that replaces a tool with free-text input."""
_MAX_GRAMMAR_CHARS = 50_000
"""The most characters of a grammar in a description; the remainder is cut off."""


class DeclaredTool(Struct, frozen=True):
    """A tool as a client declared it, and the function that replaces it for other targets."""

    kind: str
    """`function` in a namespace, `custom`, or the name of a tool that OpenAI defines."""
    name: str
    """The tool name in calls of the client's protocol."""
    definition: ToolDefinition
    """The function for other targets; its name is unique in the request."""
    namespace: str | None = None
    is_altered: bool = True
    """Whether a part of the declaration, such as a grammar, is only described in text."""

    def text_input(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the free text in the arguments of a call; None if they have other fields."""
        text = arguments.get(INPUT_KEY)
        return text if isinstance(text, str) and len(arguments) == 1 else None


DeclareTools = Callable[[Mapping[str, Any], Sequence[Any]], tuple[DeclaredTool, ...]]
"""Returns the tools that are not plain functions, from native options and other declarations."""


def declare(
    tools: Sequence[Any], loaded: Sequence[Any], read_custom: Callable[[Wire], Wire]
) -> tuple[DeclaredTool, ...]:
    """Return the tools that are not plain functions, and the functions in `loaded`.

    `loaded` are declarations outside of the options, such as the results of a tool search.
    """
    if not loaded and all(maybe_object(tool).get("type") == FUNCTION_KIND for tool in tools):
        return ()  # the case of almost every request
    declarations = [*_declarations(tools, None, read_custom, has_functions=False)]
    declarations += _declarations(loaded, None, read_custom, has_functions=True)
    function_names = {name for tool in map(maybe_object, tools) if (name := _function_name(tool))}
    counts: dict[str, int] = {}
    for _, name, _, _ in declarations:
        counts[name] = counts.get(name, 0) + 1
    declared: dict[str, DeclaredTool] = {}
    for kind, name, namespace, definition in declarations:
        # Two namespaces may have a tool of the same name: the namespace makes its name unique.
        is_unique = counts[name] == 1 and name not in function_names
        unique_name = name if is_unique or namespace is None else f"{namespace}__{name}"
        if unique_name in declared or (namespace is None and unique_name in function_names):
            continue
        if definition.name != unique_name:
            definition = _definition(  # noqa: PLW2901 - the renamed definition replaces it
                unique_name, definition.description, definition.input_schema
            )
        is_altered = kind != FUNCTION_KIND or namespace is not None
        declared[unique_name] = DeclaredTool(kind, name, definition, namespace, is_altered)
    return tuple(declared.values())


_Declaration = tuple[str, str, str | None, ToolDefinition]
"""Kind, name, namespace and function of a declared tool."""


def _declarations(
    tools: Iterable[Any],
    namespace: str | None,
    read_custom: Callable[[Wire], Wire],
    *,
    has_functions: bool,
) -> Iterator[_Declaration]:
    """Yield the declared tools, also those in namespaces; functions only if `has_functions`."""
    for tool in map(maybe_object, tools):
        kind, name = maybe_text(tool.get("type")) or "", maybe_text(tool.get("name"))
        if kind == "namespace" and name and namespace is None:
            inner = maybe_list(tool.get("tools"))
            yield from _declarations(inner, name, read_custom, has_functions=True)
        elif kind == CUSTOM_KIND:
            custom = read_custom(tool)
            name = maybe_text(custom.get("name"))
            if name:
                yield CUSTOM_KIND, name, namespace, _custom_definition(name, custom)
        elif kind == FUNCTION_KIND and name and has_functions:
            yield FUNCTION_KIND, name, namespace, _function_definition(name, tool)
        elif kind in _SCHEMAS and _is_run_by_client(tool):
            definition = _definition(kind, _DESCRIPTIONS[kind], _SCHEMAS[kind])
            if kind == "tool_search":
                schema = maybe_object(tool.get("parameters")) or _SCHEMAS[kind]
                text = maybe_text(tool.get("description")) or _DESCRIPTIONS[kind]
                definition = _definition(kind, text, schema)
            yield kind, kind, None, definition


def _function_name(tool: Wire) -> str | None:
    """Return the name of a plain function; None for any other kind of tool."""
    function = maybe_object(tool.get("function")) or tool
    return maybe_text(function.get("name")) if tool.get("type") == FUNCTION_KIND else None


def _is_run_by_client(tool: Wire) -> bool:
    if tool.get("type") == "tool_search":
        return tool.get("execution") == "client"
    return maybe_object(tool.get("environment")).get("type") in (None, "local")


def _definition(name: str, description: str, schema: Mapping[str, Any]) -> ToolDefinition:
    return ToolDefinition(name, description, schema, SideEffects.EXECUTE)


def _function_definition(name: str, tool: Wire) -> ToolDefinition:
    schema = maybe_object(tool.get("parameters")) or {"type": "object", "properties": {}}
    return _definition(name, maybe_text(tool.get("description")) or "", schema)


def _custom_definition(name: str, custom: Wire) -> ToolDefinition:
    """Return a function with one text field for a custom tool; a grammar is described in text."""
    description = maybe_text(custom.get("description")) or ""
    grammar = maybe_object(custom.get("format"))
    # Responses has `definition` next to `syntax`; Chat Completions nests both in `grammar`.
    grammar = maybe_object(grammar.get("grammar")) or grammar
    rules = maybe_text(grammar.get("definition"))
    if rules is not None:
        syntax = maybe_text(grammar.get("syntax")) or "given"
        description = (
            f"{description}\n\nThe field `{INPUT_KEY}` must match this {syntax} grammar:\n"
            f"{rules[:_MAX_GRAMMAR_CHARS]}"
        ).strip()
    field = {"type": "string", "description": "The whole input of the tool, as plain text."}
    schema = _object({INPUT_KEY: field}, required=[INPUT_KEY])
    return _definition(name, description, schema)


def _object(properties: Wire, required: list[str]) -> Wire:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_TEXT: Wire = {"type": "string"}
_TEXTS: Wire = {"type": "array", "items": _TEXT}
_SCHEMAS: Mapping[str, Wire] = {
    "local_shell": _object(
        {
            "type": {"type": "string", "enum": ["exec"]},
            "command": _TEXTS,
            "env": {"type": "object", "additionalProperties": _TEXT},
            "timeout_ms": {"type": "integer"},
            "user": _TEXT,
            "working_directory": _TEXT,
        },
        required=["type", "command", "env"],
    ),
    "shell": _object(
        {
            "commands": _TEXTS,
            "timeout_ms": {"type": "integer"},
            "max_output_length": {"type": "integer"},
        },
        required=["commands"],
    ),
    "apply_patch": _object(
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
        required=["type", "path"],
    ),
    "tool_search": _object({"queries": _TEXTS}, required=["queries"]),
}
_DESCRIPTIONS: Mapping[str, str] = {
    "local_shell": "Runs a command on the user's machine; `command` is the program with arguments.",
    "shell": "Runs shell commands on the user's machine, each in its own shell.",
    "apply_patch": "Creates, updates or deletes a file; `diff` is a patch in the V4A diff format.",
    "tool_search": "Searches for more tools by queries; these tools can then be called.",
}
