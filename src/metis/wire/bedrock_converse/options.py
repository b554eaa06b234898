"""Options and tools of Bedrock Converse: inference settings, tools, reasoning and output format."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import ReasoningForm, SchemaDialect
from metis.wire.bedrock_converse.blocks import PROTOCOL
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.output_format import UNSTATED_OUTPUT, DecodedOutput, OutputFormat, OutputFormatCodec
from metis.wire.reasoning import (
    UNSTATED_REASONING,
    DecodedReasoning,
    Reasoning,
    ReasoningCodec,
    decode_claude_thinking,
    effort_of,
    encode_claude_thinking,
    set_inner_keys,
)

TOOL_CONFIG = "toolConfig"
_SPEC, _CACHE_POINT = "toolSpec", "cachePoint"
_MAPPED_KEYS = frozenset({"name", "description", "inputSchema"})
"""The keys of a tool that `ToolDefinition` has a field for."""


def _tools_of(wire: Mapping[str, Any]) -> list[Any]:
    return maybe_list(maybe_object(wire.get(TOOL_CONFIG)).get("tools"))


def decode_tools(wire: Mapping[str, Any]) -> tuple[ToolDefinition, ...]:
    """Decode the tools that the client runs; server tools remain in the native options only."""
    tools = map(_decode_tool, _tools_of(wire))
    return tuple(tool for tool in tools if tool is not None)


def _decode_tool(wire: Any) -> ToolDefinition | None:
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


def set_tools(wire: Wire, tools: Sequence[ToolDefinition]) -> None:
    """Set the tools of a request; native tools with the same meaning remain unchanged.

    Without tools the key is removed, because Bedrock rejects an empty list.
    """
    if tuple(tools) == decode_tools(wire):
        return
    native = [(entry, _decode_tool(entry)) for entry in _tools_of(wire)]
    by_name = {tool.name: entry for entry, tool in native if tool is not None}
    encoded = [_encode_tool(tool, by_name.get(tool.name)) for tool in tools]
    others = [entry for entry, tool in native if tool is None]
    config = {**maybe_object(wire.get(TOOL_CONFIG)), "tools": [*encoded, *others]}
    wire.pop(TOOL_CONFIG, None)
    if encoded or any(_CACHE_POINT not in maybe_object(entry) for entry in others):
        wire[TOOL_CONFIG] = config


def _encode_tool(tool: ToolDefinition, native: Any) -> Wire:
    if native is not None and _decode_tool(native) == tool:
        return native
    spec: Wire = {"inputSchema": {"json": tool.input_schema}, "name": tool.name}
    if tool.description:  # Bedrock rejects an empty description, but accepts none (T112)
        spec["description"] = tool.description
    return {_SPEC: spec}


def server_tools(wire: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that the provider runs."""
    return [
        str(maybe_object(tool.get("systemTool")).get("name") or next(iter(tool), ""))
        for tool in map(maybe_object, _tools_of(wire))
        if _decode_tool(tool) is None and _CACHE_POINT not in tool
    ]


def unmapped_tool_paths(wire: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield tool name and path for each key of a client tool without a `ToolDefinition` field."""
    for index, tool in enumerate(map(maybe_object, _tools_of(wire))):
        if _decode_tool(tool) is None:
            continue
        spec = maybe_object(tool[_SPEC])
        for key, value in spec.items():
            if value and key not in _MAPPED_KEYS:
                yield spec["name"], f"{TOOL_CONFIG}.tools[{index}].{_SPEC}.{key}"


MODEL_FIELDS = "additionalModelRequestFields"
"""The object whose keys Bedrock passes to the model unchanged; they differ by model vendor."""

_NOVA_REASONING = "reasoningConfig"
_EFFORT_KEYS: Mapping[ReasoningForm | None, str] = {
    "effort": "reasoning_effort",
    "reasoning": "reasoning_config",
}
"""The keys of model vendors whose models accept only an effort."""
_OUTER_EFFORT = "outputConfig.effort"
_NOVA_EFFORT = "maxReasoningEffort"


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    fields = maybe_object(wire.get(MODEL_FIELDS))
    outer = effort_of(maybe_object(wire.get("outputConfig")).get("effort"))
    if not fields and outer is None:
        return UNSTATED_REASONING
    for key in _EFFORT_KEYS.values():
        effort = effort_of(fields.get(key))
        if effort is not None:
            return DecodedReasoning(Reasoning(effort), frozenset({f"{MODEL_FIELDS}.{key}"}))
    if _NOVA_REASONING in fields:
        return _decode_nova(maybe_object(fields[_NOVA_REASONING]))
    claude_fields = {**fields, _OUTER_EFFORT: outer}
    return decode_claude_thinking(claude_fields, f"{MODEL_FIELDS}.", _OUTER_EFFORT)


def _decode_nova(config: Wire) -> DecodedReasoning:
    prefix = f"{MODEL_FIELDS}.{_NOVA_REASONING}."
    keys = frozenset({f"{prefix}type", prefix + _NOVA_EFFORT})
    match config.get("type"):
        case "enabled":
            return DecodedReasoning(Reasoning(effort_of(config.get(_NOVA_EFFORT))), keys)
        case "disabled":
            return DecodedReasoning(Reasoning("none"), keys)
        case _:
            return UNSTATED_REASONING


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None) -> None:
    """Set reasoning in the form that the model accepts, and remove the keys of other forms."""
    fields = dict(maybe_object(wire.get(MODEL_FIELDS)))
    for key in (*_EFFORT_KEYS.values(), _NOVA_REASONING):
        fields.pop(key, None)
    # The effort of Claude models may also be in `outputConfig` of the request itself.
    if "outputConfig" in wire:
        set_inner_keys(wire, "outputConfig", {"effort": None})
    is_claude = form != "level" and form not in _EFFORT_KEYS
    encode_claude_thinking(fields, reasoning if is_claude else None, form)
    if reasoning is not None and form == "level":
        fields[_NOVA_REASONING] = _encode_nova(reasoning)
    elif reasoning is not None and not is_claude and reasoning.effort is not None:
        fields[_EFFORT_KEYS[form]] = reasoning.effort
    _set_model_fields(wire, fields)


def _set_model_fields(wire: Wire, fields: Wire) -> None:
    wire.pop(MODEL_FIELDS, None)
    if fields:
        wire[MODEL_FIELDS] = fields


def _encode_nova(reasoning: Reasoning) -> Wire:
    if reasoning.is_off:
        return {"type": "disabled"}
    if reasoning.effort is None:
        return {"type": "enabled"}
    return {"type": "enabled", _NOVA_EFFORT: reasoning.effort}


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)


_CONFIG, _FORMAT = "outputConfig", "textFormat"
_FORMAT_PATH = f"{_CONFIG}.{_FORMAT}"
_OUTPUT_KEYS = frozenset(
    {f"{_FORMAT_PATH}.type"}
    | {f"{_FORMAT_PATH}.structure.jsonSchema.{key}" for key in ("schema", "name", "description")}
)
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    if _CONFIG not in wire:
        return UNSTATED_OUTPUT
    text_format = maybe_object(maybe_object(wire[_CONFIG]).get(_FORMAT))
    inner = maybe_object(maybe_object(text_format.get("structure")).get("jsonSchema"))
    schema = _parse_schema(inner.get("schema"))
    if text_format.get("type") != "json_schema" or schema is None:
        return UNSTATED_OUTPUT
    name, description = maybe_text(inner.get("name")), maybe_text(inner.get("description"))
    return DecodedOutput(OutputFormat(schema, name, description), _OUTPUT_KEYS)


def _parse_schema(text: Any) -> Wire | None:
    """Parse a schema, which is a JSON string in this protocol; None if it is not valid."""
    try:
        schema = _read(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return cast("Wire", schema) if isinstance(schema, dict) else None


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    value: Wire | None = None
    if output is not None:
        inner: Wire = {"schema": _write(output.schema or {}).decode()}
        if output.name:
            inner["name"] = output.name
        if output.description:
            inner["description"] = output.description
        value = {"type": "json_schema", "structure": {"jsonSchema": inner}}
    if value is not None or _CONFIG in wire:
        set_inner_keys(wire, _CONFIG, {_FORMAT: value})


OUTPUT_FORMAT = OutputFormatCodec(
    _decode_output_format, _encode_output_format, has_name=True, is_strict=True
)


_INFERENCE = "inferenceConfig"
_KEYS = {
    "max_output_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
}
_TOP_K, _NOVA_TOP_K = "top_k", "topK"
_NOVA_MODELS = "amazon.nova"
SHARED_KEYS = frozenset(
    {
        *(f"{_INFERENCE}.{key}" for key in _KEYS.values()),
        f"{MODEL_FIELDS}.{_TOP_K}",
        f"{MODEL_FIELDS}.{_INFERENCE}.{_NOVA_TOP_K}",
        f"{TOOL_CONFIG}.tools",
        f"{TOOL_CONFIG}.toolChoice",
    }
)
"""The keys of a request that options and tools determine."""


def decode_options(wire: Wire, model: str | None) -> AdapterOptions:
    """Decode the options of a request; `wire` itself is stored as their native form.

    `model` is an argument because the model is in the path, not in the body.
    """
    return AdapterOptions(
        model=model,
        **_decode_shared(wire),
        reasoning=REASONING.decode(wire).reasoning,
        output=OUTPUT_FORMAT.decode(wire).output,
        native={PROTOCOL: wire},
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """Encode options as keys of a request; native keys with the same meaning remain unchanged."""
    wire = dict(options.native.get(PROTOCOL, {}))
    native = _decode_shared(wire) if wire else {}
    changed: Wire = {}
    for name, key in _KEYS.items():
        value = getattr(options, name)
        if value != native.get(name):
            changed[key] = list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType] - strings
    if changed:
        set_inner_keys(wire, _INFERENCE, changed)
    if options.top_k != native.get("top_k"):
        _set_top_k(wire, options)
    set_tools(wire, tools)
    # Bedrock rejects a tool choice without tools.
    if options.tool_choice != native.get("tool_choice") and TOOL_CONFIG in wire:
        set_inner_keys(wire, TOOL_CONFIG, {"toolChoice": _encode_choice(options.tool_choice)})
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    return wire


def _set_top_k(wire: Wire, options: AdapterOptions) -> None:
    """Set top-k in the fields of the model, because the protocol itself has no key for it."""
    fields = dict(maybe_object(wire.get(MODEL_FIELDS)))
    # Amazon Nova expects top-k in an inner object.
    is_nova = _NOVA_MODELS in (options.model or "")
    set_inner_keys(fields, _INFERENCE, {_NOVA_TOP_K: options.top_k if is_nova else None})
    fields.pop(_TOP_K, None)
    if options.top_k is not None and not is_nova:
        fields[_TOP_K] = options.top_k
    _set_model_fields(wire, fields)


def _encode_choice(choice: ToolChoice | None) -> Wire | None:
    """Encode a tool choice; None for the mode `none`, which the protocol does not have."""
    if choice is None or choice.mode == "none":
        return None
    if choice.mode == "tool":
        return {"tool": {"name": choice.name}}
    return {"any": {}} if choice.mode == "required" else {"auto": {}}


def _decode_shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the shared options of a request; options that are not set are left out."""
    config, fields = maybe_object(wire.get(_INFERENCE)), maybe_object(wire.get(MODEL_FIELDS))
    nova_top_k = maybe_object(fields.get(_INFERENCE)).get(_NOVA_TOP_K)
    options: dict[str, Any] = {
        "max_output_tokens": maybe_count(config.get("maxTokens")),
        "temperature": _number(config.get("temperature")),
        "top_p": _number(config.get("topP")),
        "top_k": maybe_count(fields.get(_TOP_K, nova_top_k)),
        "tool_choice": _decode_choice(maybe_object(wire.get(TOOL_CONFIG)).get("toolChoice")),
    }
    stops = config.get("stopSequences")
    if isinstance(stops, list) and all(isinstance(stop, str) for stop in maybe_list(stops)):
        options["stop_sequences"] = tuple(cast("list[str]", stops))
    return {name: value for name, value in options.items() if value is not None}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _decode_choice(wire: Any) -> ToolChoice | None:
    match wire:
        case {"auto": dict()}:
            return ToolChoice("auto")
        case {"any": dict()}:
            return ToolChoice("required")
        case {"tool": {"name": str(name)}}:
            return ToolChoice("tool", maybe_text(name))
        case _:
            return None
