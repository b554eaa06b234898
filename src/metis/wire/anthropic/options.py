"""Options and tools of Anthropic Messages: sampling, tool choice, reasoning and output format."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import SchemaDialect
from metis.wire.anthropic.blocks import PROTOCOL
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.output_format import UNSTATED_OUTPUT, DecodedOutput, OutputFormat, OutputFormatCodec
from metis.wire.reasoning import (
    CLAUDE_OUTPUT,
    CLAUDE_THINKING,
    UNSTATED_REASONING,
    DecodedReasoning,
    ReasoningCodec,
    decode_claude_thinking,
    encode_claude_thinking,
    set_inner_keys,
)


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    is_stated = CLAUDE_THINKING in wire or CLAUDE_OUTPUT in wire
    return decode_claude_thinking(wire) if is_stated else UNSTATED_REASONING


REASONING = ReasoningCodec(_decode_reasoning, encode_claude_thinking)

_CONFIG, _FORMAT, _BETA_FORMAT = "output_config", "format", "output_format"


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    if not (_CONFIG in wire or _BETA_FORMAT in wire):
        return UNSTATED_OUTPUT
    prefix, value = f"{_CONFIG}.{_FORMAT}.", maybe_object(wire.get(_CONFIG)).get(_FORMAT)
    if value is None:
        # The key of the option while structured output was a beta feature.
        prefix, value = f"{_BETA_FORMAT}.", wire.get(_BETA_FORMAT)
    wire_format = maybe_object(value)
    if wire_format.get("type") != "json_schema" or not isinstance(wire_format.get("schema"), dict):
        return UNSTATED_OUTPUT
    keys = frozenset({f"{prefix}type", f"{prefix}schema"})
    return DecodedOutput(OutputFormat(cast("Wire", wire_format["schema"])), keys)


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    wire.pop(_BETA_FORMAT, None)
    value: Wire | None = None
    if output is not None:
        value = {"type": "json_schema", "schema": output.schema or {}}
    if value is not None or _CONFIG in wire:
        set_inner_keys(wire, _CONFIG, {_FORMAT: value})


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format)

_DEFAULT_MAX_TOKENS = 4096
"""The limit for callers that set none, because the API requires one; adapters set the maximum of
the model instead."""

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
"""The keys of a request that options, tools or the host itself determine."""

_MODES: Mapping[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_MODE_NAMES = {mode: name for name, mode in _MODES.items()}


def decode_tools(wire: object) -> tuple[ToolDefinition, ...]:
    """Decode the tools that the client runs; server tools remain in the native options only."""
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
    """Encode the definitions of tools that the client runs."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in tools
    ]


def decode_options(wire: Wire) -> AdapterOptions:
    """Decode the options of a request; `wire` itself is stored as their native form."""
    return AdapterOptions(
        **_decode_shared(wire),
        reasoning=REASONING.decode(wire).reasoning,
        output=OUTPUT_FORMAT.decode(wire).output,
        native={PROTOCOL: wire},
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """Encode options as keys of a request; native keys with the same meaning remain unchanged."""
    wire = dict(options.native.get(PROTOCOL, {}))
    native = _decode_shared(wire) if wire else {}
    changed = {key for name, key in _KEYS.items() if getattr(options, name) != native.get(name)}
    for key in changed:
        wire.pop(key, None)
    encoded = _encode_shared(options)
    wire |= {key: value for key, value in encoded.items() if value is not None and key in changed}
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    if tuple(tools) != decode_tools(wire.get("tools")):
        # Server tools have no schema and no ToolDefinition; they are sent after the client's tools.
        server_tools = [tool for tool in maybe_list(wire.get("tools")) if not decode_tools([tool])]
        wire["tools"] = [*encode_tools(tools), *server_tools]
    # A client that omits the limit gets the error of the API instead of a limit it did not choose.
    if PROTOCOL not in options.native:
        wire.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
    return wire


def _encode_shared(options: AdapterOptions) -> Wire:
    """Encode every shared option under its key; the value is None if it is not set."""
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
    wire: Wire = {"type": _MODE_NAMES[choice.mode]}
    if choice.name is not None:
        wire["name"] = choice.name
    # Anthropic rejects this key if calls are forbidden.
    if options.parallel_tool_calls is not None and choice.mode != "none":
        wire["disable_parallel_tool_use"] = not options.parallel_tool_calls
    return wire


def _decode_shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the shared options of a request; options that are not set are left out."""
    options: dict[str, Any] = {
        name: value
        for name, kind in _TYPES.items()
        if isinstance(value := wire.get(_KEYS[name]), kind)
        and (kind is bool or not isinstance(value, bool))
    }
    stops = wire.get("stop_sequences")
    if isinstance(stops, list) and all(isinstance(stop, str) for stop in maybe_list(stops)):
        options["stop_sequences"] = tuple(cast("list[str]", stops))
    choice = maybe_object(wire.get("tool_choice"))
    mode = _MODES.get(str(choice.get("type")))
    if mode is not None:
        options["tool_choice"] = ToolChoice(mode, maybe_text(choice.get("name")))
    if "disable_parallel_tool_use" in choice:
        options["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return options


_TYPES: Mapping[str, Any] = {
    "model": str,
    "max_output_tokens": int,
    "temperature": int | float,
    "top_p": int | float,
    "top_k": int,
    "stream": bool,
}
"""The type of each scalar option; a value of another type remains in the native options only."""
