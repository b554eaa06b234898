"""Decoding and checks of one HTTP request to the simulator."""

import hashlib
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.canonical.errors import AuthenticationError, ContextOverflowError, InvalidRequestError
from metis.canonical.ids import int_to_ulid
from metis.sim.endpoints import Endpoint, EndpointMatch, HttpRequest, simulated_name
from metis.sim.signing import ThinkingSigner
from metis.sim.strict import CHECKS, CheckContext
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.json_access import Wire, maybe_list, maybe_object, read_object

# A fixed time, so that equal requests give equal bytes.
_CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
_ID_BYTES = 16

Thinking = Literal["none", "hidden", "sealed", "shown"]
"""How much of its thinking a model sends: nothing, only its token count, sealed, or readable."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a simulator."""

    strict: bool = True
    """Whether requests that the real API would refuse are refused."""
    key: str | None = None
    """The API key that clients must send; None accepts any key, or none."""
    models: tuple[str, ...] | None = None
    """The models that exist; None accepts every name."""
    chunk_bytes: int | None = None
    """The size of the chunks of a stream; None sends one event per chunk."""
    pause_s: float = 0.0
    """The pause between two chunks."""
    window_tokens: int | None = None
    """The context window; None means no limit."""


class RequestSeed:
    """Derives ids from the bytes of a request, so that equal requests get equal replies."""

    def __init__(self, *parts: bytes) -> None:
        self.digest = hashlib.sha256(b"\0".join(parts)).digest()
        """Equal for equal requests."""

    def ulid(self, label: str) -> str:
        """Return the id for a label.

        >>> seed, other = RequestSeed(b"a"), RequestSeed(b"b")
        >>> seed.ulid("message") == RequestSeed(b"a").ulid("message") != other.ulid("message")
        True
        """
        digest = hashlib.sha256(self.digest + label.encode()).digest()
        return int_to_ulid(int.from_bytes(digest[:_ID_BYTES], "big"))


class RequestTraits(Struct, frozen=True, kw_only=True):
    """The settings of a request in keys of its protocol that have no canonical option."""

    thinking: Thinking = "none"
    include_signature: bool = True
    """Whether thinking that is shown has its signature."""
    include_usage: bool = True
    """Whether a stream reports its usage."""


class SimulatedCall(Struct, frozen=True, kw_only=True):
    """A decoded request, with the values that composing and encoding a reply need."""

    endpoint: Endpoint
    seed: RequestSeed
    request: CanonicalRequest
    traits: RequestTraits
    context: RequestContext
    is_stream: bool

    @property
    def adapter(self) -> Adapter:
        """The adapter of the simulated provider."""
        return self.endpoint.adapter

    def input_tokens(self) -> int:
        """Estimate the input tokens."""
        return self.adapter.estimate_input_tokens(self.request.messages, self.request.tools)


def decode_call(
    http_request: HttpRequest,
    match: EndpointMatch,
    seed: RequestSeed,
    settings: Settings,
    signer: ThinkingSigner,
) -> SimulatedCall:
    """Decode a request.

    Raises:
        ProviderError: the provider would refuse the request with this error.
    """
    endpoint = match.endpoint
    _require_key(http_request, endpoint, settings.key)
    if len(http_request.body) > endpoint.max_body_bytes:
        raise ContextOverflowError("Request exceeds the maximum size", status=413)
    body = read_object(http_request.body, "request")
    model = match.model or str(body.get("model") or "")
    protocol = endpoint.codec.protocol
    # Token counts accept incomplete requests, such as one without `max_tokens`.
    if settings.strict and match.action != "count":
        checked, headers = body, http_request.headers
        if protocol == "anthropic" and match.model is not None:
            # Bedrock and Vertex read the model from the path and the version from the body.
            checked = {**body, "model": model}
            headers = {**headers, "anthropic-version": str(checked.pop("anthropic_version", ""))}
        CHECKS[protocol](checked, CheckContext(signer=signer, headers=headers, model=model))
    if settings.models is not None and model not in settings.models:
        raise InvalidRequestError(f"model: {model}", status=404, code="model_not_found")
    adapter = endpoint.adapter
    request_context = RequestContext(
        session_id=f"sess_{seed.ulid('session')}",
        model=f"{adapter.name}:{simulated_name(model)}",
        provider=adapter.name,
        created_at=_CREATED_AT,
    )
    # Gemini's countTokens may have the request to count in another object.
    conversation = maybe_object(body.get("generateContentRequest")) or http_request.body
    request = adapter.from_wire_request(conversation, replace(request_context, model=model))
    call = SimulatedCall(
        endpoint=endpoint,
        seed=seed,
        request=request,
        traits=_traits(protocol, body, model, request.options),
        context=request_context,
        is_stream=match.action == "stream"
        or body.get("stream", endpoint.streams_by_default) is True,
    )
    if match.action != "count":
        _require_fit(call, settings.window_tokens)
    return call


def _require_key(http_request: HttpRequest, endpoint: Endpoint, key: str | None) -> None:
    if key is None:
        return
    required = endpoint.adapter.profile.auth.headers(key)
    if any(http_request.headers.get(name.lower()) != value for name, value in required.items()):
        raise AuthenticationError("invalid api key", status=401)


def _require_fit(call: SimulatedCall, window: int | None) -> None:
    if window is not None and (tokens := call.input_tokens()) > window:
        wording = call.endpoint.codec.overflow.counted
        text = wording.format(tokens=tokens, limit=window, excess=tokens - window)
        raise ContextOverflowError(text, status=400)


def _traits(protocol: str, body: Wire, model: str, options: AdapterOptions) -> RequestTraits:
    """Return how the response is to be sent, which each protocol requests by different keys."""
    thinks = options.reasoning is not None and not options.reasoning.is_off
    match protocol:
        case "openai_chat":
            # OpenAI counts thinking and never sends it; other hosts of the protocol send it.
            keys = body.get("reasoning") or body.get("include_reasoning")
            is_shown = "reasoner" in model or bool(keys)
            stream_options = maybe_object(body.get("stream_options"))
            return RequestTraits(
                thinking="shown" if is_shown else "hidden" if thinks else "none",
                include_usage=not body.get("stream") or stream_options.get("include_usage") is True,
            )
        case "openai_responses":
            is_sealed = "reasoning.encrypted_content" in maybe_list(body.get("include"))
            thinking: Thinking = "none"
            # The text of thinking is sent as a summary only; the thinking itself is encrypted.
            if maybe_object(body.get("reasoning")).get("summary"):
                thinking = "shown"
            elif thinks:
                thinking = "sealed" if is_sealed else "hidden"
            return RequestTraits(thinking=thinking, include_signature=is_sealed)
        case "gemini":
            # The API accepts camelCase and snake_case keys alike.
            config = maybe_object(_first_value(body, "generationConfig", "generation_config"))
            thinking_config = _first_value(config, "thinkingConfig", "thinking_config")
            keys = ("includeThoughts", "include_thoughts")
            is_shown = _first_value(maybe_object(thinking_config), *keys)
            return RequestTraits(thinking="shown" if is_shown else "none")
        case _:
            return RequestTraits(thinking="shown" if thinks else "none")


def _first_value(body: Wire, *keys: str) -> Any:
    return next((body[key] for key in keys if body.get(key)), None)
