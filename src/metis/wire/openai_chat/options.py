"""Options and tools of a Chat Completions request, with reasoning and the output format.

Hosts control reasoning in three ways: OpenAI and most others accept `reasoning_effort`, OpenRouter
an object `reasoning`, and DeepSeek an object `thinking` that switches reasoning on or off, in
addition to `reasoning_effort`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import ToolDefinition
from metis.catalog.model_rules import Effort, ReasoningForm, SchemaDialect
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.declared_tools import DeclaredTool, declare
from metis.wire.function_tools import set_functions
from metis.wire.json_access import Wire, maybe_list, maybe_object, set_or_remove
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

_OPTION_KEYS: Mapping[str, str] = {
    "model": "model",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "stream": "stream",
}
"""The keys of a request, by the name of the shared option."""
_LIMIT_KEYS = ("max_completion_tokens", "max_tokens")
"""Two keys of one limit: newer OpenAI models accept only the first, hosts the second (T182)."""

SHARED_KEYS = frozenset({*_OPTION_KEYS.values(), *_LIMIT_KEYS, "tools"})
"""The keys of a request that shared options and tools determine."""
COMMON_KEYS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "n",
        "presence_penalty",
        "response_format",
        "seed",
        "stream_options",
        "top_logprobs",
        "user",
    }
)
"""Other keys of a request that all hosts accept."""

_EFFORT, _REASONING, _THINKING = "reasoning_effort", "reasoning", "thinking"
_SWITCHES: Mapping[Any, bool] = {"enabled": True, "adaptive": True, "disabled": False}
_FORMAT = "response_format"
_FORMAT_TYPE = frozenset({f"{_FORMAT}.type"})
_TOOL_MODES: Mapping[str, ToolMode] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "any": "required",  # Mistral
}


def declared_tools(
    native: Mapping[str, Any], loaded: Sequence[Any] = ()
) -> tuple[DeclaredTool, ...]:
    """Return the tools of a request that are not plain functions; see `declare`."""
    tools = maybe_list(native.get("tools"))
    return declare(tools, loaded, lambda tool: maybe_object(tool.get("custom")))


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    """Decode all three forms; the values of several keys are combined."""
    if not (_EFFORT in wire or _REASONING in wire or _THINKING in wire):
        return UNSTATED_REASONING
    values: dict[str, Any] = {}
    effort = wire.get(_EFFORT)
    # At Groq `default` switches reasoning on without an effort.
    if effort_of(effort) is not None or effort == "default":
        values[_EFFORT] = effort_of(effort)
    reasoning, thinking = maybe_object(wire.get(_REASONING)), maybe_object(wire.get(_THINKING))
    if effort_of(reasoning.get("effort")) is not None:
        values["reasoning.effort"] = effort_of(reasoning["effort"])
    budgets = {
        "reasoning.max_tokens": budget_of(reasoning.get("max_tokens")),
        "thinking.budget_tokens": budget_of(thinking.get("budget_tokens")),
    }
    values |= {key: budget for key, budget in budgets.items() if budget is not None}
    if isinstance(reasoning.get("enabled"), bool):
        values["reasoning.enabled"] = reasoning["enabled"]
    kind = thinking.get("type")
    if isinstance(kind, str) and kind in _SWITCHES:
        values["thinking.type"] = _SWITCHES[kind]
    if not values:
        return UNSTATED_REASONING
    return DecodedReasoning(_combine_reasoning(values), frozenset(values))


def _combine_reasoning(values: Mapping[str, Any]) -> Reasoning:
    effort: Effort | None = values.get(_EFFORT) or values.get("reasoning.effort")
    is_off = False in (values.get("reasoning.enabled"), values.get("thinking.type"))
    if is_off or effort == "none":
        return Reasoning("none")
    budget = values.get("reasoning.max_tokens") or values.get("thinking.budget_tokens")
    return Reasoning(effort, budget)


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None) -> None:
    """Set reasoning in one of the three forms, and remove the keys of the others."""
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
            # Qwen models at Groq accept only `none` and `default`.
            wire[_EFFORT] = "none" if reasoning.is_off else "default"
        case _:
            # OpenAI has no value for "model decides"; medium is its default.
            wire[_EFFORT] = reasoning.effort or "medium"


def _reasoning_object(reasoning: Reasoning) -> Wire:
    if reasoning.budget_tokens is not None:
        return {"max_tokens": reasoning.budget_tokens}
    return {"effort": reasoning.effort} if reasoning.effort else {"enabled": True}


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)
"""Reasoning in the three forms of the hosts."""


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    if _FORMAT not in wire:
        return UNSTATED_OUTPUT
    output_format = maybe_object(wire[_FORMAT])
    match output_format.get("type"):
        case "text":
            return DecodedOutput(None, _FORMAT_TYPE)
        case "json_object":
            return DecodedOutput(OutputFormat(), _FORMAT_TYPE)
        case "json_schema":
            schema = output_format.get("json_schema")
            decoded = decode_named_schema(schema, f"{_FORMAT}.json_schema.")
            return DecodedOutput(decoded.output, decoded.keys | _FORMAT_TYPE)
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
"""The output format in `response_format`."""


def decode_options(wire: Wire) -> AdapterOptions:
    """Decode the shared options of a request; its keys are stored as native options."""
    return AdapterOptions(
        **_decode_shared(wire),
        reasoning=REASONING.decode(wire).reasoning,
        output=OUTPUT_FORMAT.decode(wire).output,
        native={PROTOCOL: wire},
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """Encode options as keys of a request; native keys with the same meaning remain unchanged."""
    native_keys = options.native.get(PROTOCOL, {})
    wire = dict(native_keys)
    native = _decode_shared(wire) if wire else {}
    for name, key in _OPTION_KEYS.items():
        value = getattr(options, name)
        if value != native.get(name):
            set_or_remove(wire, key, _encode_value(value))
    if options.max_output_tokens != native.get("max_output_tokens"):
        key = next((key for key in _LIMIT_KEYS if key in wire), _LIMIT_KEYS[0])
        set_or_remove(wire, key, options.max_output_tokens)
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    set_functions(wire, tools)
    if not wire.get("tools") and "parallel_tool_calls" not in native_keys:
        # OpenAI rejects the flag without tools with 400 (T114); a client's flag is passed on.
        wire.pop("parallel_tool_calls", None)
    return wire


def _decode_shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the shared options of a request; options that are not set are left out."""
    limits = (wire.get(key) for key in _LIMIT_KEYS)
    options: dict[str, Any] = {
        "model": _if_type(str, wire.get("model")),
        "max_output_tokens": next((n for n in limits if _if_type(int, n) is not None), None),
        "temperature": _if_type(float, wire.get("temperature")),
        "top_p": _if_type(float, wire.get("top_p")),
        "top_k": _if_type(int, wire.get("top_k")),
        "stop_sequences": _decode_stops(wire.get("stop")),
        "tool_choice": _decode_tool_choice(wire.get("tool_choice")),
        "parallel_tool_calls": _if_type(bool, wire.get("parallel_tool_calls")),
        "stream": _if_type(bool, wire.get("stream")),
    }
    return {name: value for name, value in options.items() if value is not None}


def _if_type(kind: type, value: Any) -> Any:
    """Return a value if it has the type, else None; integers are floats, booleans not numbers."""
    if kind is bool:
        return value if isinstance(value, bool) else None
    kinds = (int, float) if kind is float else kind
    return value if isinstance(value, kinds) and not isinstance(value, bool) else None


def _decode_stops(wire: Any) -> tuple[str, ...] | None:
    if isinstance(wire, str):
        return (wire,)
    stops = maybe_list(wire)
    are_texts = stops and all(isinstance(stop, str) for stop in stops)
    return tuple(stops) if are_texts else None


def _decode_tool_choice(wire: Any) -> ToolChoice | None:
    if isinstance(wire, str):
        mode = _TOOL_MODES.get(wire)
        return None if mode is None else ToolChoice(mode)
    name = maybe_object(maybe_object(wire).get("function")).get("name")
    return ToolChoice("tool", name) if isinstance(name, str) else None


def _encode_value(value: Any) -> Any:
    match value:
        case ToolChoice(mode="tool"):
            return {"type": "function", "function": {"name": value.name}}
        case ToolChoice():
            return value.mode
        case tuple():
            return list(cast("tuple[str, ...]", value))
        case _:
            return value
