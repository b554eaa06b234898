"""Function tools and failed tool results, as several protocols encode them."""

from collections.abc import Sequence
from typing import Any, cast

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text


def decode_functions(wire: Any) -> tuple[ToolDefinition, ...]:
    """Decode the function tools of a request; all other tools remain in the native options only."""
    tools = map(decode_function, maybe_list(wire))
    return tuple(tool for tool in tools if tool is not None)


def decode_function(wire: Any) -> ToolDefinition | None:
    """Decode a function tool; None for any other kind of tool."""
    function = maybe_object(maybe_object(wire).get("function"))
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not isinstance(schema, dict | None):
        return None
    return ToolDefinition(
        name=name,
        description=maybe_text(function.get("description")) or "",
        input_schema=cast("Wire", schema or {"type": "object", "properties": {}}),
        side_effects=SideEffects.EXECUTE,
    )


def encode_functions(tools: Sequence[ToolDefinition]) -> list[Wire]:
    """Encode tool definitions as function tools."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
            },
        }
        for tool in tools
    ]


def set_functions(native: Wire, tools: Sequence[ToolDefinition]) -> None:
    """Set the tools of a request; native function tools with the same meaning remain unchanged."""
    entries = maybe_list(native.get("tools"))
    if (entries or not tools) and decode_functions(entries) == tuple(tools):
        return
    others = [entry for entry in entries if decode_function(entry) is None]
    native["tools"] = [*others, *encode_functions(tools)]
    # OpenAI rejects an empty list of tools with 400.
    if not native["tools"]:
        del native["tools"]


_ERROR_PREFIX = "Error: "


def with_error_prefix(content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
    """Return the content of a failed result with a text prefix: the protocol has no flag (T26)."""
    match content:
        case (TextBlock(text=str(text)), *others):
            has_prefix = text.startswith(_ERROR_PREFIX)
            return (TextBlock(text if has_prefix else _ERROR_PREFIX + text), *others)
        case _:
            return (TextBlock(_ERROR_PREFIX.strip()), *content)
