"""Options and tools of an OpenAI Responses request, with reasoning and the output format."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import ReasoningForm, SchemaDialect
from metis.projection.target import Target
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.openai_responses.blocks import PROTOCOL
from metis.wire.output_format import (
    UNSTATED_OUTPUT,
    DecodedOutput,
    OutputFormat,
    OutputFormatCodec,
    decode_named_schema,
    encode_named_schema,
)
from metis.wire.reasoning import (
    DecodedReasoning,
    Reasoning,
    ReasoningCodec,
    effort_of,
    set_inner_keys,
)

_REASONING = "reasoning"


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    effort = effort_of(maybe_object(wire.get(_REASONING)).get("effort"))
    return (
        DecodedReasoning(Reasoning(effort), frozenset({"reasoning.effort"}))
        if effort
        else DecodedReasoning()
    )


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, _form: ReasoningForm | None) -> None:
    effort = None if reasoning is None else reasoning.effort or "medium"
    set_inner_keys(wire, _REASONING, {"effort": effort})


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)


_TEXT, _FORMAT = "text", "format"
_FORMAT_PATH = f"{_TEXT}.{_FORMAT}."
_TYPE = frozenset({f"{_FORMAT_PATH}type"})


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    if _TEXT not in wire:
        return UNSTATED_OUTPUT
    own = maybe_object(maybe_object(wire[_TEXT]).get(_FORMAT))
    match own.get("type"):
        case "text":
            return DecodedOutput(None, _TYPE)
        case "json_object":
            return DecodedOutput(OutputFormat(), _TYPE)
        case "json_schema":
            return decode_named_schema(own, _FORMAT_PATH)
        case _:
            return UNSTATED_OUTPUT


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    told: Wire | None = None
    if output is not None and output.schema is None:
        told = {"type": "json_object"}
    elif output is not None:
        told = {"type": "json_schema", **encode_named_schema(output)}
    set_inner_keys(wire, _TEXT, {_FORMAT: told})


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format, has_name=True)


_KEYS: Mapping[str, str] = {
    "model": "model",
    "max_output_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "stream": "stream",
}
"""Our name of each shared option, and the key that says it here."""

SHARED_KEYS = frozenset({*_KEYS.values(), "tools"})
"""The keys of a request that the shared options and the tools speak for."""

COMMON_KEYS = frozenset(
    {
        "include",
        "max_tool_calls",
        "metadata",
        "reasoning",
        "store",
        "text",
        "top_logprobs",
        "truncation",
        "user",
    }
)
"""The other keys of a request that hosts share; what lies at one host means nothing elsewhere."""

_CHOICES: Mapping[str, ToolMode] = {"auto": "auto", "none": "none", "required": "required"}
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "max_output_tokens": int,
    "temperature": (int, float),
    "top_p": (int, float),
    "parallel_tool_calls": bool,
    "stream": bool,
}


def decode_tools(wire: Any) -> tuple[ToolDefinition, ...]:
    """The functions that the client runs itself; all other tools stay with the options."""
    found = (_decode_tool(maybe_object(tool)) for tool in maybe_list(wire))
    return tuple(tool for tool in found if tool is not None)


def _decode_tool(wire: Wire) -> ToolDefinition | None:
    name, schema = wire.get("name"), wire.get("parameters")
    if wire.get("type") != "function" or not isinstance(name, str):
        return None
    if not isinstance(schema, dict | None):
        return None
    description = wire.get("description")
    return ToolDefinition(
        name=name,
        description=description if isinstance(description, str) else "",
        input_schema=cast("Wire", schema or {"type": "object", "properties": {}}),
        side_effects=SideEffects.EXECUTE,
    )


def encode_tools(tools: Sequence[ToolDefinition]) -> list[Wire]:
    """The definitions of the client's own functions."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            # Strict schemas are a dialect of their own, which ours need not be in.
            "strict": False,
        }
        for tool in tools
    ]


def decode_options(wire: Wire) -> AdapterOptions:
    """The shared options of a request, with their spelling."""
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT_FORMAT.decode(wire).output
    return AdapterOptions(**_shared(wire), reasoning=spoken, output=output, native={PROTOCOL: wire})


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """The options as keys of a request; a remembered spelling is kept while it says the same."""
    given = options.native.get(PROTOCOL, {})
    native = dict(given)
    remembered = _shared(native)
    for name, key in _KEYS.items():
        ours = getattr(options, name)
        if ours != remembered.get(name):
            _set(native, key, _render(ours))
    REASONING.apply(native, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(native, options.output, keep_native=options.origin is None)
    spelled = maybe_list(native.get("tools"))
    if decode_tools(spelled) != tuple(tools):
        foreign = [tool for tool in spelled if _decode_tool(maybe_object(tool)) is None]
        _set(native, "tools", [*foreign, *encode_tools(tools)] or None)
    if not native.get("tools") and "parallel_tool_calls" not in given:
        # Without tools the flag is an error (T114); a spelled request had its reasons.
        native.pop("parallel_tool_calls", None)
    return native


def fit_target(target: Target, options: AdapterOptions) -> Target:
    """The target as these options make it: what it remembers, and whether ids mean anything."""
    native = options.native.get(PROTOCOL)
    if not native:
        return target
    remembers = bool(native.get("previous_response_id") or native.get("conversation"))
    knows_ids = target.accepts_thinking_ids and native.get("store") is not False
    if (remembers, knows_ids) == (target.stores_history, target.accepts_thinking_ids):
        return target
    return replace(target, stores_history=remembers, accepts_thinking_ids=knows_ids)


def _set(native: Wire, key: str, value: Any) -> None:
    if value is None:
        native.pop(key, None)
    else:
        native[key] = value


def _shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that a request states."""
    if not wire:
        return {}
    found: dict[str, Any] = {
        name: value
        for name, kind in _TYPES.items()
        if isinstance(value := wire.get(name), kind) and not _is_flag(name, value)
    }
    choice = _decode_choice(wire.get("tool_choice"))
    if choice is not None:
        found["tool_choice"] = choice
    return found


def _is_flag(name: str, value: Any) -> bool:
    """Whether a truth value stands where a number is due."""
    return isinstance(value, bool) and _TYPES[name] is not bool


def _decode_choice(wire: Any) -> ToolChoice | None:
    if isinstance(wire, str):
        mode = _CHOICES.get(wire)
        return None if mode is None else ToolChoice(mode)
    choice = maybe_object(wire)
    name = choice.get("name")
    is_function = choice.get("type") == "function" and isinstance(name, str)
    return ToolChoice("tool", name) if is_function else None


def _render(value: Any) -> Any:
    match value:
        case ToolChoice(mode="tool"):
            return {"type": "function", "name": value.name}
        case ToolChoice():
            return value.mode
        case _:
            return value
