"""Options and tools of Chat Completions."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.functions import spell_functions
from metis.wire.openai_chat.output import OUTPUT
from metis.wire.openai_chat.parts import PROTOCOL
from metis.wire.openai_chat.thinking import REASONING
from metis.wire.shape import Wire, maybe_list, maybe_object

_CHOICES: Mapping[str, ToolMode] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",
}
_LENGTHS = ("max_completion_tokens", "max_tokens")
"""The two names of one limit; hosts know the second, OpenAI's newer models the first (T182)."""


def decode_options(wire: Wire) -> AdapterOptions:
    """The shared options of a request, with their spelling."""
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT.decode(wire).output
    return AdapterOptions(**_shared(wire), reasoning=spoken, output=output, native={PROTOCOL: wire})


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """The options as keys of a request; a remembered spelling is kept while it says the same."""
    native = dict(options.native.get(PROTOCOL, {}))
    remembered = _shared(native) if native else {}
    for name, key in _KEYS.items():
        ours = getattr(options, name)
        if ours != remembered.get(name):
            _set(native, key, _render(ours))
    if options.max_output_tokens != remembered.get("max_output_tokens"):
        key = next((key for key in _LENGTHS if key in native), _LENGTHS[0])
        _set(native, key, options.max_output_tokens)
    REASONING.write(native, options.reasoning, is_free=options.origin is None)
    OUTPUT.write(native, options.output, is_free=options.origin is None)
    spell_functions(native, tools)
    if not native.get("tools"):
        # Without tools the flag is an error (T114); a spelled request had its reasons.
        _drop_unless_spelled(native, "parallel_tool_calls", options)
    return native


def _drop_unless_spelled(native: Wire, key: str, options: AdapterOptions) -> None:
    if key not in options.native.get(PROTOCOL, {}):
        native.pop(key, None)


def _set(native: Wire, key: str, value: Any) -> None:
    if value is None:
        native.pop(key, None)
    else:
        native[key] = value


def _shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that a request states."""
    lengths = (wire.get(key) for key in _LENGTHS)
    found: dict[str, Any] = {
        "model": _only(str, wire.get("model")),
        "max_output_tokens": next((n for n in lengths if _only(int, n) is not None), None),
        "temperature": _only(float, wire.get("temperature")),
        "top_p": _only(float, wire.get("top_p")),
        "top_k": _only(int, wire.get("top_k")),
        "stop_sequences": _decode_stops(wire.get("stop")),
        "tool_choice": _decode_choice(wire.get("tool_choice")),
        "parallel_tool_calls": _only(bool, wire.get("parallel_tool_calls")),
        "stream": _only(bool, wire.get("stream")),
    }
    return {name: value for name, value in found.items() if value is not None}


def _only(kind: type, value: Any) -> Any:
    """The value if it is of that kind, where a whole number passes for a float."""
    if kind is bool:
        return value if isinstance(value, bool) else None
    kinds = (int, float) if kind is float else kind
    return value if isinstance(value, kinds) and not isinstance(value, bool) else None


def _decode_stops(wire: Any) -> tuple[str, ...] | None:
    if isinstance(wire, str):
        return (wire,)
    stops = maybe_list(wire)
    whole = stops and all(isinstance(stop, str) for stop in stops)
    return tuple(stops) if whole else None


def _decode_choice(wire: Any) -> ToolChoice | None:
    if isinstance(wire, str):
        mode = _CHOICES.get(wire)
        return None if mode is None else ToolChoice(mode)
    name = maybe_object(maybe_object(wire).get("function")).get("name")
    return ToolChoice("tool", name) if isinstance(name, str) else None


def _render(value: Any) -> Any:
    match value:
        case ToolChoice(mode="tool"):
            return {"type": "function", "function": {"name": value.name}}
        case ToolChoice():
            return value.mode
        case tuple():
            return list(cast("tuple[str, ...]", value))
        case _:
            return value


_KEYS: Mapping[str, str] = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "stream": "stream",
}
"""Our name of each shared option, and the key that says it here."""
