"""Options and tools of Gemini: generation settings, tools, schemas, reasoning and output format.

Schemas use an OpenAPI dialect: types in upper case, `nullable` instead of a list of types, and
strings for limits and enum values even if they are numbers.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from metis.canonical.schema.walk import is_schema, map_subschemas
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import ReasoningForm, SchemaDialect
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.gemini.key_names import PROTOCOL, camel, field, present_key, set_inner_fields, snake
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.output_format import UNSTATED_OUTPUT, DecodedOutput, OutputFormat, OutputFormatCodec
from metis.wire.reasoning import DecodedReasoning, Reasoning, ReasoningCodec, budget_of, effort_of

_TYPES = ("", "string", "number", "integer", "boolean", "array", "object", "null")
"""The JSON Schema types by their number in Gemini's enum; 0 is unspecified."""
_LIMITS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_DIALECT_ONLY = frozenset({"nullable", "propertyOrdering", "example"})
_WITH_SCHEMAS = frozenset({"additionalProperties", "anyOf", "items", "prefixItems", "properties"})
_PARSERS: Mapping[str, Callable[[str], float]] = {"integer": int, "number": float}


def decode_schema(schema: Any) -> Any:
    """Decode a schema of the dialect into JSON Schema; plain JSON Schema is not changed."""
    if not is_schema(schema):
        return schema
    wire = {camel(key): value for key, value in schema.items()}
    decoded: Wire = {
        key: _decode_keyword(key, value) for key, value in wire.items() if key not in _DIALECT_ONLY
    }
    kind = decoded.get("type")
    if kind == "":
        del decoded["type"]
    parse = _PARSERS.get(str(kind))
    if parse is not None and isinstance(decoded.get("enum"), list):
        decoded["enum"] = [_number(value, parse) for value in decoded["enum"]]
    # Gemini requires the format `enum` for string enums, which JSON Schema does not have.
    if decoded.get("format") == "enum":
        del decoded["format"]
    return _with_null(decoded) if wire.get("nullable") is True else decoded


def encode_schema(schema: Mapping[str, Any]) -> Wire:
    """Encode a schema in the dialect, after `fit_tool_schema` has replaced other keywords."""
    return {key: _encode_keyword(key, value) for key, value in schema.items()}


def _decode_keyword(key: str, value: Any) -> Any:
    if key in _WITH_SCHEMAS:
        return map_subschemas(key, value, decode_schema)
    if key == "type":
        return _decode_type(value)
    return _number(value, int) if key in _LIMITS else value


def _decode_type(value: Any) -> Any:
    if type(value) is int and 0 <= value < len(_TYPES):
        return _TYPES[value]
    if isinstance(value, str):
        return "" if value == "TYPE_UNSPECIFIED" else value.lower()
    return value


def _number(value: Any, parse: Callable[[str], float]) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return parse(value)
    return value


def _with_null(schema: Wire) -> Wire:
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"]
    elif "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def _encode_keyword(key: str, value: Any) -> Any:
    if key in _WITH_SCHEMAS:
        return map_subschemas(key, value, _encode_part)
    return value.upper() if key == "type" and isinstance(value, str) else value


def _encode_part(part: Any) -> Any:
    return encode_schema(part) if is_schema(part) else part


_DECLARED = "functionDeclarations"
_MAPPED_KEYS = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
"""The keys of a declaration that `ToolDefinition` has a field for."""


def decode_tools(wire: object) -> tuple[ToolDefinition, ...]:
    """Decode the tools that the client runs; server tools remain in the native options only."""
    return tuple(_decode_tool(declared) for _, declared in _declarations(wire))


def _decode_tool(declared: Wire) -> ToolDefinition:
    return ToolDefinition(
        name=declared["name"],
        description=maybe_text(declared.get("description")) or "",
        input_schema=_input_schema(declared),
        side_effects=SideEffects.EXECUTE,
    )


def _declarations(wire: object) -> Iterator[tuple[str, Wire]]:
    """Yield the path and the declaration of each function that has a name."""
    for number, tool in enumerate(map(maybe_object, _tools_of(wire))):
        key = present_key(tool, _DECLARED)
        for index, declared in enumerate(map(maybe_object, maybe_list(tool.get(key)))):
            if isinstance(declared.get("name"), str):
                yield f"tools[{number}].{key}[{index}]", declared


def _tools_of(wire: object) -> list[Any]:
    """Return the list of tools; Gemini also accepts one tool without a list."""
    return [wire] if isinstance(wire, dict) else maybe_list(wire)


def _input_schema(declared: Wire) -> Wire:
    """Return the schema of a tool: JSON Schema if it has one, else decoded from the dialect."""
    schema = field(declared, "parametersJsonSchema")
    if isinstance(schema, dict):
        return cast("Wire", schema)
    return maybe_object(decode_schema(declared.get("parameters"))) or {
        "type": "object",
        "properties": {},
    }


def encode_tools(tools: Sequence[ToolDefinition], native: object = None) -> list[Any]:
    """Encode the tools of a request; native declarations with the same meaning are reused."""
    by_name = {declared["name"]: declared for _, declared in _declarations(native)}
    encoded = [_encode_tool(tool, by_name.get(tool.name, {})) for tool in tools]
    entries = map(_without_functions, _tools_of(native))
    server_entries = [entry for entry in entries if entry]
    return [{_DECLARED: encoded}, *server_entries] if encoded else server_entries


def _encode_tool(tool: ToolDefinition, native: Wire) -> Wire:
    """Encode a definition with JSON Schema, because the dialect cannot express all of it (T102)."""
    if native and _decode_tool(native) == tool:
        return native
    wire: Wire = {key: value for key, value in native.items() if camel(key) not in _MAPPED_KEYS}
    wire["name"] = tool.name
    if tool.description:
        wire["description"] = tool.description
    # Gemini rejects an object without properties; such a tool is sent without a schema (T105).
    if tool.input_schema.get("properties") or "type" not in tool.input_schema:
        wire["parametersJsonSchema"] = tool.input_schema
    return wire


def _without_functions(tool: Any) -> Any:
    """Return a tool entry without the client's functions; empty if it has nothing else."""
    if not isinstance(tool, dict):
        return tool
    return {k: v for k, v in cast("Wire", tool).items() if camel(k) != _DECLARED}


def server_tools(wire: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that the provider runs."""
    return [
        key
        for tool in _tools_of(field(wire, "tools"))
        for key in maybe_object(tool)
        if key not in (_DECLARED, snake(_DECLARED))
    ]


def unmapped_tool_paths(wire: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield tool name and path for each key of a function without a `ToolDefinition` field."""
    for path, declared in _declarations(field(wire, "tools")):
        for key, value in declared.items():
            if value and camel(key) not in _MAPPED_KEYS:
                yield declared["name"], f"{path}.{key}"


_CONFIG, _THINKING = "generationConfig", "thinkingConfig"
_BUDGET, _LEVEL = "thinkingBudget", "thinkingLevel"
_DYNAMIC = -1
"""The budget that lets the model decide."""


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    """Decode `thinkingConfig`: a level, a token budget, or a budget of 0 or -1."""
    config = maybe_object(field(wire, _CONFIG))
    thinking = maybe_object(field(config, _THINKING))
    prefix = f"{present_key(wire, _CONFIG)}.{present_key(config, _THINKING)}."
    effort = effort_of((maybe_text(field(thinking, _LEVEL)) or "").lower())
    budget = field(thinking, _BUDGET)
    keys: set[str] = set()
    if effort is not None:
        keys.add(prefix + present_key(thinking, _LEVEL))
    if type(budget) is int and budget >= _DYNAMIC:
        keys.add(prefix + present_key(thinking, _BUDGET))
        if budget == 0:
            return DecodedReasoning(Reasoning("none"), frozenset(keys))
        tokens = None if budget == _DYNAMIC else budget_of(budget)
        return DecodedReasoning(Reasoning(effort, tokens), frozenset(keys))
    return DecodedReasoning(Reasoning(effort) if effort else None, frozenset(keys))


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None) -> None:
    # Gemini 2.5 accepts a token budget, newer models a level.
    fields: Wire = {_BUDGET: None, _LEVEL: None}
    if reasoning is not None and reasoning.is_off and form != "level":
        fields[_BUDGET] = 0
    elif reasoning is not None and reasoning.budget_tokens is not None:
        fields[_BUDGET] = reasoning.budget_tokens
    elif reasoning is not None and reasoning.effort is not None:
        fields[_LEVEL] = reasoning.effort.upper()
    elif reasoning is not None:
        fields[_BUDGET] = _DYNAMIC
    name = present_key(wire, _CONFIG)
    config = dict(maybe_object(wire.get(name)))
    set_inner_fields(config, _THINKING, fields)
    wire.pop(name, None)
    if config:
        wire[name] = config


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)


_MEDIA_TYPE, _FORMATS = "responseMimeType", "responseFormat"
_SCHEMA, _DIALECT = "responseJsonSchema", "responseSchema"
_JSON, _TEXT = "application/json", "text/plain"


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    """Decode the media type and one of the two schema keys, or the list of formats."""
    config = maybe_object(field(wire, _CONFIG))
    media_type = field(config, _MEDIA_TYPE)
    prefix = f"{present_key(wire, _CONFIG)}."
    if media_type is None:
        return _decode_format_list(config, prefix)
    keys = {prefix + present_key(config, _MEDIA_TYPE)}
    if media_type == _TEXT:
        return DecodedOutput(None, frozenset(keys))
    if media_type != _JSON:
        return UNSTATED_OUTPUT
    for name in (_SCHEMA, _DIALECT):
        schema = field(config, name)
        if isinstance(schema, dict):
            keys.add(prefix + present_key(config, name))
            schema = cast("Wire", schema) if name == _SCHEMA else decode_schema(schema)
            return DecodedOutput(OutputFormat(schema), frozenset(keys))
    return DecodedOutput(OutputFormat(), frozenset(keys))


def _decode_format_list(config: Wire, prefix: str) -> DecodedOutput:
    """Decode the list of formats that Vertex AI accepts, if its only entry is a text format."""
    formats = maybe_list(field(config, _FORMATS))
    only = maybe_object(formats[0]) if len(formats) == 1 else {}
    text = maybe_object(only.get("text"))
    schema, media_type = text.get("schema"), str(field(text, "mimeType")).lower()
    if len(only) != 1 or media_type not in (_JSON, "application_json"):
        return UNSTATED_OUTPUT
    output = OutputFormat(cast("Wire", schema) if isinstance(schema, dict) else None)
    return DecodedOutput(output, frozenset({prefix + present_key(config, _FORMATS)}))


def _encode_output_format(wire: Wire, output: OutputFormat | None, dialect: SchemaDialect) -> None:
    fields: Wire = dict.fromkeys((_MEDIA_TYPE, _SCHEMA, _DIALECT, _FORMATS))
    if output is not None:
        fields[_MEDIA_TYPE] = _JSON
        if output.schema is not None and dialect == "openapi":
            fields[_DIALECT] = encode_schema(output.schema)
        elif output.schema is not None:
            fields[_SCHEMA] = output.schema
    set_inner_fields(wire, _CONFIG, fields)


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format)


_TOOL_CONFIG, _CALLING = "toolConfig", "functionCallingConfig"
_KEYS = {
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "stop_sequences": "stopSequences",
}
_SHARED = {
    "tools",
    *(f"{_CONFIG}.{key}" for key in _KEYS.values()),
    f"{_TOOL_CONFIG}.{_CALLING}.mode",
    f"{_TOOL_CONFIG}.{_CALLING}.allowedFunctionNames",
}
SHARED_KEYS = frozenset({*_SHARED, *(snake(key) for key in _SHARED)})
"""The keys of a request that options and tools determine."""
_COMMON = (_CONFIG, _TOOL_CONFIG, "safetySettings")
COMMON_KEYS = frozenset({*_COMMON, *map(snake, _COMMON)})
"""Other keys that both hosts accept; cached contents and labels are specific to one of them."""

_MODES: Mapping[Any, ToolMode] = {
    "AUTO": "auto",
    "ANY": "required",
    "NONE": "none",
    "VALIDATED": "auto",
    # The numbers of the enum, which some clients send.
    1: "auto",
    2: "required",
    3: "none",
}
_MODE_NAMES: Mapping[ToolMode, str] = {
    "auto": "AUTO",
    "required": "ANY",
    "none": "NONE",
    "tool": "ANY",
}

TOOL_MODES = {"validated": {_TOOL_CONFIG: {_CALLING: {"mode": "VALIDATED"}}}}
"""The mode that only Gemini has: calls are optional, and their arguments follow the schema."""


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
    native = _decode_shared(wire)
    changed = {
        key: getattr(options, name)
        for name, key in _KEYS.items()
        if getattr(options, name) != native.get(name)
    }
    if changed:
        set_inner_fields(wire, _CONFIG, changed)
    if options.tool_choice != native.get("tool_choice"):
        choice = _encode_choice(options.tool_choice)
        set_inner_fields(wire, _TOOL_CONFIG, {_CALLING: choice})
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    native_tools = field(wire, "tools")
    if tuple(tools) != decode_tools(native_tools):
        wire["tools"] = encode_tools(tools, native_tools)
    return wire


def _encode_choice(choice: ToolChoice | None) -> Wire | None:
    if choice is None:
        return None
    wire: Wire = {"mode": _MODE_NAMES[choice.mode]}
    if choice.name is not None:
        wire["allowedFunctionNames"] = [choice.name]
    return wire


def _decode_shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the shared options of a request; options that are not set are left out."""
    if not wire:
        return {}
    config = maybe_object(field(wire, _CONFIG))
    options = {name: field(config, key) for name, key in _KEYS.items()}
    stops = options["stop_sequences"]
    options["stop_sequences"] = tuple(cast("list[str]", stops)) if isinstance(stops, list) else None
    # Some clients send whole numbers as floats.
    for name in ("top_k", "max_output_tokens"):
        if isinstance(options[name], float):
            options[name] = int(options[name])
    options["tool_choice"] = _decode_choice(maybe_object(field(wire, _TOOL_CONFIG)))
    return {name: value for name, value in options.items() if value is not None}


def _decode_choice(config: Wire) -> ToolChoice | None:
    calling = maybe_object(field(config, _CALLING))
    name = calling.get("mode")
    mode = _MODES.get(name) if isinstance(name, str | int) else None
    if mode is None:
        return None
    names = maybe_list(field(calling, "allowedFunctionNames"))
    # Gemini requires a named tool by a list with one allowed function.
    if mode == "required" and len(names) == 1 and isinstance(names[0], str):
        return ToolChoice("tool", names[0])
    return ToolChoice(mode)
