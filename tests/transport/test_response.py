"""Endless and compressed bodies: limits count both sizes, and partial content is stored."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from build import user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, MessageStatus, TextBlock
from metis.canonical.errors import NetworkError, ResponseLimitError
from metis.streaming import MessageComplete, StreamError, StreamEvent, StreamLimits
from metis.transport import Limits, Retry, Transport
from metis.transport.response import LARGE_BYTES
from metis.wire.call import RequestContext

CONTEXT = RequestContext(session_id="sess_t", provider="anthropic")
HEAD = (
    b'data: {"type":"message_start","message":{"id":"msg_1","model":"m"}}\n\n'
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
)
TEXT = (
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}\n\n'
)
END = (
    b'data: {"type":"content_block_stop","index":0}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    b'data: {"type":"message_stop"}\n\n'
)
ONCE = Retry(attempts=1)
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Sender:
    """Sends chunks until the client disconnects, and counts them."""

    def __init__(self, chunks: Callable[[], AsyncIterator[bytes]], encoding: str = "") -> None:
        self.sent = 0
        self._chunks = chunks
        self._headers = {"Content-Encoding": encoding} if encoding else {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers)
        await response.prepare(request)
        try:
            async for chunk in self._chunks():
                await response.write(chunk)
                self.sent += len(chunk)
        except ConnectionError:
            pass
        return response


@asynccontextmanager
async def serve(sender: Sender, name: str = "anthropic") -> AsyncGenerator[Adapter]:
    app = web.Application()
    app.router.add_post("/{path:.*}", sender.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield adapters.get(name, base_url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def chunks_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def receive(sender: Sender, limits: StreamLimits = StreamLimits()) -> list[StreamEvent]:  # noqa: B008 - an immutable value
    async with (
        serve(sender) as adapter,
        Transport(limits=Limits(response=limits), retry=ONCE) as client,
    ):
        request = adapter.to_wire([user("hi")])
        return [event async for event in client.stream(adapter, request, CONTEXT)]


def text_of(event: StreamEvent) -> str:
    message = event.message if isinstance(event, MessageComplete | StreamError) else None
    assert message is not None
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def deflate_without_header(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


def gzip_in_two_members(data: bytes) -> bytes:
    return gzip.compress(data[:99]) + gzip.compress(data[99:])


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("", bytes),
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", deflate_without_header),
        ("gzip", gzip_in_two_members),
    ],
    ids=["plain", "identity", "gzip", "deflate", "deflate without header", "two members"],
)
async def test_compressed_stream_is_decoded_incrementally(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    data = compress(HEAD + TEXT % b"hi" + TEXT % (b"x" * 200_000) + END)
    pieces = [data[start : start + 50] for start in range(0, min(len(data), 2000), 50)]
    sender = Sender(lambda: chunks_of(*pieces, data[2000:]), encoding)
    events = await receive(sender)
    assert isinstance(events[-1], MessageComplete)
    assert text_of(events[-1]) == "hi" + "x" * 200_000


async def test_decompression_bomb_is_cut() -> None:
    bomb = gzip.compress(HEAD + TEXT % b"first" + TEXT % b"x" * 100_000)
    assert len(bomb) < 60_000
    events = await receive(
        Sender(lambda: chunks_of(bomb), "gzip"), StreamLimits(body_bytes=500_000)
    )
    end = events[-1]
    assert isinstance(end, StreamError)
    assert end.error_class == "ResponseLimitError"
    assert "500,000 bytes" in end.text
    assert not end.is_retryable
    assert text_of(end).startswith("firstx")
    assert len(text_of(end)) < 500_000
    assert end.message is not None
    assert end.message.metadata.status is MessageStatus.ERROR


@pytest.mark.parametrize("limit", ["received_bytes", "events", "text_bytes", "body_bytes"])
async def test_endless_stream_is_ended_and_not_read_further(limit: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield HEAD
        while True:
            yield TEXT % b"word " * 20

    sender = Sender(endless)
    events = await receive(sender, StreamLimits(**{limit: 20_000}))
    end = events[-1]
    assert isinstance(end, StreamError)
    assert end.error_class == "ResponseLimitError"
    assert "20,000" in end.text
    assert text_of(end).startswith("word word")
    # Bounded by what sockets buffer.
    assert sender.sent < 50_000_000


async def test_bytes_after_complete_response_are_not_read_endlessly() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield HEAD + TEXT % b"hi" + END
        while True:
            yield b": still here\n" * 1000

    sender = Sender(endless)
    events = await receive(sender)
    assert isinstance(events[-1], MessageComplete)
    assert text_of(events[-1]) == "hi"


@pytest.mark.parametrize(
    ("encoding", "data"),
    [("gzip", b"\x1f\x8b no gzip at all"), ("br", b"anything"), ("gzip, gzip", b"anything")],
)
async def test_a_body_that_cannot_be_decompressed_is_an_error(encoding: str, data: bytes) -> None:
    with pytest.raises(NetworkError, match="compressed"):
        await receive(Sender(lambda: chunks_of(data), encoding))


async def test_a_plain_body_is_decompressed_with_a_limit() -> None:
    bomb = gzip.compress(b'{"id":"msg_1","content":[]' + b" " * 5_000_000 + b"}")
    async with (
        serve(Sender(lambda: chunks_of(bomb), "gzip")) as adapter,
        Transport(limits=Limits(response_bytes=100_000), retry=ONCE) as client,
    ):
        with pytest.raises(ResponseLimitError, match="more than 100,000 bytes"):
            await client.complete(adapter, adapter.to_wire([user("hi")]), CONTEXT)


BODIES: dict[str, bytes] = {
    "anthropic": b'{"id":"m","type":"message","content":[{"type":"text","text":"%b"}]}',
    "openai": b'{"id":"m","choices":[{"index":0,"message":{"content":"%b"}}]}',
    "openai-responses": b'{"id":"m","output":[{"type":"message","role":"assistant",'
    b'"content":[{"type":"output_text","text":"%b"}]}]}',
    "gemini": b'{"candidates":[{"content":{"parts":[{"text":"%b"}]}}]}',
    "ollama": b'{"model":"m","message":{"role":"assistant","content":"%b"},"done":true}',
    "bedrock-converse": b'{"output":{"message":{"role":"assistant","content":[{"text":"%b"}]}}}',
}


@pytest.mark.parametrize("name", BODIES)
async def test_error_of_oversized_plain_response_has_partial_content(name: str) -> None:
    body = BODIES[name] % (b"word " * 4000)
    async with (
        serve(Sender(lambda: chunks_of(body)), name) as adapter,
        Transport(limits=Limits(response_bytes=10_000), retry=ONCE) as client,
    ):
        with pytest.raises(ResponseLimitError) as raised:
            await client.complete(adapter, adapter.to_wire([user("hi")]), CONTEXT)
    message = raised.value.message
    assert isinstance(message, Message)
    assert message.metadata.status is MessageStatus.ERROR
    (block,) = message.content
    assert isinstance(block, TextBlock)
    assert block.text.startswith("word word")
    assert len(block.text) > 9000


async def test_other_tasks_run_while_a_large_body_is_decompressed() -> None:
    """The loop runs between two pieces of 64 kB, however large one chunk is."""
    size = 4 * LARGE_BYTES
    bomb = gzip.compress(HEAD + b"".join([TEXT % b"word"] * (size // len(TEXT))) + END)
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    events = await receive(Sender(lambda: chunks_of(bomb), "gzip"))
    counting.cancel()
    assert isinstance(events[-1], MessageComplete)
    assert rounds > size // 65_536
