"""Tools of Bedrock Converse: those of the client, those of the provider, and marks among them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

CONFIG = "toolConfig"
_SPEC, _MARK = "toolSpec", "cachePoint"
_SAID = frozenset({"name", "description", "inputSchema"})
"""The keys of a tool that our definition speaks for."""


def _listed(wire: Mapping[str, Any]) -> list[Any]:
    return maybe_list(maybe_object(wire.get(CONFIG)).get("tools"))


def decode_tools(wire: Mapping[str, Any]) -> tuple[ToolDefinition, ...]:
    """The tools that the client runs itself; all others stay with the options."""
    found = (_decode(tool) for tool in _listed(wire))
    return tuple(tool for tool in found if tool is not None)


def _decode(wire: Any) -> ToolDefinition | None:
    spec = maybe_object(maybe_object(wire).get(_SPEC))
    name, schema = spec.get("name"), maybe_object(spec.get("inputSchema")).get("json")
    if not isinstance(name, str) or not isinstance(schema, dict):
        return None
    return ToolDefinition(
        name=name,
        description=maybe_text(spec.get("description")) or "",
        input_schema=cast("Wire", schema),
        side_effects=SideEffects.EXECUTE,
    )


def spell_tools(wire: Wire, tools: Sequence[ToolDefinition]) -> None:
    """Put tools into a request; what is spelled of them is kept as far as it still holds.

    Without tools there is nothing to choose from, and nothing of it is sent.
    """
    if tuple(tools) == decode_tools(wire):
        return
    spelled = _listed(wire)
    known = {tool.name: each for each in spelled if (tool := _decode(each)) is not None}
    own = [_encode(tool, known.get(tool.name)) for tool in tools]
    others = [each for each in spelled if _decode(each) is None]
    config = {**maybe_object(wire.get(CONFIG)), "tools": [*own, *others]}
    wire.pop(CONFIG, None)
    if own or any(_MARK not in maybe_object(each) for each in others):
        wire[CONFIG] = config


def _encode(tool: ToolDefinition, spelled: Any) -> Wire:
    if spelled is not None and _decode(spelled) == tool:
        return spelled
    spec: Wire = {"inputSchema": {"json": tool.input_schema}, "name": tool.name}
    if tool.description:  # an empty one is refused, and none is needed (T112)
        spec["description"] = tool.description
    return {_SPEC: spec}


def server_tools(wire: Mapping[str, Any]) -> list[str]:
    """The names of the tools that the provider runs itself."""
    own = (maybe_object(tool) for tool in _listed(wire))
    return [
        str(maybe_object(tool.get("systemTool")).get("name") or next(iter(tool), ""))
        for tool in own
        if _decode(tool) is None and _MARK not in tool
    ]


def unsaid_of_tools(wire: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What tools of the client say beyond our definitions: the tool, and the path."""
    for index, tool in enumerate(map(maybe_object, _listed(wire))):
        if _decode(tool) is None:
            continue
        spec = maybe_object(tool[_SPEC])
        for key, value in spec.items():
            if value and key not in _SAID:
                yield spec["name"], f"{CONFIG}.tools[{index}].{_SPEC}.{key}"
