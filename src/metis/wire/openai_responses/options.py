"""Options and tools of an OpenAI Responses request, with reasoning and the output format."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import ReasoningForm, SchemaDialect
from metis.projection.target import Target
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.declared_tools import DeclaredTool, declare
from metis.wire.json_access import Wire, maybe_list, maybe_object, set_or_remove
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
    UNSTATED_REASONING,
    DecodedReasoning,
    Reasoning,
    ReasoningCodec,
    effort_of,
    set_inner_keys,
)

_OPTION_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "max_output_tokens": int,
    "temperature": (int, float),
    "top_p": (int, float),
    "parallel_tool_calls": bool,
    "stream": bool,
}
"""The shared options whose key in a request has the same name, and the types of their values."""
SHARED_KEYS = frozenset({*_OPTION_TYPES, "tool_choice", "tools"})
"""The keys of a request that shared options and tools determine."""
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
"""Other keys that all hosts accept; keys that refer to data stored by one host are excluded."""

_TOOL_MODES: Mapping[str, ToolMode] = {"auto": "auto", "none": "none", "required": "required"}
_REASONING = "reasoning"
_TEXT, _FORMAT = "text", "format"
_FORMAT_PATH = f"{_TEXT}.{_FORMAT}."
_FORMAT_TYPE = frozenset({f"{_FORMAT_PATH}type"})


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    effort = effort_of(maybe_object(wire.get(_REASONING)).get("effort"))
    if effort is None:
        return UNSTATED_REASONING
    return DecodedReasoning(Reasoning(effort), frozenset({"reasoning.effort"}))


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, _form: ReasoningForm | None) -> None:
    # The Responses API has no token budget; medium is its default effort.
    effort = None if reasoning is None else reasoning.effort or "medium"
    set_inner_keys(wire, _REASONING, {"effort": effort})


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)
"""Reasoning is an effort in `reasoning.effort`."""


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    if _TEXT not in wire:
        return UNSTATED_OUTPUT
    output_format = maybe_object(maybe_object(wire[_TEXT]).get(_FORMAT))
    match output_format.get("type"):
        case "text":
            return DecodedOutput(None, _FORMAT_TYPE)
        case "json_object":
            return DecodedOutput(OutputFormat(), _FORMAT_TYPE)
        case "json_schema":
            return decode_named_schema(output_format, _FORMAT_PATH)
        case _:
            return UNSTATED_OUTPUT


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    output_format: Wire | None = None
    if output is not None and output.schema is None:
        output_format = {"type": "json_object"}
    elif output is not None:
        output_format = {"type": "json_schema", **encode_named_schema(output)}
    set_inner_keys(wire, _TEXT, {_FORMAT: output_format})


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format, has_name=True)
"""The output format in `text.format`."""


def decode_tools(wire: Any) -> tuple[ToolDefinition, ...]:
    """Decode the function tools of a request; all other tools remain in the native options only."""
    tools = (_decode_tool(maybe_object(tool)) for tool in maybe_list(wire))
    return tuple(tool for tool in tools if tool is not None)


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


def declared_tools(
    native: Mapping[str, Any], loaded: Sequence[Any] = ()
) -> tuple[DeclaredTool, ...]:
    """Return the tools of a request that are not plain functions; see `declare`."""
    return declare(maybe_list(native.get("tools")), loaded, dict)


def _encode_tools(tools: Sequence[ToolDefinition]) -> list[Wire]:
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            # The default is true, but OpenAI rejects a strict schema with an open object anywhere.
            "strict": False,
        }
        for tool in tools
    ]


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
    native = _decode_shared(wire)
    for name in (*_OPTION_TYPES, "tool_choice"):
        value = getattr(options, name)
        if value != native.get(name):
            is_choice = isinstance(value, ToolChoice)
            set_or_remove(wire, name, _encode_tool_choice(value) if is_choice else value)
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    native_tools = maybe_list(wire.get("tools"))
    if decode_tools(native_tools) != tuple(tools):
        others = [tool for tool in native_tools if _decode_tool(maybe_object(tool)) is None]
        set_or_remove(wire, "tools", [*others, *_encode_tools(tools)] or None)
    if not wire.get("tools") and "parallel_tool_calls" not in native_keys:
        # OpenAI rejects the flag without tools with 400 (T114); a client's flag is passed on.
        wire.pop("parallel_tool_calls", None)
    return wire


def fit_target(target: Target, options: AdapterOptions) -> Target:
    """Return the target of a projection, adapted to `store` and the stored history of a request."""
    native = options.native.get(PROTOCOL)
    if not native:
        return target
    # With `store: false` items cannot be referenced by id in later requests (T07).
    stores_history = bool(native.get("previous_response_id") or native.get("conversation"))
    accepts_ids = target.accepts_thinking_ids and native.get("store") is not False
    if (stores_history, accepts_ids) == (target.stores_history, target.accepts_thinking_ids):
        return target
    return replace(target, stores_history=stores_history, accepts_thinking_ids=accepts_ids)


def _decode_shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the shared options of a request; options that are not set are left out."""
    if not wire:
        return {}
    options: dict[str, Any] = {
        name: value
        for name, kind in _OPTION_TYPES.items()
        # Booleans are instances of int in Python, but not numbers in JSON.
        if isinstance(value := wire.get(name), kind)
        and (kind is bool or not isinstance(value, bool))
    }
    choice = _decode_tool_choice(wire.get("tool_choice"))
    if choice is not None:
        options["tool_choice"] = choice
    return options


def _decode_tool_choice(wire: Any) -> ToolChoice | None:
    if isinstance(wire, str):
        mode = _TOOL_MODES.get(wire)
        return None if mode is None else ToolChoice(mode)
    choice = maybe_object(wire)
    name = choice.get("name")
    is_named = choice.get("type") in ("function", "custom") and isinstance(name, str)
    return ToolChoice("tool", name) if is_named else None


def _encode_tool_choice(choice: ToolChoice) -> Any:
    if choice.mode == "tool":
        return {"type": "function", "name": choice.name}
    return choice.mode
