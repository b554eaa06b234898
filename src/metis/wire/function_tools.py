"""Function tools and failed tool results, as several protocols encode them."""

from collections.abc import Sequence
from typing import Any, cast

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.json_access import Wire, maybe_list, maybe_object


def decode_functions(wire: Any) -> tuple[ToolDefinition, ...]:
    """The tools that the client runs itself; all others stay with the options."""
    found = (decode_function(tool) for tool in maybe_list(wire))
    return tuple(tool for tool in found if tool is not None)


def decode_function(wire: Any) -> ToolDefinition | None:
    """Our definition for one of the wire; None if it is no function."""
    function = maybe_object(maybe_object(wire).get("function"))
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not isinstance(schema, dict | None):
        return None
    description = function.get("description")
    return ToolDefinition(
        name=name,
        description=description if isinstance(description, str) else "",
        input_schema=cast("Wire", schema or {"type": "object", "properties": {}}),
        side_effects=SideEffects.EXECUTE,
    )


def encode_functions(tools: Sequence[ToolDefinition]) -> list[Wire]:
    """The definitions of the client's own tools."""
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
    """Put tools into the spelled keys of a request; a spelling that says the same is kept."""
    spelled = maybe_list(native.get("tools"))
    if (spelled or not tools) and decode_functions(spelled) == tuple(tools):
        return
    foreign = [tool for tool in spelled if decode_function(tool) is None]
    wanted = [*foreign, *encode_functions(tools)]
    if wanted:
        native["tools"] = wanted
    else:
        native.pop("tools", None)


_ERROR = "Error: "


def with_error_prefix(content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
    """The result of a failed call, which the protocol has no flag for (T26)."""
    match content:
        case (TextBlock(text=str(text)), *rest):
            return (TextBlock(text if text.startswith(_ERROR) else _ERROR + text), *rest)
        case _:
            return (TextBlock(_ERROR.strip()), *content)
