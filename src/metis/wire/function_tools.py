"""Function tools and failed tool results, as several protocols encode them."""

from collections.abc import Sequence
from typing import Any, cast

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text


def decode_functions(wire: Any) -> tuple[ToolDefinition, ...]:
    """Decode the tools that the client runs; all others stay in the native options."""
    tools = map(decode_function, maybe_list(wire))
    return tuple(tool for tool in tools if tool is not None)


def decode_function(wire: Any) -> ToolDefinition | None:
    """Decode the definition of a function; None for any other tool."""
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
    """Encode the definitions of tools that the client runs."""
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
    """Set the tools of a request; native ones stay while they state the same."""
    entries = maybe_list(native.get("tools"))
    if (entries or not tools) and decode_functions(entries) == tuple(tools):
        return
    others = [entry for entry in entries if decode_function(entry) is None]
    native["tools"] = [*others, *encode_functions(tools)]
    # OpenAI refuses an empty list of tools.
    if not native["tools"]:
        del native["tools"]


_ERROR = "Error: "


def with_error_prefix(content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
    """Mark the result of a failed call in its text, because the protocol has no flag (T26)."""
    match content:
        case (TextBlock(text=str(text)), *rest):
            return (TextBlock(text if text.startswith(_ERROR) else _ERROR + text), *rest)
        case _:
            return (TextBlock(_ERROR.strip()), *content)
