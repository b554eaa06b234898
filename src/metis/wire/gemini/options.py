"""Options of Gemini."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.gemini.names import PROTOCOL, field, snake, spelled_key
from metis.wire.gemini.output import OUTPUT
from metis.wire.gemini.thinking import REASONING
from metis.wire.gemini.tools import decode_tools, encode_tools
from metis.wire.shape import Wire, maybe_list, maybe_object

CONFIG, TOOL_CONFIG, CALLING = "generationConfig", "toolConfig", "functionCallingConfig"
_KEYS = {
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "stop_sequences": "stopSequences",
}
_SHARED = {
    "tools",
    *(f"{CONFIG}.{key}" for key in _KEYS.values()),
    f"{TOOL_CONFIG}.{CALLING}.mode",
    f"{TOOL_CONFIG}.{CALLING}.allowedFunctionNames",
}
SHARED_KEYS = frozenset({*_SHARED, *(snake(key) for key in _SHARED)})
"""The keys of a request that the shared options and the tools speak for."""
_COMMON = (CONFIG, TOOL_CONFIG, "safetySettings")
COMMON_KEYS = frozenset({*_COMMON, *map(snake, _COMMON)})
"""Other keys that both hosts know; cached contents and labels belong to one."""

_MODES: Mapping[Any, ToolMode] = {
    "AUTO": "auto",
    "ANY": "required",
    "NONE": "none",
    "VALIDATED": "auto",
    1: "auto",
    2: "required",
    3: "none",
}
_WORDS: Mapping[ToolMode, str] = {
    "auto": "AUTO",
    "required": "ANY",
    "none": "NONE",
    "tool": "ANY",
}

TOOL_MODES = {"validated": {TOOL_CONFIG: {CALLING: {"mode": "VALIDATED"}}}}
"""The mode that only Gemini has: tools are free, and arguments keep to the schema."""


def decode_options(wire: Wire, model: str | None) -> AdapterOptions:
    """The shared options of a request, with their spelling."""
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT.decode(wire).output
    return AdapterOptions(
        model=model, **_shared(wire), reasoning=spoken, output=output, native={PROTOCOL: wire}
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """The options as keys of a request; a remembered spelling is kept while it says the same."""
    wire = dict(options.native.get(PROTOCOL, {}))
    remembered = _shared(wire)
    changed = {
        key: getattr(options, name)
        for name, key in _KEYS.items()
        if getattr(options, name) != remembered.get(name)
    }
    if changed:
        _set_inside(wire, CONFIG, changed)
    if options.tool_choice != remembered.get("tool_choice"):
        _set_choice(wire, options.tool_choice)
    REASONING.write(wire, options.reasoning, is_free=options.origin is None)
    OUTPUT.write(wire, options.output, is_free=options.origin is None)
    own = field(wire, "tools")
    if tuple(tools) != decode_tools(own):
        wire[spelled_key(wire, "tools")] = encode_tools(tools, own)
    return wire


def _set_inside(wire: Wire, name: str, changes: Mapping[str, Any]) -> None:
    """Set fields of an object in a request, or take them away; an empty one is not sent."""
    key = spelled_key(wire, name)
    inner = dict(maybe_object(wire.get(key)))
    for each, value in changes.items():
        own = spelled_key(inner, each)
        inner.pop(own, None)
        if value is not None:
            inner[own] = list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType] - strings
    wire.pop(key, None)
    if inner:
        wire[key] = inner


def _set_choice(wire: Wire, choice: ToolChoice | None) -> None:
    calling: Wire | None = None
    if choice is not None:
        calling = {"mode": _WORDS[choice.mode]}
        if choice.name is not None:
            calling["allowedFunctionNames"] = [choice.name]
    _set_inside(wire, TOOL_CONFIG, {CALLING: calling})


def _shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that a request states."""
    if not wire:
        return {}
    config = maybe_object(field(wire, CONFIG))
    found = {name: field(config, key) for name, key in _KEYS.items()}
    stops = found["stop_sequences"]
    found["stop_sequences"] = tuple(cast("list[str]", stops)) if isinstance(stops, list) else None
    for name in ("top_k", "max_output_tokens"):
        if isinstance(found[name], float):
            found[name] = int(found[name])
    found["tool_choice"] = _choice(maybe_object(field(wire, TOOL_CONFIG)))
    return {name: value for name, value in found.items() if value is not None}


def _choice(config: Wire) -> ToolChoice | None:
    calling = maybe_object(field(config, CALLING))
    word = calling.get("mode")
    mode = _MODES.get(word) if isinstance(word, str | int) else None
    if mode is None:
        return None
    names = maybe_list(field(calling, "allowedFunctionNames"))
    if mode == "required" and len(names) == 1 and isinstance(names[0], str):
        return ToolChoice("tool", names[0])
    return ToolChoice(mode)
