"""Fuzz targets: one function of bytes per decoder, and the seeds from which inputs are made.

A target returns, or raises a MetisError. Every other exception is a fault.
"""

import base64
import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

import corpus
from exchange import handwritten
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, MetisError, decode, encode
from metis.streaming import (
    EventStreamParser,
    JsonArrayParser,
    MessageComplete,
    NdjsonParser,
    SseParser,
    StreamError,
    parse_arguments,
)
from metis.streaming.arguments import partial_arguments, split_joined_objects
from metis.wire.call import RequestContext

Target = Callable[[bytes], None]
CONTEXT = RequestContext(session_id="sess_fuzz", tools=("f", "look"))
PROTOCOLS = {
    "anthropic": "anthropic_messages",
    "bedrock": "anthropic_messages",
    "bedrock-converse": "bedrock_converse",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai-responses": "openai_responses",
    "openrouter": "openai_chat",
    "vllm": "openai_chat",
}
"""The providers whose decoders differ, and the files of recorded exchanges of their protocols."""
_CUTS = (1, 7, 4096)
_MAX_SEEDS = 60


def _check(message: Message, adapter: Adapter) -> None:
    """Store a message, read it again, and send it to a client and to the provider."""
    stored = decode(encode(message))
    assert encode(stored) == encode(message)
    adapter.to_wire_response(stored, CONTEXT)
    with contextlib.suppress(MetisError):
        adapter.to_wire([stored])


def read_request(adapter: Adapter, data: bytes) -> None:
    """Decode a request, store its messages, and encode it again."""
    request = adapter.from_wire_request(data, CONTEXT)
    messages = [decode(encode(message)) for message in request.messages]
    adapter.to_wire(messages, request.tools, request.options)


def read_response(adapter: Adapter, data: bytes) -> None:
    """Decode a plain response."""
    _check(adapter.from_wire_response(data, CONTEXT), adapter)


def read_stream(adapter: Adapter, data: bytes) -> None:
    """Decode a stream, cut in chunks of a size that the data determines; it ends exactly once."""
    size = _CUTS[len(data) % len(_CUTS)]
    decoder = adapter.stream_decoder(CONTEXT)
    events = [
        event
        for start in range(0, len(data), size)
        for event in decoder.feed(data[start : start + size])
    ]
    events += decoder.finish()
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert ends == events[-1:]
    _check(decoder.message, adapter)


def read_frames(data: bytes) -> None:
    """Split bytes by every framing."""
    for make in (SseParser, NdjsonParser, JsonArrayParser, EventStreamParser):
        parser = make()
        for start in range(0, len(data), 64):
            parser.feed(data[start : start + 64])
        parser.finish()


def read_arguments(data: bytes) -> None:
    """Parse the arguments of a call, whole and in part; the result can be written."""
    text = data.decode(errors="surrogatepass" if data.isascii() else "replace")
    msgspec.json.encode(parse_arguments(text)[0])
    msgspec.json.encode(partial_arguments(text))
    msgspec.json.encode(split_joined_objects(text))


def _adapter_targets() -> Iterator[tuple[str, Target]]:
    for name in PROTOCOLS:
        adapter = adapters.get(name)
        yield f"{name}-request", partial(read_request, adapter)
        yield f"{name}-response", partial(read_response, adapter)
        yield f"{name}-stream", partial(read_stream, adapter)


TARGETS: dict[str, Target] = {
    **dict(_adapter_targets()),
    "arguments": read_arguments,
    "frames": read_frames,
}


def seeds(name: str) -> list[bytes]:
    """Return inputs that a target reads without an error, from recorded exchanges."""
    provider, _, kind = name.rpartition("-")
    if kind == "arguments":
        return [b'{"path": "notes.txt", "n": [1, {"a": null}]}', b"{}{}", b'{"a":1}{"b":"\\ud800"}']
    protocol = PROTOCOLS.get(provider, "openai_chat")
    seeds_by_kind = {"request": _requests, "response": _responses, "stream": _streams}
    inputs = list(seeds_by_kind.get(kind, _streams)(protocol))
    step = max(1, len(inputs) // _MAX_SEEDS)
    return inputs[::step] or [b"{}"]


def _requests(protocol: str) -> Iterator[bytes]:
    for exchange in handwritten(protocol).values():
        if exchange.request is not None:
            yield corpus.body_of(exchange.request)
    for _, body in corpus.requests(protocol):
        yield corpus.body_of(body)


def _responses(protocol: str) -> Iterator[bytes]:
    for exchange in handwritten(protocol).values():
        if isinstance(exchange.response, dict):
            yield corpus.body_of(exchange.response)
    for recorded in corpus.responses(protocol):
        yield corpus.body_of(recorded["response"])


def _streams(protocol: str) -> Iterator[bytes]:
    for exchange in handwritten(protocol).values():
        if exchange.stream:
            yield exchange.stream_bytes()
    for recorded in corpus.exchanges(protocol):
        if recorded.get("raw_b64"):
            yield base64.b64decode(recorded["raw_b64"])
        elif recorded["sse"]:
            yield recorded["sse"].encode()
