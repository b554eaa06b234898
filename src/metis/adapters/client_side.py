"""The server side of an adapter: it stands in for a provider towards clients of its protocol.

Requests of clients are decoded, and responses are encoded as the provider would have sent them.
"""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from metis.adapters.client_features import client_betas
from metis.adapters.codecs import CODECS, AwsFrameEncoder, body_bytes
from metis.adapters.declared_tools import response_context
from metis.adapters.hosts import find_profile
from metis.adapters.profile import Profile
from metis.adapters.response_encoder import (
    ClientStreamEncoder,
    log_losses,
    report_seals,
    response_for_client,
)
from metis.adapters.seals import ClientSeals, restore_seals, seal_keys
from metis.adapters.think_tags import ThinkTagEncoder, join_think_tags, split_think_tags
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    LimitError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.message import Message
from metis.projection import are_identical
from metis.streaming import StreamEvent
from metis.wire.call import CanonicalRequest, RequestContext, ServedResponse
from metis.wire.codec import StreamEncoder
from metis.wire.errors import NOT_FOUND
from metis.wire.original_form import has_foreign_form

_ERROR_CLASSES: Final[tuple[type[ProviderError], ...]] = (
    RateLimitError,
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    ServerError,
)
_OPENAI_PROTOCOLS: Final = ("openai_chat", "openai_responses")
# The status of Anthropic for an overloaded server.
_OVERLOADED: Final = 529


class ClientSide:
    """Decodes requests of clients that speak a provider's protocol, and encodes responses."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.name = profile.name
        self._codec = CODECS[profile.protocol]
        self._default_seals = ClientSeals(profile, RequestContext(session_id="usual"))

    def from_wire_request(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> CanonicalRequest:
        """Return the canonical request of a client that speaks this provider's protocol."""
        context = self.complete_context(context)
        try:
            request = self._codec.decode_request(body_bytes(body), context)
        except RecursionError:
            raise LimitError("the request is nested too deeply") from None
        messages = self.client_messages(request.messages, context)
        if not are_identical(messages, request.messages):
            request = replace(request, messages=messages)
        return self.with_client_options(request, context)

    def client_messages(
        self, messages: Sequence[Message], context: RequestContext
    ) -> tuple[Message, ...]:
        """Return decoded messages with thinking between tags as blocks, and envelopes opened."""
        if self.profile.tags_thinking:
            messages = [split_think_tags(message, self.name) for message in messages]
        return self._client_seals(context).open_all(messages)

    def _client_seals(self, context: RequestContext) -> ClientSeals:
        # Needed for each request and response, and the same for nearly all clients.
        is_default = context.issuer is None and context.on_seals is None
        return self._default_seals if is_default else ClientSeals(self.profile, context)

    def with_client_options(
        self, request: CanonicalRequest, context: RequestContext
    ) -> CanonicalRequest:
        """Return a decoded request with the options of its path, stored seals, and its origin."""
        if self.profile.path_options:
            request = self._with_path_options(request, context)
        if context.find_seals is not None and (keys := seal_keys(request)):
            request = restore_seals(request, context.find_seals(keys))
        options = replace(request.options, origin=self.name)
        if self.profile.has_betas:
            native = options.native.get(self.profile.protocol, {})
            options = replace(options, betas=client_betas(context, native))
        return replace(request, options=options)

    def _with_path_options(
        self, request: CanonicalRequest, context: RequestContext
    ) -> CanonicalRequest:
        # Without a path, as in a recorded body, only the context can name the model.
        options, parsed = request.options, self.profile.parse_path(context.path or "")
        if parsed is None:
            stated: dict[str, Any] = {"model": options.model or context.model}
        else:
            stated = {"model": parsed[0], "stream": parsed[1]}
        changes = {name: stated[name] for name in self.profile.path_options if name in stated}
        return replace(request, options=replace(options, **changes))

    def response_context(
        self, request: CanonicalRequest, context: RequestContext | None = None
    ) -> RequestContext:
        """Return the context to encode the response to a client's request with.

        It has the tools as the client declared them, the requested model, and whether the stream
        states the usage. Its `tools` are the functions that another provider gets.
        """
        return response_context(request, self.complete_context(context), self.profile.protocol)

    def to_wire_response(self, message: Message, context: RequestContext | None = None) -> bytes:
        """Return the response body with which this provider would have sent the message."""
        served = self.encode_response(message, context)
        log_losses(served.losses)
        return served.body

    def encode_response(
        self, message: Message, context: RequestContext | None = None
    ) -> ServedResponse:
        """Return the body of `to_wire_response` with its losses, without logging them."""
        is_foreign = has_foreign_form(message, self.profile.protocol, self.name)
        if self.profile.tags_thinking and not is_foreign:
            message = join_think_tags(message)
        context = self.complete_context(context)
        report_seals(message, self.profile, context)
        client_seals = self._client_seals(context)
        message, losses = response_for_client(message, self.profile, client_seals)
        body = self._codec.encode_response(message, context)
        return ServedResponse(body, losses)

    def encode_error(self, error: ProviderError) -> tuple[int, bytes]:
        """Return the status and the body with which this provider would report an error."""
        return self._codec.encode_error(error_for_client(error, self.profile))

    def stream_encoder(self, context: RequestContext | None = None) -> StreamEncoder:
        """Return an encoder that writes events as this provider streams them."""
        context = self.complete_context(context)
        encoder = self._codec.stream_encoder(context)
        if self.profile.tags_thinking:
            encoder = ThinkTagEncoder(encoder, self.name)
        if self.profile.aws_framed:
            encoder = AwsFrameEncoder(encoder, self._codec)
        return ClientStreamEncoder(encoder, self.profile, self._client_seals(context), context)

    async def stream_to_wire(
        self, events: AsyncIterable[StreamEvent], context: RequestContext | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of a streamed response as its events arrive."""
        encoder = self.stream_encoder(context)
        async for event in events:
            data = encoder.encode(event)
            if data:
                yield data
        data = encoder.finish()
        if data:
            yield data

    def complete_context(self, context: RequestContext | None) -> RequestContext:
        """Return a context that names the provider."""
        context = context or RequestContext()
        return context if context.provider else replace(context, provider=self.name)


def error_for_client(error: ProviderError, profile: Profile) -> ProviderError:
    """Return an error as a client of a provider can read it.

    Of an error of another protocol only the class and the text are used: its types, codes and
    request ids mean nothing to the client, whose retries depend on those of its own protocol.
    """
    issuer = find_profile((error.provider or "").replace("_", "-"))
    protocol = error.provider if issuer is None else issuer.protocol
    is_openai = protocol in _OPENAI_PROTOCOLS and profile.protocol in _OPENAI_PROTOCOLS
    is_same = protocol == profile.protocol or is_openai
    # Hosts of one protocol share its error types, but each reports a full context window with
    # another text, which clients match.
    is_worded = not isinstance(error, ContextOverflowError) or error.provider == profile.name
    if protocol is None or (is_same and is_worded):
        return error
    kinds = (kind for kind in _ERROR_CLASSES if isinstance(error, kind))
    is_missing = isinstance(error, InvalidRequestError) and error.status == NOT_FOUND
    is_overload = isinstance(error, RateLimitError) and error.status == _OVERLOADED
    # Clients retry an overloaded server sooner than after a rate limit.
    status = error.status if is_missing or is_overload else None
    kind = next(kinds, OtherProviderError)
    return kind(error.text, status=status, retry_after_s=error.retry_after_s)
