"""Options and tools of a Chat Completions request, with reasoning and the output format."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import ToolDefinition
from metis.catalog.model_rules import Effort, ReasoningForm, SchemaDialect
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.function_tools import set_functions
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.openai_chat.blocks import PROTOCOL
from metis.wire.output_format import (
    UNSTATED_OUTPUT,
    DecodedOutput,
    OutputFormat,
    OutputFormatCodec,
    decode_named_schema,
    encode_named_schema,
)
from metis.wire.reasoning import (
    UNSTATED_REASONING,
    DecodedReasoning,
    Reasoning,
    ReasoningCodec,
    budget_of,
    effort_of,
    set_inner_keys,
)

_EFFORT, _REASONING, _THINKING = "reasoning_effort", "reasoning", "thinking"
_SWITCHES: Mapping[Any, bool] = {"enabled": True, "adaptive": True, "disabled": False}


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    if not (_EFFORT in wire or _REASONING in wire or _THINKING in wire):
        return UNSTATED_REASONING
    found: dict[str, Any] = {}
    word = wire.get(_EFFORT)
    if effort_of(word) is not None or word == "default":
        found[_EFFORT] = effort_of(word)
    reasoning, thinking = maybe_object(wire.get(_REASONING)), maybe_object(wire.get(_THINKING))
    if effort_of(reasoning.get("effort")) is not None:
        found["reasoning.effort"] = effort_of(reasoning["effort"])
    budgets = {
        "reasoning.max_tokens": budget_of(reasoning.get("max_tokens")),
        "thinking.budget_tokens": budget_of(thinking.get("budget_tokens")),
    }
    found |= {key: budget for key, budget in budgets.items() if budget is not None}
    if isinstance(reasoning.get("enabled"), bool):
        found["reasoning.enabled"] = reasoning["enabled"]
    kind = thinking.get("type")
    if isinstance(kind, str) and kind in _SWITCHES:
        found["thinking.type"] = _SWITCHES[kind]
    return DecodedReasoning(_combine(found), frozenset(found)) if found else UNSTATED_REASONING


def _combine(found: Mapping[str, Any]) -> Reasoning:
    if False in (found.get("reasoning.enabled"), found.get("thinking.type")):
        return Reasoning("none")
    effort: Effort | None = found.get(_EFFORT) or found.get("reasoning.effort")
    if effort == "none":
        return Reasoning("none")
    budget = found.get("reasoning.max_tokens") or found.get("thinking.budget_tokens")
    return Reasoning(effort, budget)


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None) -> None:
    wire.pop(_EFFORT, None)
    set_inner_keys(wire, _REASONING, dict.fromkeys(("effort", "max_tokens", "enabled")))
    set_inner_keys(wire, _THINKING, dict.fromkeys(("type", "budget_tokens")))
    if reasoning is None:
        return
    match form:
        case "reasoning":
            set_inner_keys(wire, _REASONING, _reasoning_object(reasoning))
        case "thinking":
            kind = "disabled" if reasoning.is_off else "enabled"
            set_inner_keys(wire, _THINKING, {"type": kind})
            if reasoning.effort is not None and not reasoning.is_off:
                wire[_EFFORT] = reasoning.effort
        case "default":
            wire[_EFFORT] = "none" if reasoning.is_off else "default"
        case _:
            wire[_EFFORT] = reasoning.effort or "medium"


def _reasoning_object(reasoning: Reasoning) -> Wire:
    if reasoning.budget_tokens is not None:
        return {"max_tokens": reasoning.budget_tokens}
    return {"effort": reasoning.effort} if reasoning.effort else {"enabled": True}


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)


_FORMAT = "response_format"
_TYPE = frozenset({f"{_FORMAT}.type"})


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    if _FORMAT not in wire:
        return UNSTATED_OUTPUT
    own = maybe_object(wire[_FORMAT])
    match own.get("type"):
        case "text":
            return DecodedOutput(None, _TYPE)
        case "json_object":
            return DecodedOutput(OutputFormat(), _TYPE)
        case "json_schema":
            named = decode_named_schema(own.get("json_schema"), f"{_FORMAT}.json_schema.")
            return DecodedOutput(named.output, named.keys | _TYPE)
        case _:
            return UNSTATED_OUTPUT


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    wire.pop(_FORMAT, None)
    if output is None:
        return
    if output.schema is None:
        wire[_FORMAT] = {"type": "json_object"}
    else:
        wire[_FORMAT] = {"type": "json_schema", "json_schema": encode_named_schema(output)}


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format, has_name=True)


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
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT_FORMAT.decode(wire).output
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
    REASONING.apply(native, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(native, options.output, keep_native=options.origin is None)
    set_functions(native, tools)
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
