"""How long the event loop works without a pause while a session handles very large content.

A provider on loopback, in a thread of its own, sends 10 MB: as a plain response, as a stream, as
one delta, as the arguments of a call. For each the longest step of the loop is measured in CPU time
of its thread, so that other programs on the machine do not count. Above 100 ms other sessions of
the same process would wait noticeably.
"""

import asyncio
import json
import logging
import tempfile
import threading
import time
from asyncio.events import Handle
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from metis import adapters
from metis.canonical import Message, MetisError, encode
from metis.session import Metis, Options
from metis.transport import Keys, Retry, Transport
from metis.wire.call import RequestContext

SIZE = 10_000_000
LIMIT_MS = 100
MODEL = "anthropic:claude-sonnet-4-6"
_WORD = "word "


class LongestStep:
    """Measures every step of the event loop of this thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.name = ""
        self._thread = threading.get_ident()
        self._run = Handle._run  # noqa: SLF001 - asyncio has no other place to measure a step

    def __enter__(self) -> Self:
        run, thread, longest = self._run, self._thread, self

        def measured(self: Handle) -> None:
            if threading.get_ident() != thread:
                run(self)
                return
            start = time.thread_time()
            run(self)
            seconds = time.thread_time() - start
            if seconds > longest.seconds:
                longest.seconds, longest.name = seconds, repr(self)[:300]

        Handle._run = measured  # noqa: SLF001 - as above
        return self

    def __exit__(self, *_: object) -> None:
        Handle._run = self._run  # noqa: SLF001 - as above


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(event).encode()


def _stream(blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> list[bytes]:
    chunks = [_sse({"type": "message_start", "message": {"id": "m"}})]
    for index, (block, deltas) in enumerate(blocks):
        chunks.append(_sse({"type": "content_block_start", "index": index, "content_block": block}))
        chunks += [
            _sse({"type": "content_block_delta", "index": index, "delta": delta})
            for delta in deltas
        ]
        chunks.append(_sse({"type": "content_block_stop", "index": index}))
    chunks.append(_sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}))
    return [*chunks, _sse({"type": "message_stop"})]


def _text(size: int) -> dict[str, Any]:
    return {"type": "text_delta", "text": _WORD * (size // len(_WORD))}


_TEXT_BLOCK: dict[str, Any] = {"type": "text", "text": ""}
_CALL: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "no_such_tool", "input": {}}

STREAMS: dict[str, Callable[[], list[bytes]]] = {
    "stream of many deltas": lambda: _stream([(_TEXT_BLOCK, [_text(50)] * (SIZE // 150))]),
    "stream of one delta": lambda: _stream([(_TEXT_BLOCK, [_text(SIZE)])]),
    "stream of many blocks": lambda: _stream([(_TEXT_BLOCK, [_text(500)])] * 9_000),
    "tool result": lambda: _stream([({**_CALL, "name": "large_result"}, [])]),
    "stream of arguments": lambda: _stream(
        [
            (
                _CALL,
                [
                    {"type": "input_json_delta", "partial_json": piece}
                    for piece in ('{"a":"', *[_WORD * 200] * (SIZE // 1100), '"}')
                ],
            )
        ]
    ),
}


def large_result() -> str:
    """Return a very long text."""
    return _WORD * (SIZE // len(_WORD))


class Provider:
    """Sends a prepared stream once, then a short answer; it runs in a thread of its own."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        """Run the server until the process ends."""
        self._thread.start()
        self._ready.wait()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        chunks, self.chunks = self.chunks, []
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks or _stream([(_TEXT_BLOCK, [_text(50)])]):
            await response.write(chunk)
        return response


async def _turns(provider: Provider, folder: Path) -> AsyncGenerator[tuple[str, LongestStep]]:
    options = Options(
        base_urls={"anthropic": provider.url},
        keys={"anthropic": "k"},
        retry=Retry(attempts=1),
        tools=[large_result],
    )
    async with Metis(f"sqlite:///{folder / 'metis.db'}", options) as library:
        for name, chunks_of in STREAMS.items():
            session = await library.session(model=MODEL)
            for prompt, chunks in (("hello", chunks_of()), ("again", [])):
                provider.chunks = chunks
                with LongestStep() as step, suppress(MetisError):
                    async for _ in session.send(prompt):
                        pass
                yield f"{name}, {'first turn' if chunks else 'the turn after'}", step
        messages: list[Message] = []
        for record in await library.sessions():
            with LongestStep() as step:
                messages = await library.store.messages(record.id)
            size = sum(len(encode(message)) for message in messages)
            yield f"reading a session of {size / 1e6:.0f} MB", step
    async with Transport(keys=Keys({"anthropic": "k"}), retry=Retry(attempts=1)) as transport:
        adapter = adapters.get("anthropic", base_url=provider.url)
        request = adapter.to_wire(messages[:1])
        for name, block in {"text": _text(SIZE), "blocks": {"text": _WORD * 200}}.items():
            blocks = [{**block, "type": "text"}] * (1 if name == "text" else SIZE // 1100)
            body = {"id": "m", "type": "message", "role": "assistant", "content": blocks}
            provider.chunks = [json.dumps(body).encode()]
            with LongestStep() as step:
                await transport.complete(adapter, request, RequestContext(session_id="s"))
            yield f"plain response of {name}", step


async def main() -> None:
    """Print the longest step of each case."""
    logging.disable()
    provider = Provider()
    provider.start()
    with tempfile.TemporaryDirectory() as folder:
        async for name, step in _turns(provider, Path(folder)):
            mark = "" if step.seconds * 1000 <= LIMIT_MS else f"  over {LIMIT_MS} ms: {step.name}"
            print(f"{name:<44}{step.seconds * 1000:>8.1f} ms{mark}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
