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
from metis.wire.json_access import Wire, read_object

LABEL_HEADERS = {"x-simulator": "metis"}
"""The header by which every reply says that no real model has answered."""

_write = msgspec.json.Encoder().encode


def encode_message(call: SimulatedCall, message: Message, *, fails: bool) -> HttpReply:
    """The reply that brings a message, at once or as a stream; it may fail on the way."""
    if call.is_stream:
        return _stream(call, message, fails=fails)
    if fails:
        _, body = call.endpoint.codec.encode_error(mid_stream_error())
    else:
        body = _plain(call, message)
    return HttpReply(headers=_headers(call.endpoint, call.seed, JSON_TYPE), chunks=(body,))


def _plain(call: SimulatedCall, message: Message) -> bytes:
    body = call.adapter.to_wire_response(message, call.context)
    if call.endpoint.adjust is None:
        return body
    wire = read_object(body, "response")
    call.endpoint.adjust(wire, message)
    return _write(wire)


def _stream(call: SimulatedCall, message: Message, *, fails: bool) -> HttpReply:
    if not call.traits.include_usage:
        message = replace(message, metadata=replace(message.metadata, usage=None))
    encoder = call.adapter.stream_encoder(call.context)
    told = stream_events(message)
    written = [encoder.encode(event) for event in (_failing(told, message) if fails else told)]
    headers = _headers(call.endpoint, call.seed, call.endpoint.stream_content_type)
    pieces = tuple(piece for piece in (*written, encoder.finish()) if piece)
    return HttpReply(headers=headers, chunks=pieces, is_stream=True)


def _failing(told: Iterator[StreamEvent], message: Message) -> Iterator[StreamEvent]:
    """Half of the events, and then an error."""
    every = list(told)
    yield from every[: len(every) // 2]
    error = mid_stream_error()
    yield StreamError(message.id, type(error).__name__, error.text)


def encode_error(error: ProviderError, door: Endpoint, seed: RequestSeed) -> HttpReply:
    """An error in the shape of the provider, with the wait that it asks for."""
    error.provider = door.adapter.name
    error.kind = error.kind or door.error_kinds.get(error.status or 0)
    status, body = door.codec.encode_error(error)
    headers = _headers(door, seed, JSON_TYPE)
    if error.retry_after_s is not None:
        headers["retry-after"] = f"{error.retry_after_s:g}"
    return HttpReply(status=status, headers=headers, chunks=(body,))


def encode_token_count(call: SimulatedCall) -> HttpReply:
    """The tokens of a request, in the words of the two protocols that tell them."""
    is_anthropic = call.endpoint.codec.protocol == "anthropic"
    wire = {"input_tokens" if is_anthropic else "totalTokens": call.input_tokens()}
    return HttpReply(headers=_headers(call.endpoint, call.seed, JSON_TYPE), chunks=(_write(wire),))


def encode_model_list(asked: HttpRequest) -> HttpReply:
    """A list of models; for everything that nobody serves the word that it is not there."""
    found = list_models(asked.path, asked.headers) if asked.method == "GET" else None
    status = 404 if found is None else 200
    body = _write(_missing(asked) if found is None else found)
    return HttpReply(
        status=status, headers={"content-type": JSON_TYPE, **LABEL_HEADERS}, chunks=(body,)
    )


def _missing(asked: HttpRequest) -> Wire:
    text = f"the metis simulator serves nothing at {asked.method} {asked.path}"
    return {"type": "error", "error": {"type": "not_found_error", "message": text, "code": 404}}


def _headers(door: Endpoint, seed: RequestSeed, content_type: str) -> dict[str, str]:
    request_id = f"req_{seed.ulid('request')}"
    return {"content-type": content_type, door.request_id_header: request_id, **LABEL_HEADERS}
