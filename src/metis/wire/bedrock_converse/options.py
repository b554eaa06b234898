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
_SPEC, _MARK = "toolSpec", "cachePoint"
_MAPPED_KEYS = frozenset({"name", "description", "inputSchema"})
"""The keys of a tool that our definition speaks for."""


def _listed(wire: Mapping[str, Any]) -> list[Any]:
    return maybe_list(maybe_object(wire.get(TOOL_CONFIG)).get("tools"))


def decode_tools(wire: Mapping[str, Any]) -> tuple[ToolDefinition, ...]:
    """The tools that the client runs itself; all others stay with the options."""
    found = (_decode_tool(tool) for tool in _listed(wire))
    return tuple(tool for tool in found if tool is not None)


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
    """Put tools into a request; what is spelled of them is kept as far as it still holds.

    Without tools there is nothing to choose from, and nothing of it is sent.
    """
    if tuple(tools) == decode_tools(wire):
        return
    spelled = _listed(wire)
    known = {tool.name: each for each in spelled if (tool := _decode_tool(each)) is not None}
    own = [_encode_tool(tool, known.get(tool.name)) for tool in tools]
    others = [each for each in spelled if _decode_tool(each) is None]
    config = {**maybe_object(wire.get(TOOL_CONFIG)), "tools": [*own, *others]}
    wire.pop(TOOL_CONFIG, None)
    if own or any(_MARK not in maybe_object(each) for each in others):
        wire[TOOL_CONFIG] = config


def _encode_tool(tool: ToolDefinition, spelled: Any) -> Wire:
    if spelled is not None and _decode_tool(spelled) == tool:
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
        if _decode_tool(tool) is None and _MARK not in tool
    ]


def unmapped_tool_paths(wire: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What tools of the client say beyond our definitions: the tool, and the path."""
    for index, tool in enumerate(map(maybe_object, _listed(wire))):
        if _decode_tool(tool) is None:
            continue
        spec = maybe_object(tool[_SPEC])
        for key, value in spec.items():
            if value and key not in _MAPPED_KEYS:
                yield spec["name"], f"{TOOL_CONFIG}.tools[{index}].{_SPEC}.{key}"


MODEL_FIELDS = "additionalModelRequestFields"
"""The object in which a request speaks to a model in words that are not the protocol's."""

_NOVA_REASONING = "reasoningConfig"
_WORDS: Mapping[ReasoningForm | None, str] = {
    "effort": "reasoning_effort",
    "reasoning": "reasoning_config",
}
"""The keys of those makers whose models are told a word and nothing else."""
_TOP_EFFORT = "outputConfig.effort"
_NOVA_EFFORT = "maxReasoningEffort"


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    more = maybe_object(wire.get(MODEL_FIELDS))
    top = effort_of(maybe_object(wire.get("outputConfig")).get("effort"))
    if not more and top is None:
        return UNSTATED_REASONING
    for word in _WORDS.values():
        effort = effort_of(more.get(word))
        if effort is not None:
            return DecodedReasoning(Reasoning(effort), frozenset({f"{MODEL_FIELDS}.{word}"}))
    if _NOVA_REASONING in more:
        return _decode_nova(maybe_object(more[_NOVA_REASONING]))
    return decode_claude_thinking({**more, _TOP_EFFORT: top}, f"{MODEL_FIELDS}.", _TOP_EFFORT)


def _decode_nova(config: Wire) -> DecodedReasoning:
    place = f"{MODEL_FIELDS}.{_NOVA_REASONING}."
    keys = frozenset({f"{place}type", place + _NOVA_EFFORT})
    match config.get("type"):
        case "enabled":
            return DecodedReasoning(Reasoning(effort_of(config.get(_NOVA_EFFORT))), keys)
        case "disabled":
            return DecodedReasoning(Reasoning("none"), keys)
        case _:
            return UNSTATED_REASONING


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None) -> None:
    """Say it in the form that the model reads; what was said before is taken out."""
    more = dict(maybe_object(wire.get(MODEL_FIELDS)))
    for word in _WORDS.values():
        more.pop(word, None)
    more.pop(_NOVA_REASONING, None)
    if "outputConfig" in wire:
        set_inner_keys(wire, "outputConfig", {"effort": None})
    is_claude = form != "level" and form not in _WORDS
    encode_claude_thinking(more, reasoning if is_claude else None, form)
    if reasoning is not None and form == "level":
        more[_NOVA_REASONING] = _nova(reasoning)
    elif reasoning is not None and not is_claude and reasoning.effort is not None:
        more[_WORDS[form]] = reasoning.effort
    wire.pop(MODEL_FIELDS, None)
    if more:
        wire[MODEL_FIELDS] = more


def _nova(reasoning: Reasoning) -> Wire:
    if reasoning.is_off:
        return {"type": "disabled"}
    if reasoning.effort is None:
        return {"type": "enabled"}
    return {"type": "enabled", _NOVA_EFFORT: reasoning.effort}


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)


_CONFIG, _FORMAT = "outputConfig", "textFormat"
_PLACE = f"{_CONFIG}.{_FORMAT}"
_OUTPUT_KEYS = frozenset(
    {f"{_PLACE}.type"}
    | {f"{_PLACE}.structure.jsonSchema.{key}" for key in ("schema", "name", "description")}
)
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    if _CONFIG not in wire:
        return UNSTATED_OUTPUT
    told = maybe_object(maybe_object(wire[_CONFIG]).get(_FORMAT))
    own = maybe_object(maybe_object(told.get("structure")).get("jsonSchema"))
    schema = _schema(own.get("schema"))
    if told.get("type") != "json_schema" or schema is None:
        return UNSTATED_OUTPUT
    name, description = maybe_text(own.get("name")), maybe_text(own.get("description"))
    return DecodedOutput(OutputFormat(schema, name, description), _OUTPUT_KEYS)


def _schema(text: Any) -> Wire | None:
    try:
        found = _read(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return cast("Wire", found) if isinstance(found, dict) else None


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    told: Wire | None = None
    if output is not None:
        own: Wire = {"schema": _write(output.schema or {}).decode()}
        if output.name:
            own["name"] = output.name
        if output.description:
            own["description"] = output.description
        told = {"type": "json_schema", "structure": {"jsonSchema": own}}
    if told is not None or _CONFIG in wire:
        set_inner_keys(wire, _CONFIG, {_FORMAT: told})


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
_TOP_K, _TOP_K_OF_NOVA = "top_k", "topK"
_NOVA_MODELS = "amazon.nova"
SHARED_KEYS = frozenset(
    {
        *(f"{_INFERENCE}.{key}" for key in _KEYS.values()),
        f"{MODEL_FIELDS}.{_TOP_K}",
        f"{MODEL_FIELDS}.{_INFERENCE}.{_TOP_K_OF_NOVA}",
        f"{TOOL_CONFIG}.tools",
        f"{TOOL_CONFIG}.toolChoice",
    }
)
"""The keys of a request that the shared options and the tools speak for."""


def decode_options(wire: Wire, model: str | None) -> AdapterOptions:
    """The shared options of a request, with their spelling; the model is not in the body."""
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT_FORMAT.decode(wire).output
    return AdapterOptions(
        model=model, **_shared(wire), reasoning=spoken, output=output, native={PROTOCOL: wire}
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """The options as keys of a request; a remembered spelling is kept while it says the same."""
    wire = dict(options.native.get(PROTOCOL, {}))
    remembered = _shared(wire) if wire else {}
    changed: Wire = {}
    for name, key in _KEYS.items():
        value = getattr(options, name)
        if value != remembered.get(name):
            changed[key] = list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType] - strings
    if changed:
        set_inner_keys(wire, _INFERENCE, changed)
    if options.top_k != remembered.get("top_k"):
        _set_top_k(wire, options)
    set_tools(wire, tools)
    if options.tool_choice != remembered.get("tool_choice") and TOOL_CONFIG in wire:
        set_inner_keys(wire, TOOL_CONFIG, {"toolChoice": _encode_choice(options.tool_choice)})
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    return wire


def _set_top_k(wire: Wire, options: AdapterOptions) -> None:
    """Say it as the models of the maker want it: the protocol itself has no word for it."""
    more = dict(maybe_object(wire.get(MODEL_FIELDS)))
    is_nova = _NOVA_MODELS in (options.model or "")
    set_inner_keys(more, _INFERENCE, {_TOP_K_OF_NOVA: options.top_k if is_nova else None})
    more.pop(_TOP_K, None)
    if options.top_k is not None and not is_nova:
        more[_TOP_K] = options.top_k
    wire.pop(MODEL_FIELDS, None)
    if more:
        wire[MODEL_FIELDS] = more


def _encode_choice(choice: ToolChoice | None) -> Wire | None:
    """The choice; there is no word for calling nothing."""
    if choice is None or choice.mode == "none":
        return None
    if choice.mode == "tool":
        return {"tool": {"name": choice.name}}
    return {"any": {}} if choice.mode == "required" else {"auto": {}}


def _shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that a request states."""
    config, more = maybe_object(wire.get(_INFERENCE)), maybe_object(wire.get(MODEL_FIELDS))
    found: dict[str, Any] = {
        "max_output_tokens": maybe_count(config.get("maxTokens")),
        "temperature": _number(config.get("temperature")),
        "top_p": _number(config.get("topP")),
        "tool_choice": _choice(maybe_object(wire.get(TOOL_CONFIG)).get("toolChoice")),
    }
    stops = config.get("stopSequences")
    if isinstance(stops, list) and all(isinstance(stop, str) for stop in maybe_list(stops)):
        found["stop_sequences"] = tuple(cast("list[str]", stops))
    of_nova = maybe_object(more.get(_INFERENCE)).get(_TOP_K_OF_NOVA)
    found["top_k"] = maybe_count(more.get(_TOP_K, of_nova))
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _choice(wire: Any) -> ToolChoice | None:
    match wire:
        case {"auto": dict()}:
            return ToolChoice("auto")
        case {"any": dict()}:
            return ToolChoice("required")
        case {"tool": {"name": str(name)}}:
            return ToolChoice("tool", maybe_text(name))
        case _:
            return None
