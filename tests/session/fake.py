"""A scripted provider of three protocols on loopback."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from metis import adapters
from metis.adapters import Adapter
from metis.canonical import (
    ContentBlock,
    Message,
    MessageMetadata,
    Role,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
    new_ulid,
)
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.wire.call import CanonicalRequest, RequestContext

NAMES = {
    "/v1/messages": "anthropic",
    "/v1/chat/completions": "openai",
    "/v1/responses": "openai-responses",
}


class Say(Struct, frozen=True, kw_only=True):
    """One scripted response: blocks or an error; `events` cuts the stream after so many."""

    content: tuple[ContentBlock, ...] = ()
    stop_reason: StopReason | None = None
    input_tokens: int = 8
    output_tokens: int = 42
    status: int = 200
    error: str = ""
    events: int | None = None
    raw_arguments: str | None = None
    hang: bool = False
    pause_s: float = 0.0


def say(*content: ContentBlock | str, **fields: Any) -> Say:
    return Say(content=tuple(TextBlock(c) if isinstance(c, str) else c for c in content), **fields)


class Fake:
    """Answers from a script, then with `ok`; records the requests."""

    def __init__(self, *script: Say | Callable[[CanonicalRequest], Say]) -> None:
        self.script = list(script)
        self.requests: list[CanonicalRequest] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    @property
    def base_urls(self) -> dict[str, str]:
        return dict.fromkeys(NAMES.values(), self.url)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        adapter = adapters.get(NAMES[request.path])
        body = await request.read()
        self.bodies.append(msgspec.json.decode(body))
        self.headers.append({k.lower(): v for k, v in request.headers.items()})
        decoded_request = adapter.from_wire_request(body)
        self.requests.append(decoded_request)
        step = self.script.pop(0) if self.script else say("ok")
        step = step if isinstance(step, Say) else step(decoded_request)
        if step.status != 200:
            usual = "invalid_request_error" if step.status < 500 else "api_error"
            kind = "authentication_error" if step.status == 401 else usual
            error = {"type": kind, "message": step.error, "code": None}
            return web.json_response({"type": "error", "error": error}, status=step.status)
        message = _message(step, adapter)
        if not decoded_request.options.stream:
            return web.Response(body=adapter.to_wire_response(message))
        return await self._stream(request, step, message, adapter)

    async def _stream(
        self, request: web.Request, step: Say, message: Message, adapter: Adapter
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        context = RequestContext(provider=adapter.name, model=message.metadata.model)
        encoder = adapter.stream_encoder(context)
        for number, event in enumerate(_events(message, step)):
            if number == step.events:
                while step.hang and request.transport and not request.transport.is_closing():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)
                if request.transport is not None:
                    await asyncio.sleep(0.01)
                    request.transport.close()
                return response
            data = encoder.encode(event)
            if data:
                await response.write(data)
                await asyncio.sleep(step.pause_s)
        await response.write(encoder.finish())
        return response


@asynccontextmanager
async def serving(fake: Fake) -> AsyncGenerator[Fake]:
    app = web.Application(client_max_size=50_000_000)
    for path in NAMES:
        app.router.add_post(path, fake.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()


def _message(step: Say, adapter: Adapter) -> Message:
    from build import NOW  # noqa: PLC0415 - one value

    reason = step.stop_reason
    if reason is None:
        has_calls = any(isinstance(block, ToolUseBlock) for block in step.content)
        reason = StopReason.TOOL_USE if has_calls else StopReason.END_TURN
    return Message(
        id=new_ulid(),
        session_id="sess_fake",
        role=Role.ASSISTANT,
        content=step.content,
        created_at=NOW,
        metadata=MessageMetadata(
            model=f"{adapter.name}:{adapter.profile.default_model}",
            provider=adapter.name,
            stop_reason=reason,
            response_id=f"msg_{new_ulid()}",
            usage=Usage(
                input_tokens=step.input_tokens,
                output_tokens=step.output_tokens,
                cost_usd=Decimal(0),
                pricing_version="unpriced",
                latency_ms=0,
            ),
        ),
    )


def _events(message: Message, step: Say) -> Iterator[StreamEvent]:
    own, metadata = message.id, message.metadata
    yield MessageStart(own, metadata.model, metadata.response_id)
    if metadata.usage is not None:
        yield UsageUpdate(own, metadata.usage)
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                for word in block.text.split(" "):
                    yield TextDelta(own, index, word + " ")
            case ThinkingBlock():
                yield ThinkingDelta(own, index, block.text)
                yield ThinkingDelta(own, index, "", block.signature)
            case ToolUseBlock():
                yield ToolUseStart(own, index, block.id, block.name)
                raw = step.raw_arguments or msgspec.json.encode(block.input).decode()
                yield ToolUseInputDelta(own, index, block.id, raw[:4])
                yield ToolUseInputDelta(own, index, block.id, raw[4:])
                yield ToolUseEnd(own, index, block.id, block.input)
            case _:
                yield BlockAdded(own, index, block)
    yield MessageComplete(own, metadata.stop_reason or StopReason.END_TURN, message)
