"""Encode messages and errors as HTTP replies of the protocol that the client uses."""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.sim.endpoints import JSON_TYPE, Endpoint, HttpReply, HttpRequest, list_models
from metis.sim.faults import mid_stream_error
from metis.sim.model_output import stream_events
from metis.sim.request import RequestSeed, SimulatedCall
from metis.streaming import StreamError, StreamEvent
from metis.wire.json_access import read_object

LABEL_HEADERS = {"x-simulator": "metis"}
"""Sent with every reply, so that it cannot be mistaken for that of a real model."""

_encode = msgspec.json.Encoder().encode


def encode_message(call: SimulatedCall, message: Message, *, fails: bool) -> HttpReply:
    """Encode a message as one body or as a stream; with `fails` it ends in an error."""
    if call.is_stream:
        return _encode_stream(call, message, fails=fails)
    # Gateways send errors with status 200 (T189).
    if fails:
        _, body = call.adapter.encode_error(mid_stream_error())
    else:
        body = _encode_body(call, message)
    return _json_reply(call.endpoint, call.seed, body)


def _encode_body(call: SimulatedCall, message: Message) -> bytes:
    body = call.adapter.to_wire_response(message, call.context)
    if call.endpoint.adjust is None:
        return body
    decoded = read_object(body, "response")
    call.endpoint.adjust(decoded, message)
    return _encode(decoded)


def _encode_stream(call: SimulatedCall, message: Message, *, fails: bool) -> HttpReply:
    # Chat Completions sends usage in a stream only if `stream_options` requests it (T129).
    if not call.traits.include_usage:
        message = replace(message, metadata=replace(message.metadata, usage=None))
    encoder = call.adapter.stream_encoder(call.context)
    events = _failing_events(message) if fails else stream_events(message)
    chunks = [*[encoder.encode(event) for event in events], encoder.finish()]
    return HttpReply(
        headers=_headers(call.endpoint, call.seed, call.endpoint.stream_content_type),
        chunks=tuple(chunk for chunk in chunks if chunk),
        is_stream=True,
    )


def _failing_events(message: Message) -> Iterator[StreamEvent]:
    """Yield half of the events of a message, and then an error."""
    events = list(stream_events(message))
    yield from events[: len(events) // 2]
    error = mid_stream_error()
    yield StreamError(message.id, type(error).__name__, error.text)


def encode_error(error: ProviderError, endpoint: Endpoint, seed: RequestSeed) -> HttpReply:
    """Encode an error in the form of the provider, with its retry-after header."""
    error.provider = endpoint.adapter.name
    error.kind = error.kind or endpoint.error_kinds.get(error.status or 0)
    status, body = endpoint.adapter.encode_error(error)
    reply = _json_reply(endpoint, seed, body)
    if error.retry_after_s is None:
        return replace(reply, status=status)
    headers = {**reply.headers, "retry-after": f"{error.retry_after_s:g}"}
    return replace(reply, status=status, headers=headers)


def encode_token_count(call: SimulatedCall) -> HttpReply:
    """Encode the input tokens for the two protocols that count them."""
    is_anthropic = call.endpoint.codec.protocol == "anthropic"
    body = {"input_tokens" if is_anthropic else "totalTokens": call.input_tokens()}
    return _json_reply(call.endpoint, call.seed, _encode(body))


def encode_model_list(http_request: HttpRequest) -> HttpReply:
    """Encode the model list at a path; any other path is a 404."""
    is_get = http_request.method == "GET"
    body = list_models(http_request.path, http_request.headers) if is_get else None
    status = 200
    if body is None:
        status = 404
        text = f"the metis simulator serves nothing at {http_request.method} {http_request.path}"
        error = {"type": "not_found_error", "message": text, "code": status}
        body = {"type": "error", "error": error}
    headers = {"content-type": JSON_TYPE, **LABEL_HEADERS}
    return HttpReply(status=status, headers=headers, chunks=(_encode(body),))


def _json_reply(endpoint: Endpoint, seed: RequestSeed, body: bytes) -> HttpReply:
    return HttpReply(headers=_headers(endpoint, seed, JSON_TYPE), chunks=(body,))


def _headers(endpoint: Endpoint, seed: RequestSeed, content_type: str) -> dict[str, str]:
    request_id = f"req_{seed.ulid('request')}"
    return {"content-type": content_type, endpoint.request_id_header: request_id, **LABEL_HEADERS}
