"""Wish: what a request asks for in words of its own protocol, beside the shared options."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from metis.adapters.codecs import CODECS
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

Thinking = Literal["none", "hidden", "sealed", "shown"]
"""What is seen of a thought: it is not there, only counted, not to be read, or open."""


class Wish(Struct, frozen=True, kw_only=True):
    """How an answer shall be made."""

    thinking: Thinking = "none"
    seals: bool = True
    """Whether a thought that is shown comes with its seal."""
    schema: Mapping[str, Any] | None = None
    """The form of the answer; an empty one is any JSON object."""
    usage: bool = True
    """Whether a stream tells its usage."""


def wish_of(protocol: str, wire: Wire, model: str) -> Wish:
    """What a request of a protocol asks for."""
    return _READERS[protocol](wire, model)


def _anthropic(wire: Wire, _model: str) -> Wish:
    thinking = maybe_object(wire.get("thinking")).get("type")
    stated = maybe_object(wire.get("output_config")).get("format") or wire.get("output_format")
    schema = maybe_object(stated).get("schema")
    return Wish(
        thinking="shown" if thinking in ("enabled", "adaptive") else "none",
        schema=maybe_object(schema) if schema is not None else None,
    )


def _openai_chat(wire: Wire, model: str) -> Wish:
    """Thoughts are counted but not shown by OpenAI; its hosts show those of reasoners."""
    effort = wire.get("reasoning_effort")
    is_shown = "reasoner" in model or bool(wire.get("reasoning")) or wire.get("include_reasoning")
    is_hidden = effort is not None and effort != "none"
    stream = maybe_object(wire.get("stream_options"))
    return Wish(
        thinking="shown" if is_shown else "hidden" if is_hidden else "none",
        schema=_format(
            maybe_object(wire.get("response_format")),
            maybe_object(maybe_object(wire.get("response_format")).get("json_schema")),
        ),
        usage=not wire.get("stream") or stream.get("include_usage") is True,
    )


def _openai_responses(wire: Wire, _model: str) -> Wish:
    """A summary is shown if it is asked for, and so is the sealed thought itself."""
    reasoning = maybe_object(wire.get("reasoning"))
    seals = "reasoning.encrypted_content" in maybe_list(wire.get("include"))
    form = maybe_object(maybe_object(wire.get("text")).get("format"))
    thinking: Thinking = "none"
    if reasoning.get("summary"):
        thinking = "shown"
    elif reasoning.get("effort") not in (None, "none"):
        thinking = "sealed" if seals else "hidden"
    return Wish(thinking=thinking, seals=seals, schema=_format(form, form))


def _format(form: Wire, holder: Wire) -> Mapping[str, Any] | None:
    match form.get("type"):
        case "json_schema":
            return maybe_object(holder.get("schema"))
        case "json_object":
            return {}
        case _:
            return None


def _gemini(wire: Wire, _model: str) -> Wish:
    config = _either(wire, "generationConfig", "generation_config")
    thinking = _either(config, "thinkingConfig", "thinking_config")
    media = maybe_text(config.get("responseMimeType") or config.get("response_mime_type"))
    stated = next((config[key] for key in _GEMINI_SCHEMAS if config.get(key)), None)
    is_shown = thinking.get("includeThoughts") or thinking.get("include_thoughts")
    return Wish(
        thinking="shown" if is_shown else "none",
        schema=maybe_object(stated) if media == "application/json" else None,
    )


def _either(wire: Wire, *keys: str) -> Wire:
    return maybe_object(next((wire[key] for key in keys if wire.get(key)), None))


def _converse(wire: Wire, _model: str) -> Wish:
    """Each maker has its own words for thinking; the codec knows them all."""
    codec = CODECS["bedrock_converse"]
    spoken, output = codec.reasoning.decode(wire).reasoning, codec.output.decode(wire).output
    thinks = spoken is not None and not spoken.is_off
    return Wish(
        thinking="shown" if thinks else "none", schema=None if output is None else output.schema
    )


def _ollama(wire: Wire, _model: str) -> Wish:
    form = wire.get("format")
    schema = {} if form == "json" else maybe_object(form) if isinstance(form, dict) else None
    return Wish(thinking="shown" if wire.get("think") else "none", schema=schema)


_GEMINI_SCHEMAS = (
    "responseJsonSchema",
    "response_json_schema",
    "responseSchema",
    "response_schema",
)
_READERS: Mapping[str, Callable[[Wire, str], Wish]] = {
    "anthropic": _anthropic,
    "bedrock_converse": _converse,
    "openai_chat": _openai_chat,
    "openai_responses": _openai_responses,
    "gemini": _gemini,
    "ollama": _ollama,
}
