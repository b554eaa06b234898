"""Decode and check one HTTP request to the simulator."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.adapters.codecs import CODECS
from metis.canonical.errors import AuthenticationError, ContextOverflowError, InvalidRequestError
from metis.canonical.ids import int_to_ulid
from metis.sim.endpoints import Endpoint, EndpointMatch, HttpRequest, simulated_name
from metis.sim.signing import ThinkingSigner
from metis.sim.strict import CHECKS, CheckContext
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text, read_object

_ID_BYTES = 16


class RequestSeed:
    """Makes ids out of the bytes of a request."""

    def __init__(self, *parts: bytes) -> None:
        self._digest = hashlib.sha256(b"\0".join(parts)).digest()

    @property
    def digest(self) -> bytes:
        """What two equal requests have in common."""
        return self._digest

    def ulid(self, label: str) -> str:
        """The id that goes by this label.

        >>> Seed(b"a").ulid("message") == Seed(b"a").ulid("message") != Seed(b"b").ulid("message")
        True
        """
        whole = hashlib.sha256(self._digest + label.encode()).digest()
        return int_to_ulid(int.from_bytes(whole[:_ID_BYTES], "big"))


Thinking = Literal["none", "hidden", "sealed", "shown"]
"""What is seen of a thought: it is not there, only counted, not to be read, or open."""


class RequestTraits(Struct, frozen=True, kw_only=True):
    """How an answer shall be made."""

    thinking: Thinking = "none"
    include_signature: bool = True
    """Whether a thought that is shown comes with its seal."""
    output_schema: Mapping[str, Any] | None = None
    """The form of the answer; an empty one is any JSON object."""
    include_usage: bool = True
    """Whether a stream tells its usage."""


def request_traits(protocol: str, wire: Wire, model: str) -> RequestTraits:
    """What a request of a protocol asks for."""
    return _READERS[protocol](wire, model)


def _anthropic(wire: Wire, _model: str) -> RequestTraits:
    thinking = maybe_object(wire.get("thinking")).get("type")
    stated = maybe_object(wire.get("output_config")).get("format") or wire.get("output_format")
    schema = maybe_object(stated).get("schema")
    return RequestTraits(
        thinking="shown" if thinking in ("enabled", "adaptive") else "none",
        output_schema=maybe_object(schema) if schema is not None else None,
    )


def _openai_chat(wire: Wire, model: str) -> RequestTraits:
    """Thoughts are counted but not shown by OpenAI; its hosts show those of reasoners."""
    effort = wire.get("reasoning_effort")
    is_shown = "reasoner" in model or bool(wire.get("reasoning")) or wire.get("include_reasoning")
    is_hidden = effort is not None and effort != "none"
    stream = maybe_object(wire.get("stream_options"))
    return RequestTraits(
        thinking="shown" if is_shown else "hidden" if is_hidden else "none",
        output_schema=_format(
            maybe_object(wire.get("response_format")),
            maybe_object(maybe_object(wire.get("response_format")).get("json_schema")),
        ),
        include_usage=not wire.get("stream") or stream.get("include_usage") is True,
    )


def _openai_responses(wire: Wire, _model: str) -> RequestTraits:
    """A summary is shown if it is asked for, and so is the sealed thought itself."""
    reasoning = maybe_object(wire.get("reasoning"))
    seals = "reasoning.encrypted_content" in maybe_list(wire.get("include"))
    form = maybe_object(maybe_object(wire.get("text")).get("format"))
    thinking: Thinking = "none"
    if reasoning.get("summary"):
        thinking = "shown"
    elif reasoning.get("effort") not in (None, "none"):
        thinking = "sealed" if seals else "hidden"
    return RequestTraits(
        thinking=thinking, include_signature=seals, output_schema=_format(form, form)
    )


def _format(form: Wire, holder: Wire) -> Mapping[str, Any] | None:
    match form.get("type"):
        case "json_schema":
            return maybe_object(holder.get("schema"))
        case "json_object":
            return {}
        case _:
            return None


def _gemini(wire: Wire, _model: str) -> RequestTraits:
    config = _either(wire, "generationConfig", "generation_config")
    thinking = _either(config, "thinkingConfig", "thinking_config")
    media = maybe_text(config.get("responseMimeType") or config.get("response_mime_type"))
    stated = next((config[key] for key in _GEMINI_SCHEMAS if config.get(key)), None)
    is_shown = thinking.get("includeThoughts") or thinking.get("include_thoughts")
    return RequestTraits(
        thinking="shown" if is_shown else "none",
        output_schema=maybe_object(stated) if media == "application/json" else None,
    )


def _either(wire: Wire, *keys: str) -> Wire:
    return maybe_object(next((wire[key] for key in keys if wire.get(key)), None))


def _converse(wire: Wire, _model: str) -> RequestTraits:
    """Each maker has its own words for thinking; the codec knows them all."""
    codec = CODECS["bedrock_converse"]
    spoken, output = codec.reasoning.decode(wire).reasoning, codec.output.decode(wire).output
    thinks = spoken is not None and not spoken.is_off
    return RequestTraits(
        thinking="shown" if thinks else "none",
        output_schema=None if output is None else output.schema,
    )


def _ollama(wire: Wire, _model: str) -> RequestTraits:
    form = wire.get("format")
    schema = {} if form == "json" else maybe_object(form) if isinstance(form, dict) else None
    return RequestTraits(thinking="shown" if wire.get("think") else "none", output_schema=schema)


_GEMINI_SCHEMAS = (
    "responseJsonSchema",
    "response_json_schema",
    "responseSchema",
    "response_schema",
)
_READERS: Mapping[str, Callable[[Wire, str], RequestTraits]] = {
    "anthropic": _anthropic,
    "bedrock_converse": _converse,
    "openai_chat": _openai_chat,
    "openai_responses": _openai_responses,
    "gemini": _gemini,
    "ollama": _ollama,
}


_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
"""When every answer is given: a clock would make other bytes of the same request."""


class Settings(Struct, frozen=True, kw_only=True):
    """How a simulator behaves."""

    strict: bool = True
    """Whether requests are refused that the real API would refuse."""
    key: str | None = None
    """The key that clients must show; None takes any, and none."""
    models: tuple[str, ...] | None = None
    """The models that there are; None takes every name."""
    chunk_bytes: int | None = None
    """The size of the chunks of a stream; None sends each event by itself."""
    pause_s: float = 0.0
    """The pause between two chunks."""
    window_tokens: int | None = None
    """How many tokens a request may have; None is no limit."""


class SimulatedCall(Struct, frozen=True, kw_only=True):
    """A request in the canonical form, with all that an answer to it must know."""

    endpoint: Endpoint
    seed: RequestSeed
    request: CanonicalRequest
    traits: RequestTraits
    context: RequestContext
    is_stream: bool

    @property
    def adapter(self) -> Adapter:
        """The adapter in whose place the answer is given."""
        return self.endpoint.adapter

    def input_tokens(self) -> int:
        """What the request comes to."""
        return self.adapter.estimate_input_tokens(self.request.messages, self.request.tools)


def decode_call(
    http_request: HttpRequest,
    match: EndpointMatch,
    seed: RequestSeed,
    settings: Settings,
    signer: ThinkingSigner,
) -> SimulatedCall:
    """Read a request; raises what the provider would answer to one that it does not take."""
    door = match.endpoint
    _admit(http_request, door, settings.key)
    wire = read_object(http_request.body, "request")
    model = match.model or str(wire.get("model") or "")
    protocol = door.codec.protocol
    if settings.strict and match.action != "count":
        CHECKS[protocol](
            wire, CheckContext(signer=signer, headers=http_request.headers, model=model)
        )
    if settings.models is not None and model not in settings.models:
        raise InvalidRequestError(f"model: {model}", status=404, code="model_not_found")
    context = _context(door.adapter, model, seed)
    call = SimulatedCall(
        endpoint=door,
        seed=seed,
        request=door.adapter.from_wire_request(
            _body(http_request, wire), replace(context, model=model)
        ),
        traits=request_traits(protocol, wire, model),
        context=context,
        is_stream=match.action == "stream" or wire.get("stream", door.streams_by_default) is True,
    )
    window = settings.window_tokens
    if window is not None and match.action != "count" and call.input_tokens() > window:
        text = door.context_overflow_text.format(tokens=call.input_tokens(), window=window)
        raise ContextOverflowError(text, status=400)
    return call


def _body(asked: HttpRequest, wire: Wire) -> bytes | Wire:
    """The body that holds the conversation; one way to count wraps it once more."""
    inner = maybe_object(wire.get("generateContentRequest"))
    return inner or asked.body


def _admit(asked: HttpRequest, door: Endpoint, key: str | None) -> None:
    if key is not None and not _shows(asked.headers, door.adapter.profile.auth.headers(key)):
        raise AuthenticationError("invalid api key", status=401)
    if len(asked.body) > door.max_body_bytes:
        raise ContextOverflowError("Request exceeds the maximum size", status=413)


def _shows(headers: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(headers.get(name.lower()) == value for name, value in wanted.items())


def _context(adapter: Adapter, model: str, seed: RequestSeed) -> RequestContext:
    return RequestContext(
        session_id=f"sess_{seed.ulid('session')}",
        model=f"{adapter.name}:{simulated_name(model)}",
        provider=adapter.name,
        created_at=_MOMENT,
    )
