"""Options and tools of Anthropic Messages."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.wire.anthropic.blocks import PROTOCOL
from metis.wire.anthropic.output import OUTPUT
from metis.wire.anthropic.thinking import REASONING
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

DEFAULT_MAX_TOKENS = 4096
"""What is asked for when nobody says how long an answer may be; the protocol wants a number."""

_KEYS = {
    "model": "model",
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop_sequences",
    "stream": "stream",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "tool_choice",
}
SHARED_KEYS = frozenset({*_KEYS.values(), "tools", "anthropic_version"})
"""The keys of a request that the shared options and the tools speak for, or the host itself."""

_MODES: Mapping[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_WORDS = {ours: theirs for theirs, ours in _MODES.items()}


def decode_tools(wire: object) -> tuple[ToolDefinition, ...]:
    """The tools that the client runs itself; server-side tools stay with the options."""
    tools = [maybe_object(tool) for tool in maybe_list(wire)]
    return tuple(
        ToolDefinition(
            name=tool["name"],
            description=maybe_text(tool.get("description")) or "",
            input_schema=tool["input_schema"],
            side_effects=SideEffects.EXECUTE,
        )
        for tool in tools
        if isinstance(tool.get("input_schema"), dict) and isinstance(tool.get("name"), str)
    )


def encode_tools(tools: Sequence[ToolDefinition]) -> list[Wire]:
    """The definitions of the client's own tools."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in tools
    ]


def decode_options(wire: Wire) -> AdapterOptions:
    """The shared options of a request, with their spelling."""
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT.decode(wire).output
    return AdapterOptions(**_shared(wire), reasoning=spoken, output=output, native={PROTOCOL: wire})


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """The options as keys of a request; a remembered spelling is kept while it says the same."""
    wire = dict(options.native.get(PROTOCOL, {}))
    remembered = _shared(wire) if wire else {}
    changed = {key for name, key in _KEYS.items() if getattr(options, name) != remembered.get(name)}
    for key in changed:
        wire.pop(key, None)
    stated = {key: value for key, value in _stated(options).items() if value is not None}
    wire |= {key: value for key, value in stated.items() if key in changed}
    REASONING.write(wire, options.reasoning, is_free=options.origin is None)
    OUTPUT.write(wire, options.output, is_free=options.origin is None)
    if tuple(tools) != decode_tools(wire.get("tools")):
        server = [tool for tool in maybe_list(wire.get("tools")) if not decode_tools([tool])]
        wire["tools"] = [*encode_tools(tools), *server]
    if PROTOCOL not in options.native:
        wire.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    return wire


def _stated(options: AdapterOptions) -> Wire:
    """Every shared option under its key here."""
    stops = options.stop_sequences
    return {
        "model": options.model,
        "max_tokens": options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "stop_sequences": None if stops is None else list(stops),
        "stream": options.stream,
        "tool_choice": _encode_choice(options),
    }


def _encode_choice(options: AdapterOptions) -> Wire | None:
    if options.tool_choice is None and options.parallel_tool_calls is None:
        return None
    choice = options.tool_choice or ToolChoice()
    wire: Wire = {"type": _WORDS[choice.mode]}
    if choice.name is not None:
        wire["name"] = choice.name
    if options.parallel_tool_calls is not None and choice.mode != "none":
        wire["disable_parallel_tool_use"] = not options.parallel_tool_calls
    return wire


def _shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that a request states."""
    found: dict[str, Any] = {
        name: value
        for name, kind in _KINDS.items()
        if isinstance(value := wire.get(_KEYS[name]), kind)
        and (kind is bool or not isinstance(value, bool))
    }
    stops = wire.get("stop_sequences")
    if isinstance(stops, list) and all(isinstance(stop, str) for stop in maybe_list(stops)):
        found["stop_sequences"] = tuple(cast("list[str]", stops))
    choice = maybe_object(wire.get("tool_choice"))
    mode = _MODES.get(str(choice.get("type")))
    if mode is not None:
        found["tool_choice"] = ToolChoice(mode, maybe_text(choice.get("name")))
    if "disable_parallel_tool_use" in choice:
        found["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return found


_KINDS: Mapping[str, Any] = {
    "model": str,
    "max_output_tokens": int,
    "temperature": int | float,
    "top_p": int | float,
    "top_k": int,
    "stream": bool,
}
"""The kind of each option that is told by one value; what is of another kind is spelled only."""
