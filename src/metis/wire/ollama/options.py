"""Options and tools of an Ollama request, with reasoning and the output format."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import ToolDefinition
from metis.catalog.model_rules import ReasoningForm, SchemaDialect
from metis.wire.call import AdapterOptions
from metis.wire.function_tools import set_functions
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.ollama.blocks import PROTOCOL
from metis.wire.output_format import UNSTATED_OUTPUT, DecodedOutput, OutputFormat, OutputFormatCodec
from metis.wire.reasoning import DecodedReasoning, Reasoning, ReasoningCodec, effort_of

_THINK = "think"


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    think = wire.get(_THINK)
    if isinstance(think, bool):
        return DecodedReasoning(Reasoning() if think else Reasoning("none"), frozenset({_THINK}))
    effort = effort_of(think)
    return (
        DecodedReasoning(Reasoning(effort), frozenset({_THINK})) if effort else DecodedReasoning()
    )


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, _form: ReasoningForm | None) -> None:
    wire.pop(_THINK, None)
    if reasoning is not None:
        wire[_THINK] = False if reasoning.is_off else reasoning.effort or True


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)


_FORMAT, _JSON = "format", "json"
_FORMAT_KEYS = frozenset({_FORMAT})


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    told = wire.get(_FORMAT)
    if told == _JSON:
        return DecodedOutput(OutputFormat(), _FORMAT_KEYS)
    if isinstance(told, dict) and told:
        return DecodedOutput(OutputFormat(cast("Wire", told)), _FORMAT_KEYS)
    return UNSTATED_OUTPUT


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    wire.pop(_FORMAT, None)
    if output is not None:
        wire[_FORMAT] = _JSON if output.schema is None else output.schema


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format)


_INNER = "options"
_DOTTED = f"{_INNER}."
_NESTED: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_output_tokens": "num_predict",
    "stop_sequences": "stop",
}
_NAMES = {key: name for name, key in _NESTED.items()}

SHARED_KEYS = frozenset({"model", "stream", "tools", _INNER, "prompt", "system", "images"})
"""The keys of a spelling that the shared options, the tools and the messages speak for."""


def decode_options(wire: Wire, *, is_prompt: bool = False) -> AdapterOptions:
    """The shared options of a request, with their spelling; only that of a prompt has a prompt."""
    native: Wire = {_escape_key(key): value for key, value in wire.items()}
    if not is_prompt and "prompt" in native:
        native[".prompt"] = native.pop("prompt")
    inner = wire.get(_INNER)
    shared: Wire = {}
    if isinstance(inner, dict):
        native[_INNER] = told = {}
        for key, value in maybe_object(inner).items():
            ours = _decode_nested(key, value)
            if ours is None:
                native[_DOTTED + key] = value
            else:
                told[key] = value
                shared[_NAMES[key]] = ours
    # A server streams unless it is told not to.
    stream = wire.get("stream") is not False
    model = maybe_text(wire.get("model"))
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT_FORMAT.decode(wire).output
    return AdapterOptions(
        model=model,
        stream=stream,
        reasoning=spoken,
        output=output,
        native={PROTOCOL: native},
        **shared,
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """The options as keys of a request; a remembered spelling is kept while it says the same."""
    native = options.native.get(PROTOCOL)
    body, inner = _split_nested(native or {})
    for name, key in _NESTED.items():
        ours = getattr(options, name)
        if ours != (_decode_nested(key, inner[key]) if key in inner else None):
            _set(inner, key, ours)
    if inner or isinstance(body.get(_INNER), dict):
        body[_INNER] = inner
    if options.model != maybe_text(body.get("model")):
        _set(body, "model", options.model)
    wants_stream = bool(options.stream)
    if native is None or wants_stream != (body.get("stream") is not False):
        body["stream"] = wants_stream
    REASONING.apply(body, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(body, options.output, keep_native=options.origin is None)
    set_functions(body, tools)
    return body


def _split_nested(native: Mapping[str, Any]) -> tuple[Wire, Wire]:
    """The keys of a request, and those nested in it."""
    body: Wire = {}
    inner: Wire = dict(maybe_object(native.get(_INNER)))
    for key, value in native.items():
        if key.startswith(_DOTTED):
            inner[key.removeprefix(_DOTTED)] = value
        else:
            body[key.removeprefix(".")] = value
    return body, inner


def _escape_key(key: str) -> str:
    return f".{key}" if key.startswith((".", _DOTTED)) else key


def _decode_nested(key: str, value: Any) -> Any:
    """The shared option that a nested one stands for; None if it stands for none."""
    match key:
        case "temperature" | "top_p":
            return value if type(value) in (int, float) else None
        case "top_k" | "num_predict":
            # Negative counts are words of Ollama's own: without end, as long as there is room.
            return maybe_count(value)
        case "stop":
            stops = maybe_list(value)
            whole = stops and all(isinstance(stop, str) for stop in stops)
            return tuple(stops) if whole else None
        case _:
            return None


def _set(wire: Wire, key: str, value: Any) -> None:
    if value is None:
        wire.pop(key, None)
    else:
        wire[key] = value
