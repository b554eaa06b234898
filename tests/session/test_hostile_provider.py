"""A session with providers that misbehave: a typed error, a whole store, and a valid next turn."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from metis.canonical import MessageStatus, Role, TextBlock
from metis.canonical.errors import MetisError
from metis.session import Metis, Options, Session
from metis.transport import Retry
from session.faults import check_whole
from session.helpers import SONNET

pytestmark = pytest.mark.anyio
KEY = "sk-canary-0123456789abcdef"
START = (
    b'data: {"type":"message_start","message":{"id":"m"}}\n\n'
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'data: {"type":"content_block_delta","index":0,"delta":'
    b'{"type":"text_delta","text":"NOT safe"}}\n\n'
)
END = (
    b'data: {"type":"content_block_stop","index":0}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    b'data: {"type":"message_stop"}\n\n'
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def plain(status: int, body: bytes, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return handle


def stream(*chunks: bytes, raw: bytes = b"") -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        await asyncio.sleep(0.01)
        if raw and request.transport is not None:
            request.transport.write(raw)
            await asyncio.sleep(0.02)
            request.transport.close()
        return response

    return handle


def error(text: str, kind: str = "api_error") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": text}}).encode()


MISBEHAVIOURS: dict[str, Handler] = {
    "redirect": plain(307, b"", Location=f"http://me:{KEY}@127.0.0.1:9/"),
    "redirect to nowhere": plain(302, b""),
    "web page": plain(200, b"<html><title>Login</title>" + b"x" * 100_000),
    "web page of an error": plain(503, b"<html>Bad gateway"),
    "empty body": plain(200, b""),
    "not JSON": plain(200, b"\xff\xfe\x00oops"),
    "error body with success": plain(200, error("broken")),
    "error with the key": plain(400, error(f"bad key {KEY}")),
    "error with a part of the key": plain(401, error(f"bad key {KEY[3:]}", "authentication_error")),
    "oversized error": plain(500, b"x" * 1_000_000),
    "error that is no UTF-8": plain(400, b'{"error":{"message":"\xff\xfe"}}'),
    "error that is deeply nested": plain(400, b'{"error":' + b"[" * 20_000),
    "stream cut": stream(START, raw=b"\r\n"),
    "malformed chunk": stream(START, raw=b"zzzz\r\nnot a chunk\r\n"),
    "stream with bad UTF-8": stream(START, b'data: {"type":"x\xff\xfe"}\n\n', END),
    "stream with a page inside": stream(START, b"data: <html>\n\n", END),
    "stream with an error": stream(START, b"data: " + error(f"bad {KEY}") + b"\n\n"),
    "stream that ends early": stream(START),
    "stream of another protocol": stream(b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"),
}
WITH_TEXT = {name for name in MISBEHAVIOURS if name.startswith(("stream", "malformed"))} - {
    "stream of another protocol"
}


@asynccontextmanager
async def provider(misbehaviour: Handler) -> AsyncGenerator[tuple[str, list[int]]]:
    """Run a server that misbehaves on every request until it is healed by a negative count."""
    requests: list[int] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        if -1 in requests:
            return await stream(START, END)(request)
        requests.append(1)
        return await misbehaviour(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", requests
    finally:
        await runner.cleanup()


async def listen(session: Session, shown: list[Any]) -> None:
    async for event in session.send("is it safe?"):
        shown.append(event)  # noqa: PERF401 - those before an error count, too


@pytest.mark.parametrize("name", MISBEHAVIOURS)
async def test_a_session_survives_a_provider_that_misbehaves(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[Any] = []
    async with provider(MISBEHAVIOURS[name]) as (address, requests):
        options = Options(
            base_urls={"anthropic": address},
            keys={"anthropic": KEY},
            retry=Retry(attempts=2, first_s=0.001),
        )
        async with Metis(url, options) as library:
            session = await library.session(model=SONNET)
            with pytest.raises(MetisError) as caught:
                await listen(session, shown)
            if name in WITH_TEXT:
                assert len(requests) == 1
            requests.append(-1)
            answer = await session.ask("and now?")
            assert answer is not None
            assert answer.content == (TextBlock("NOT safe"),)
            stored = await library.store.messages(session.id)
            check_whole(stored)
            exported = b"".join(await library.store.export(session.id))
    partial = [
        message
        for message in stored
        if message.role is Role.ASSISTANT and message.metadata.status is MessageStatus.ERROR
    ]
    texts = [getattr(block, "text", "") for message in partial for block in message.content]
    assert texts == (["NOT safe"] if name in WITH_TEXT else [])
    everything = f"{caught.value!r} {vars(caught.value)} {shown!r} {caplog.text} {exported!r}"
    assert KEY[3:] not in everything
