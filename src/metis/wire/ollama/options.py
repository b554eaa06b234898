"""Options of Ollama: those of a request, and those that it nests under `options`.

What the shared options have no word for stays in the spelling: keys of the request under their
names, keys of `options` as `options.seed`, so that each can be told as lost by itself. A key of a
request that looks like one of those, or like a prompt in a chat, is kept with a dot before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions
from metis.wire.functions import spell_functions
from metis.wire.ollama.output import OUTPUT
from metis.wire.ollama.thinking import REASONING
from metis.wire.ollama.types import PROTOCOL
from metis.wire.shape import Wire, maybe_count, maybe_list, maybe_object, maybe_text

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
    native: Wire = {_outer(key): value for key, value in wire.items()}
    if not is_prompt and "prompt" in native:
        native[".prompt"] = native.pop("prompt")
    inner = wire.get(_INNER)
    shared: Wire = {}
    if isinstance(inner, dict):
        native[_INNER] = told = {}
        for key, value in maybe_object(inner).items():
            ours = _decode(key, value)
            if ours is None:
                native[_DOTTED + key] = value
            else:
                told[key] = value
                shared[_NAMES[key]] = ours
    # A server streams unless it is told not to.
    stream = wire.get("stream") is not False
    model = maybe_text(wire.get("model"))
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT.decode(wire).output
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
    body, inner = _unfold(native or {})
    for name, key in _NESTED.items():
        ours = getattr(options, name)
        if ours != (_decode(key, inner[key]) if key in inner else None):
            _set(inner, key, ours)
    if inner or isinstance(body.get(_INNER), dict):
        body[_INNER] = inner
    if options.model != maybe_text(body.get("model")):
        _set(body, "model", options.model)
    wants_stream = bool(options.stream)
    if native is None or wants_stream != (body.get("stream") is not False):
        body["stream"] = wants_stream
    REASONING.write(body, options.reasoning, is_free=options.origin is None)
    OUTPUT.write(body, options.output, is_free=options.origin is None)
    spell_functions(body, tools)
    return body


def _unfold(native: Mapping[str, Any]) -> tuple[Wire, Wire]:
    """The keys of a request, and those nested in it."""
    body: Wire = {}
    inner: Wire = dict(maybe_object(native.get(_INNER)))
    for key, value in native.items():
        if key.startswith(_DOTTED):
            inner[key.removeprefix(_DOTTED)] = value
        else:
            body[key.removeprefix(".")] = value
    return body, inner


def _outer(key: str) -> str:
    return f".{key}" if key.startswith((".", _DOTTED)) else key


def _decode(key: str, value: Any) -> Any:
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
