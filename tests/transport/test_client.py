"""The HTTP client: errors, retries, keys, streams, timeouts and limits."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from build import user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import TextBlock
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    KeyFileError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ResponseLimitError,
    ServerError,
)
from metis.streaming import MessageComplete, StreamError, StreamEvent, TextDelta
from metis.transport import Keys, Limits, Retry, Transport
from metis.transport.retry import retry_after
from metis.wire.call import RequestContext, WireRequest

CANARY = "sk-canary-0123456789"
CONTEXT = RequestContext(session_id="sess_t", provider="anthropic")
ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 2},
}
START = b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1"}}\n\n'
OPEN = (
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
)
TEXT = (
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n'
)
END = (
    b'data: {"type":"content_block_stop","index":0}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    b'data: {"type":"message_stop"}\n\n'
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def serve(handler: Handler) -> AsyncGenerator[Adapter]:
    app = web.Application()
    app.router.add_post("/v1/messages", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield adapters.get("anthropic", base_url=f"http://127.0.0.1:{port}")
    finally:
        await runner.cleanup()


class RecordedSleep:
    """Records waits instead of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def request_of(adapter: Adapter) -> WireRequest:
    return adapter.to_wire([user("hi")])


def responses_in_order(*answers: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Handler:
    """Return the responses one after the other, then the last one repeatedly."""
    calls = iter(answers)
    current: list[Handler] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        current[:] = [next(calls, current[0] if current else answers[-1])]
        return await current[0](request)

    return handle


def json_response(status: int, body: object, **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body, status=status, headers=named)

    return answer


def error_response(status: int, kind: str, text: str = "no", **headers: str) -> Handler:
    return json_response(
        status, {"type": "error", "error": {"type": kind, "message": text}}, **headers
    )


def stream_response(*chunks: bytes, cut: bool = False) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if cut and request.transport is not None:
            await asyncio.sleep(0.01)
            request.transport.close()
        return response

    return answer


async def all_events(
    client: Transport, adapter: Adapter, request: WireRequest
) -> list[StreamEvent]:
    async with aclosing(client.stream(adapter, request, CONTEXT)) as events:
        return [event async for event in events]


async def test_plain_response() -> None:
    requests: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        return web.json_response(ANSWER)

    async with serve(handle) as adapter, Transport(keys=Keys({"anthropic": CANARY})) as client:
        message = await client.complete(adapter, request_of(adapter), CONTEXT)
    assert message.content == (TextBlock("hello"),)
    assert message.metadata.usage is not None
    assert requests[0].headers["x-api-key"] == CANARY
    assert requests[0].headers["anthropic-version"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error_response(401, "authentication_error"), AuthenticationError),
        (error_response(403, "permission_error"), AuthenticationError),
        (error_response(429, "rate_limit_error"), RateLimitError),
        (error_response(529, "overloaded_error"), RateLimitError),
        (error_response(500, "api_error"), ServerError),
        (error_response(400, "invalid_request_error"), InvalidRequestError),
        (error_response(413, "request_too_large"), ContextOverflowError),
        (json_response(502, "a page of a proxy"), ServerError),
    ],
)
@pytest.mark.row("T184")
async def test_every_failure_is_a_typed_error(
    answer: Handler, expected: type[ProviderError]
) -> None:
    pauses = RecordedSleep()
    async with serve(answer) as adapter, Transport(sleep=pauses) as client:
        request = request_of(adapter)
        with pytest.raises(expected):
            await client.complete(adapter, request, CONTEXT)
        with pytest.raises(expected):
            await all_events(client, adapter, request)
    assert len(pauses.seconds) == (4 if expected.is_retryable else 0)


async def test_transient_failure_is_retried_after_stated_delay() -> None:
    pauses = RecordedSleep()
    failures: list[tuple[str, int, float | None]] = []

    async def failed(error: ProviderError, attempt: int, delay: float | None) -> None:
        failures.append((type(error).__name__, attempt, delay))

    handler = responses_in_order(
        error_response(429, "rate_limit_error", retry_after="7"),
        error_response(500, "api_error"),
        json_response(200, ANSWER),
    )
    async with serve(handler) as adapter, Transport(sleep=pauses) as client:
        message = await client.complete(adapter, request_of(adapter), CONTEXT, failed)
    assert message.metadata.response_id == "msg_1"
    assert pauses.seconds[0] == 7
    assert 1.5 <= pauses.seconds[1] <= 2.5
    assert [(name, attempt) for name, attempt, _ in failures] == [
        ("RateLimitError", 1),
        ("ServerError", 2),
    ]


async def test_too_long_retry_delay_is_not_waited_for() -> None:
    handler = error_response(429, "rate_limit_error", retry_after="3600")
    async with serve(handler) as adapter, Transport(sleep=RecordedSleep()) as client:
        with pytest.raises(RateLimitError) as caught:
            await client.complete(adapter, request_of(adapter), CONTEXT)
    assert caught.value.retry_after_s == 3600


async def test_next_key_is_used_after_rate_limit() -> None:
    used: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        used.append(request.headers["x-api-key"])
        answer = (
            error_response(429, "rate_limit_error")
            if used[-1] == "one"
            else json_response(200, ANSWER)
        )
        return await answer(request)

    pauses = RecordedSleep()
    keys = Keys({"anthropic": ["one", "two"]})
    async with serve(handle) as adapter, Transport(keys=keys, sleep=pauses) as client:
        await client.complete(adapter, request_of(adapter), CONTEXT)
        await client.complete(adapter, request_of(adapter), CONTEXT)
    assert used == ["one", "two", "two"]
    assert pauses.seconds == [0.0]


async def test_a_stream() -> None:
    handler = stream_response(START, OPEN, TEXT[:20], TEXT[20:], END)
    async with serve(handler) as adapter, Transport() as client:
        events = await all_events(client, adapter, request_of(adapter))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["hi"]
    assert isinstance(events[-1], MessageComplete)


@pytest.mark.parametrize(
    "first",
    [
        stream_response(START, cut=True),
        stream_response(START, b'data: {"type":"error","error":{"type":"overloaded_error"}}\n\n'),
        error_response(529, "overloaded_error"),
    ],
)
@pytest.mark.row("T184")
async def test_stream_is_retried_before_first_event(first: Handler) -> None:
    handler = responses_in_order(first, stream_response(START, OPEN, TEXT, END))
    async with serve(handler) as adapter, Transport(sleep=RecordedSleep()) as client:
        events = await all_events(client, adapter, request_of(adapter))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["hi"]
    assert isinstance(events[-1], MessageComplete)


async def test_stream_is_never_retried_after_first_event() -> None:
    calls: list[int] = []
    broken = stream_response(START, OPEN, TEXT, cut=True)

    async def handle(request: web.Request) -> web.StreamResponse:
        calls.append(1)
        return await broken(request)

    async with serve(handle) as adapter, Transport(sleep=RecordedSleep()) as client:
        events = await all_events(client, adapter, request_of(adapter))
    assert calls == [1]
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["hi"]
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.message is not None
    assert last.message.content == (TextBlock("hi"),)


async def test_abandoned_stream_frees_the_connection() -> None:
    closed = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for chunk in (START, OPEN):
                await response.write(chunk)
            while True:
                await response.write(TEXT)
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    async with serve(handle) as adapter, Transport() as client:
        async with aclosing(client.stream(adapter, request_of(adapter), CONTEXT)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        await asyncio.wait_for(closed.wait(), 10)


async def test_refused_connection() -> None:
    adapter = adapters.get("anthropic", base_url="http://127.0.0.1:9")
    keys = Keys({"anthropic": CANARY})
    async with Transport(keys=keys, retry=Retry(attempts=1)) as client:
        with pytest.raises(NetworkError, match=r"no connection to 127\.0\.0\.1:9"):
            await client.complete(adapter, request_of(adapter), CONTEXT)
        with pytest.raises(NetworkError):
            await all_events(client, adapter, request_of(adapter))


async def test_endless_response_is_cut() -> None:
    limits = Limits(response_bytes=10)
    async with (
        serve(json_response(200, ANSWER)) as adapter,
        Transport(limits=limits, retry=Retry(attempts=1)) as client,
    ):
        with pytest.raises(ResponseLimitError, match="more than 10 bytes"):
            await client.complete(adapter, request_of(adapter), CONTEXT)


@pytest.mark.slow
async def test_silent_provider_times_out() -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.json_response(ANSWER)

    limits = Limits(silence_s=0.05)
    async with serve(handle) as adapter, Transport(limits=limits, sleep=RecordedSleep()) as client:
        with pytest.raises(NetworkError, match="in time"):
            await client.complete(adapter, request_of(adapter), CONTEXT)


async def test_key_is_never_shown(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    keys = Keys({"anthropic": CANARY})
    texts = [repr(keys)]
    for answer in (error_response(401, "authentication_error"), error_response(500, "api_error")):
        async with serve(answer) as adapter, Transport(keys=keys, sleep=RecordedSleep()) as client:
            with pytest.raises(ProviderError) as caught:
                await client.complete(adapter, request_of(adapter), CONTEXT)
            texts += [str(caught.value), repr(caught.value), repr(vars(caught.value))]
    broken = tmp_path / "keys.toml"
    broken.write_text(f"[keys\nanthropic = '{CANARY}'")
    broken.chmod(0o600)
    with pytest.raises(KeyFileError) as unread:
        Keys(environment={}, file=broken).lookup(adapters.get("anthropic").profile)
    texts.append(str(unread.value))
    assert CANARY not in "".join([*texts, caplog.text])


async def test_missing_key_error_explains_how_to_set_one() -> None:
    keys = Keys(environment={})
    handler = error_response(401, "authentication_error", "x-api-key header is required")
    async with serve(handler) as adapter, Transport(keys=keys) as client:
        with pytest.raises(AuthenticationError, match="set ANTHROPIC_API_KEY"):
            await client.complete(adapter, request_of(adapter), CONTEXT)


def test_keys_come_from_argument_environment_or_file(tmp_path: Path) -> None:
    profile = adapters.get("anthropic").profile
    file = tmp_path / "keys.toml"
    file.write_text('[keys]\nanthropic = ["f1", "f2"]\n')
    file.chmod(0o600)
    environment = {"ANTHROPIC_API_KEY": "e1, e2"}
    assert Keys({"anthropic": "p"}, environment=environment, file=file).lookup(profile)[0] == ["p"]
    assert Keys(environment=environment, file=file).lookup(profile)[0] == ["e1", "e2"]
    assert Keys(environment={}, file=file).lookup(profile) == (["f1", "f2"], str(file))
    assert Keys(environment={}).next(profile) is None


def test_world_readable_key_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys]\nanthropic = "f1"\n')
    file.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Keys(environment={}, file=file).lookup(adapters.get("anthropic").profile)


def test_rate_limited_key_is_used_again_later() -> None:
    moment = [0.0]
    keys = Keys({"anthropic": "a,b"}, now=lambda: moment[0])
    profile = adapters.get("anthropic").profile
    keys.mark_rate_limited("a", 10)
    assert keys.next(profile) == "b"
    keys.mark_rate_limited("b", 20)
    assert keys.next(profile) == "a"
    moment[0] = 11
    assert keys.next(profile) == "a"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
def test_retry_delay_of_provider_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
