"""Options and tools of an Ollama request, with reasoning and the output format.

Native options are stored flat: keys of the request under their names, keys nested under `options`
with a prefix, such as `options.seed`, so that each can be reported as a separate loss. A top-level
key that looks like a nested one, or like the prompt of a completion, is stored with a leading dot.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import ToolDefinition
from metis.catalog.model_rules import ReasoningForm, SchemaDialect
from metis.wire.call import AdapterOptions
from metis.wire.function_tools import set_functions
from metis.wire.json_access import (
    Wire,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
    set_or_remove,
)
from metis.wire.ollama.blocks import PROTOCOL
from metis.wire.output_format import (
    UNSTATED_OUTPUT,
    DecodedOutput,
    OutputFormat,
    OutputFormatCodec,
)
from metis.wire.reasoning import (
    UNSTATED_REASONING,
    DecodedReasoning,
    Reasoning,
    ReasoningCodec,
    effort_of,
)

_THINK, _FORMAT, _JSON = "think", "format", "json"
_NESTED = "options"
_NESTED_PREFIX = f"{_NESTED}."
_NESTED_KEYS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_output_tokens": "num_predict",
    "stop_sequences": "stop",
}
"""The keys under `options`, by the name of the shared option."""
_OPTION_OF_KEY = {key: name for name, key in _NESTED_KEYS.items()}

SHARED_KEYS = frozenset({"model", "stream", "tools", _NESTED, "prompt", "system", "images"})
"""The native keys that shared options, tools and messages determine."""


def _decode_reasoning(wire: Mapping[str, Any]) -> DecodedReasoning:
    think = wire.get(_THINK)
    if isinstance(think, bool):
        return DecodedReasoning(Reasoning() if think else Reasoning("none"), frozenset({_THINK}))
    effort = effort_of(think)
    if effort is None:
        return UNSTATED_REASONING
    return DecodedReasoning(Reasoning(effort), frozenset({_THINK}))


def _encode_reasoning(wire: Wire, reasoning: Reasoning | None, _form: ReasoningForm | None) -> None:
    wire.pop(_THINK, None)
    if reasoning is not None:
        wire[_THINK] = False if reasoning.is_off else reasoning.effort or True


REASONING = ReasoningCodec(_decode_reasoning, _encode_reasoning)
"""Reasoning is on or off in Ollama; some models also accept an effort."""


def _decode_output_format(wire: Mapping[str, Any]) -> DecodedOutput:
    output_format = wire.get(_FORMAT)
    if output_format == _JSON:
        return DecodedOutput(OutputFormat(), frozenset({_FORMAT}))
    if isinstance(output_format, dict) and output_format:
        return DecodedOutput(OutputFormat(cast("Wire", output_format)), frozenset({_FORMAT}))
    return UNSTATED_OUTPUT


def _encode_output_format(wire: Wire, output: OutputFormat | None, _dialect: SchemaDialect) -> None:
    wire.pop(_FORMAT, None)
    if output is not None:
        wire[_FORMAT] = _JSON if output.schema is None else output.schema


OUTPUT_FORMAT = OutputFormatCodec(_decode_output_format, _encode_output_format)
"""The output format is `json` or a JSON Schema in Ollama."""


def decode_options(wire: Wire, *, is_prompt: bool = False) -> AdapterOptions:
    """Decode the shared options of a request; its keys are stored as native options."""
    native: Wire = {_escape(key): value for key, value in wire.items()}
    if not is_prompt and "prompt" in native:
        native[".prompt"] = native.pop("prompt")
    nested = wire.get(_NESTED)
    shared: Wire = {}
    if isinstance(nested, dict):
        native[_NESTED] = mapped = {}
        for key, value in maybe_object(nested).items():
            option = _decode_nested(key, value)
            if option is None:
                native[_NESTED_PREFIX + key] = value
            else:
                mapped[key] = value
                shared[_OPTION_OF_KEY[key]] = option
    return AdapterOptions(
        model=maybe_text(wire.get("model")),
        # Unlike the other protocols, Ollama streams by default.
        stream=wire.get("stream") is not False,
        reasoning=REASONING.decode(wire).reasoning,
        output=OUTPUT_FORMAT.decode(wire).output,
        native={PROTOCOL: native},
        **shared,
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """Encode options as keys of a request; native keys with the same meaning remain unchanged."""
    native = options.native.get(PROTOCOL)
    wire, nested = _split_nested(native or {})
    for name, key in _NESTED_KEYS.items():
        value = getattr(options, name)
        if value != (_decode_nested(key, nested[key]) if key in nested else None):
            set_or_remove(nested, key, value)
    if nested or isinstance(wire.get(_NESTED), dict):
        wire[_NESTED] = nested
    if options.model != maybe_text(wire.get("model")):
        set_or_remove(wire, "model", options.model)
    is_streamed = bool(options.stream)
    if native is None or is_streamed != (wire.get("stream") is not False):
        wire["stream"] = is_streamed
    REASONING.apply(wire, options.reasoning, keep_native=options.origin is None)
    OUTPUT_FORMAT.apply(wire, options.output, keep_native=options.origin is None)
    set_functions(wire, tools)
    return wire


def _split_nested(native: Mapping[str, Any]) -> tuple[Wire, Wire]:
    """Split native options into the keys of a request and the keys nested under `options`."""
    wire: Wire = {}
    nested: Wire = dict(maybe_object(native.get(_NESTED)))
    for key, value in native.items():
        if key.startswith(_NESTED_PREFIX):
            nested[key.removeprefix(_NESTED_PREFIX)] = value
        else:
            wire[key.removeprefix(".")] = value
    return wire, nested


def _escape(key: str) -> str:
    return f".{key}" if key.startswith((".", _NESTED_PREFIX)) else key


def _decode_nested(key: str, value: Any) -> Any:
    """Return the shared option for a nested key; None if it is not one, or not valid as one."""
    match key:
        case "temperature" | "top_p":
            return value if type(value) in (int, float) else None
        case "top_k" | "num_predict":
            # Negative counts have a meaning only for Ollama: -1 no limit, -2 fill the context.
            return maybe_count(value)
        case "stop":
            stops = maybe_list(value)
            are_texts = stops and all(isinstance(stop, str) for stop in stops)
            return tuple(stops) if are_texts else None
        case _:
            return None
