"""Options and tools of Gemini: generation settings, tools, reasoning and output format."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import ReasoningForm, SchemaDialect
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.gemini.key_names import PROTOCOL, camel, field, present_key, set_inner_fields, snake
from metis.wire.gemini.schema import decode_schema, encode_schema
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.output_format import UNSTATED_OUTPUT, DecodedOutput, OutputFormat, OutputFormatCodec
from metis.wire.reasoning import DecodedReasoning, Reasoning, ReasoningCodec, budget_of, effort_of

_DECLARED = "functionDeclarations"
_MAPPED_KEYS = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
"""The keys of a declaration that our definition speaks for."""


def decode_tools(wire: object) -> tuple[ToolDefinition, ...]:
    """The tools that the client runs itself; server-side tools stay with the options."""
    return tuple(_decode_tool(declared) for _, declared in _declarations(wire))


def _decode_tool(declared: Wire) -> ToolDefinition:
    return ToolDefinition(
        name=declared["name"],
        description=maybe_text(declared.get("description")) or "",
        input_schema=_input_schema(declared),
        side_effects=SideEffects.EXECUTE,
    )


def _declarations(wire: object) -> Iterator[tuple[str, Wire]]:
    """The functions that have a name, each with its path."""
    for number, tool in enumerate(_tools(wire)):
        own = maybe_object(tool)
        key = present_key(own, _DECLARED)
        for index, declared in enumerate(map(maybe_object, maybe_list(own.get(key)))):
            if isinstance(declared.get("name"), str):
                yield f"tools[{number}].{key}[{index}]", declared


def _tools(wire: object) -> list[Any]:
    """The list of tools; the servers also take one tool for a list of one."""
    return [wire] if isinstance(wire, dict) else maybe_list(wire)


def _input_schema(declared: Wire) -> Wire:
    """The schema of a tool: JSON Schema if it is given, else read from the dialect."""
    given = field(declared, "parametersJsonSchema")
    if isinstance(given, dict):
        return cast("Wire", given)
    return maybe_object(decode_schema(declared.get("parameters"))) or {
        "type": "object",
        "properties": {},
    }


def encode_tools(tools: Sequence[ToolDefinition], spelled: object = None) -> list[Any]:
    """The tools of a request; what was spelled of them before is kept as far as it still holds."""
    known = {declared["name"]: declared for _, declared in _declarations(spelled)}
    declared = [_encode_tool(tool, known.get(tool.name, {})) for tool in tools]
    server = [rest for tool in _tools(spelled) if (rest := _undeclared(tool))]
    return [{_DECLARED: declared}, *server] if declared else server


def _encode_tool(tool: ToolDefinition, spelled: Wire) -> Wire:
    """One definition, in JSON Schema, which loses nothing (T102)."""
    if spelled and _decode_tool(spelled) == tool:
        return spelled
    wire: Wire = {key: value for key, value in spelled.items() if camel(key) not in _MAPPED_KEYS}
    wire["name"] = tool.name
    if tool.description:
        wire["description"] = tool.description
    # An object without properties is refused; such a tool has no parameters (T105).
    if tool.input_schema.get("properties") or "type" not in tool.input_schema:
        wire["parametersJsonSchema"] = tool.input_schema
    return wire


def _undeclared(tool: Any) -> Any:
    """A tool without the functions of the client; empty if it is nothing else."""
    if not isinstance(tool, dict):
        return tool
    return {k: v for k, v in cast("Wire", tool).items() if camel(k) != _DECLARED}


def server_tools(wire: Mapping[str, Any]) -> list[str]:
    """The names of the tools that the provider runs itself."""
    return [
        key
        for tool in _tools(field(wire, "tools"))
        for key in maybe_object(tool)
        if key not in (_DECLARED, snake(_DECLARED))
    ]


def unmapped_tool_paths(wire: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the declarations of functions say beyond our definitions: the tool, and the path."""
    for path, declared in _declarations(field(wire, "tools")):
        for key, value in declared.items():
            if value and camel(key) not in _MAPPED_KEYS:
                yield declared["name"], f"{path}.{key}"


_CONFIG, _THINKING = "generationConfig", "thinkingConfig"
_BUDGET, _LEVEL = "thinkingBudget", "thinkingLevel"
_DYNAMIC = -1
"""The budget that leaves it to the model."""


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    config = maybe_object(field(wire, _CONFIG))
    thinking = maybe_object(field(config, _THINKING))
    place = f"{present_key(wire, _CONFIG)}.{present_key(config, _THINKING)}."
    effort = effort_of((maybe_text(field(thinking, _LEVEL)) or "").lower())
    budget = field(thinking, _BUDGET)
    keys: set[str] = set()
    if effort is not None:
        keys.add(place + present_key(thinking, _LEVEL))
    if type(budget) is int and budget >= _DYNAMIC:
        keys.add(place + present_key(thinking, _BUDGET))
        if budget == 0:
            return DecodedReasoning(Reasoning("none"), frozenset(keys))
        tokens = None if budget == _DYNAMIC else budget_of(budget)
        return DecodedReasoning(Reasoning(effort, tokens), frozenset(keys))
    return DecodedReasoning(Reasoning(effort) if effort else None, frozenset(keys))


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None) -> None:
    told: Wire = {_BUDGET: None, _LEVEL: None}
    if reasoning is not None and reasoning.is_off and form != "level":
        told[_BUDGET] = 0
    elif reasoning is not None and reasoning.budget_tokens is not None:
        told[_BUDGET] = reasoning.budget_tokens
    elif reasoning is not None and reasoning.effort is not None:
        told[_LEVEL] = reasoning.effort.upper()
    elif reasoning is not None:
        told[_BUDGET] = _DYNAMIC
    name = present_key(wire, _CONFIG)
    config = dict(maybe_object(wire.get(name)))
    set_inner_fields(config, _THINKING, told)
    wire.pop(name, None)
    if config:
        wire[name] = config


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)


_OUTPUT_CONFIG, _MEDIA, _FORMATS = "generationConfig", "responseMimeType", "responseFormat"
_SCHEMA, _DIALECT = "responseJsonSchema", "responseSchema"
_JSON, _TEXT = "application/json", "text/plain"


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    config = maybe_object(field(wire, _OUTPUT_CONFIG))
    media = field(config, _MEDIA)
    place = f"{present_key(wire, _OUTPUT_CONFIG)}."
    if media is None:
        return _decode_listed(config, place)
    keys = {place + present_key(config, _MEDIA)}
    if media == _TEXT:
        return DecodedOutput(None, frozenset(keys))
    if media != _JSON:
        return UNSTATED_OUTPUT
    for name, read in ((_SCHEMA, _same), (_DIALECT, decode_schema)):
        schema = field(config, name)
        if isinstance(schema, dict):
            keys.add(place + present_key(config, name))
            return DecodedOutput(OutputFormat(read(cast("Wire", schema))), frozenset(keys))
    return DecodedOutput(OutputFormat(), frozenset(keys))


def _decode_listed(config: Wire, place: str) -> DecodedOutput:
    """A list with one format that is text; sound and pictures are something else."""
    listed = maybe_list(field(config, _FORMATS))
    own = maybe_object(listed[0]) if len(listed) == 1 else {}
    text = maybe_object(own.get("text"))
    schema, media = text.get("schema"), str(field(text, "mimeType")).lower()
    if len(own) != 1 or media not in (_JSON, "application_json"):
        return UNSTATED_OUTPUT
    found = OutputFormat(cast("Wire", schema) if isinstance(schema, dict) else None)
    return DecodedOutput(found, frozenset({place + present_key(config, _FORMATS)}))


def _same(schema: Wire) -> Wire:
    return schema


def _encode_output_format(wire: Wire, output: OutputFormat | None, dialect: SchemaDialect) -> None:
    told: Wire = dict.fromkeys((_MEDIA, _SCHEMA, _DIALECT, _FORMATS))
    if output is not None:
        told[_MEDIA] = _JSON
        if output.schema is not None and dialect == "openapi":
            told[_DIALECT] = encode_schema(output.schema)
        elif output.schema is not None:
            told[_SCHEMA] = output.schema
    set_inner_fields(wire, _OUTPUT_CONFIG, told)


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format)


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
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT_FORMAT.decode(wire).output
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
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    own = field(wire, "tools")
    if tuple(tools) != decode_tools(own):
        wire[present_key(wire, "tools")] = encode_tools(tools, own)
    return wire


def _set_inside(wire: Wire, name: str, changes: Mapping[str, Any]) -> None:
    """Set fields of an object in a request, or take them away; an empty one is not sent."""
    key = present_key(wire, name)
    inner = dict(maybe_object(wire.get(key)))
    for each, value in changes.items():
        own = present_key(inner, each)
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
