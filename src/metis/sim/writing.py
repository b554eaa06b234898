"""Writing: messages and errors as replies of the protocol in which they were asked for."""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.sim.answer import events
from metis.sim.call import Call
from metis.sim.door import JSON_TYPE, Door
from metis.sim.mischief import broken
from metis.sim.models import listing
from metis.sim.reply import Asked, Reply
from metis.sim.seed import Seed
from metis.streaming import StreamError, StreamEvent
from metis.wire.shape import Wire, read_object

LABEL = {"x-simulator": "metis"}
"""The header by which every reply says that no real model has answered."""

_write = msgspec.json.Encoder().encode


def write_answer(call: Call, message: Message, *, fails: bool) -> Reply:
    """The reply that brings a message, at once or as a stream; it may fail on the way."""
    if call.is_stream:
        return _stream(call, message, fails=fails)
    if fails:
        _, body = call.door.codec.encode_error(broken())
    else:
        body = _plain(call, message)
    return Reply(headers=_headers(call.door, call.seed, JSON_TYPE), pieces=(body,))


def _plain(call: Call, message: Message) -> bytes:
    body = call.adapter.to_wire_response(message, call.context)
    if call.door.touch_up is None:
        return body
    wire = read_object(body, "response")
    call.door.touch_up(wire, message)
    return _write(wire)


def _stream(call: Call, message: Message, *, fails: bool) -> Reply:
    if not call.wish.usage:
        message = replace(message, metadata=replace(message.metadata, usage=None))
    encoder = call.adapter.stream_encoder(call.context)
    told = events(message)
    written = [encoder.encode(event) for event in (_failing(told, message) if fails else told)]
    headers = _headers(call.door, call.seed, call.door.stream_type)
    pieces = tuple(piece for piece in (*written, encoder.finish()) if piece)
    return Reply(headers=headers, pieces=pieces, is_stream=True)


def _failing(told: Iterator[StreamEvent], message: Message) -> Iterator[StreamEvent]:
    """Half of the events, and then an error."""
    every = list(told)
    yield from every[: len(every) // 2]
    error = broken()
    yield StreamError(message.id, type(error).__name__, error.text)


def write_failure(error: ProviderError, door: Door, seed: Seed) -> Reply:
    """An error in the shape of the provider, with the wait that it asks for."""
    error.provider = door.adapter.name
    error.kind = error.kind or door.kinds.get(error.status or 0)
    status, body = door.codec.encode_error(error)
    headers = _headers(door, seed, JSON_TYPE)
    if error.retry_after_s is not None:
        headers["retry-after"] = f"{error.retry_after_s:g}"
    return Reply(status=status, headers=headers, pieces=(body,))


def write_count(call: Call) -> Reply:
    """The tokens of a request, in the words of the two protocols that tell them."""
    is_anthropic = call.door.codec.protocol == "anthropic"
    wire = {"input_tokens" if is_anthropic else "totalTokens": call.input_tokens()}
    return Reply(headers=_headers(call.door, call.seed, JSON_TYPE), pieces=(_write(wire),))


def write_listing(asked: Asked) -> Reply:
    """A list of models; for everything that nobody serves the word that it is not there."""
    found = listing(asked.path, asked.headers) if asked.method == "GET" else None
    status = 404 if found is None else 200
    body = _write(_missing(asked) if found is None else found)
    return Reply(status=status, headers={"content-type": JSON_TYPE, **LABEL}, pieces=(body,))


def _missing(asked: Asked) -> Wire:
    text = f"the metis simulator serves nothing at {asked.method} {asked.path}"
    return {"type": "error", "error": {"type": "not_found_error", "message": text, "code": 404}}


def _headers(door: Door, seed: Seed, content_type: str) -> dict[str, str]:
    request_id = f"req_{seed.ulid('request')}"
    return {"content-type": content_type, door.request_id: request_id, **LABEL}
