"""The metis transport with the simulator: every adapter, every fault, whole conversations."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from build import NOW, SESSION, ulid
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import (
    ImageBlock,
    ImageSource,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import (
    AuthenticationError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.metadata import MessageStatus, StopReason
from metis.sim import Settings, Simulator
from metis.streaming import Accumulator, MessageComplete, StreamError, StreamEvent, TextDelta
from metis.transport import Retry, Transport
from metis.wire.call import AdapterOptions, RequestContext
from simulated import PROTOCOLS as FIRST
from simulated import TOOLS, png_base64

pytestmark = pytest.mark.anyio

PROTOCOLS = [*FIRST, "bedrock-converse"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sim() -> AsyncGenerator[Simulator]:
    async with Simulator(settings=Settings(chunk_bytes=7)) as simulator:
        yield simulator


class Exchange:
    """A conversation through one adapter, which can be swapped."""

    def __init__(self, sim: Simulator, transport: Transport) -> None:
        self._sim = sim
        self._transport = transport
        self.history: list[Message] = []

    def adapter(self, name: str) -> Adapter:
        return adapters.get(name, base_url=self._sim.base_url)

    def add(self, role: Role, *content: ContentBlock) -> None:
        self.history.append(
            Message(
                id=ulid(len(self.history) + 1),
                session_id=SESSION,
                role=role,
                content=content,
                created_at=NOW,
            )
        )

    async def complete(self, name: str, options: AdapterOptions | None = None) -> Message:
        adapter = self.adapter(name)
        request = adapter.to_wire(self.history, TOOLS, options or AdapterOptions())
        context = RequestContext(session_id=SESSION, provider=name)
        answer = await self._transport.complete(adapter, request, context)
        self.history.append(answer)
        return answer

    async def stream(self, name: str) -> list[StreamEvent]:
        adapter = self.adapter(name)
        request = adapter.to_wire(self.history, TOOLS, AdapterOptions(stream=True))
        context = RequestContext(session_id=SESSION, provider=name)
        return [e async for e in self._transport.stream(adapter, request, context)]

    def answer_calls(self) -> int:
        calls = [b for b in self.history[-1].content if isinstance(b, ToolUseBlock)]
        for call in calls:
            text = TextBlock(f"what {call.input} gives")
            self.add(Role.TOOL, ToolResultBlock(call.id, (text,)))
        return len(calls)


@pytest.fixture
async def talk(sim: Simulator) -> AsyncGenerator[Exchange]:
    async def at_once(_seconds: float) -> None:
        return

    async with Transport(sleep=at_once, retry=Retry(attempts=3)) as transport:
        yield Exchange(sim, transport)


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_conversation_with_tools(talk: Exchange, name: str) -> None:
    talk.add(Role.USER, TextBlock("Read a.txt and b.txt"))
    first = await talk.complete(name)
    assert first.metadata.stop_reason is StopReason.TOOL_USE
    assert talk.answer_calls() == 2
    second = await talk.complete(name)
    assert "a.txt" in text_of(second)
    assert "b.txt" in text_of(second)
    assert second.metadata.usage is not None
    assert second.metadata.usage.input_tokens > 0


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("prompt", ["hello", "Read a.txt and b.txt", "40 words"])
async def test_stream_gives_message_of_plain_response(
    talk: Exchange, name: str, prompt: str
) -> None:
    talk.add(Role.USER, TextBlock(prompt))
    events = await talk.stream(name)
    end = events[-1]
    assert isinstance(end, MessageComplete)
    total = Accumulator()
    for event in events:
        total.add(event)
    plain = await talk.complete(name)
    bare = [block for block in plain.content if isinstance(block, TextBlock)]
    assert [block for block in end.message.content if isinstance(block, TextBlock)] == bare
    assert [block for block in total.content if isinstance(block, TextBlock)] == bare
    assert end.stop_reason is plain.metadata.stop_reason
    streamed, unstreamed = end.message.metadata.usage, plain.metadata.usage
    assert streamed is not None
    assert unstreamed is not None
    assert streamed.output_tokens == unstreamed.output_tokens
    assert streamed.prompt_tokens == unstreamed.prompt_tokens


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_swap_during_conversation_is_accepted_by_every_provider(
    talk: Exchange, name: str
) -> None:
    image = ImageBlock(ImageSource("base64", png_base64()), "image/png")
    for other in PROTOCOLS:
        talk.add(Role.USER, image, TextBlock("Read a.txt and b.txt, my name is Ada."))
        await talk.complete(name)
        assert talk.answer_calls() == 2
        await talk.complete(other)
    talk.add(Role.USER, TextBlock("What is my name?"))
    assert text_of(await talk.complete(name)) == "Your name is Ada."


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("status", [429, 500, 529])
async def test_transient_errors_are_retried(
    talk: Exchange, sim: Simulator, name: str, status: int
) -> None:
    talk.add(Role.USER, TextBlock(f"say well, sim: {status} 1 x2"))
    answer = await talk.complete(name)
    assert text_of(answer)
    assert [reply.status for _, reply in sim.service.exchanges] == [status, status, 200]


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("sim: 401", AuthenticationError),
        ("sim: 400", InvalidRequestError),
        ("sim: 429 2", RateLimitError),
        ("sim: 500", ServerError),
        ("sim: cut", NetworkError),
        ("sim: error", ProviderError),
    ],
)
async def test_permanent_errors_are_typed(
    talk: Exchange, name: str, prompt: str, error: type[ProviderError]
) -> None:
    talk.add(Role.USER, TextBlock(prompt))
    with pytest.raises(error) as caught:
        await talk.complete(name)
    if prompt == "sim: 429 2":
        assert caught.value.retry_after_s == 2


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("prompt", ["40 words, sim: cut", "40 words, sim: error"])
async def test_truncated_stream_keeps_partial_content(
    talk: Exchange, name: str, prompt: str
) -> None:
    talk.add(Role.USER, TextBlock(prompt))
    events = await talk.stream(name)
    end = events[-1]
    assert isinstance(end, StreamError)
    assert end.message is not None
    assert end.message.metadata.status is MessageStatus.ERROR
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text
    assert text_of(end.message).startswith(text[:20])


@pytest.mark.parametrize("name", [n for n in PROTOCOLS if n not in ("gemini", "ollama")])
async def test_malformed_arguments_are_never_an_input(talk: Exchange, name: str) -> None:
    talk.add(Role.USER, TextBlock("sim: malformed"))
    events = await talk.stream(name)
    end = events[-1]
    assert isinstance(end, MessageComplete)
    call = next(block for block in end.message.content if isinstance(block, ToolUseBlock))
    assert call.invalid is not None
    assert (dict(call.input), call.invalid.raw) == ({}, '{"broken": tru')


@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
async def test_empty_and_slow_responses_are_accepted(talk: Exchange, name: str) -> None:
    talk.add(Role.USER, TextBlock("sim: empty"))
    assert isinstance((await talk.stream(name))[-1], MessageComplete)
    talk.history.clear()
    talk.add(Role.USER, TextBlock("say well, sim: slow 1"))
    assert isinstance((await talk.stream(name))[-1], MessageComplete)


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_max_tokens_is_respected(talk: Exchange, name: str) -> None:
    talk.add(Role.USER, TextBlock("100 words"))
    answer = await talk.complete(name, AdapterOptions(max_output_tokens=20))
    assert answer.metadata.stop_reason is StopReason.MAX_TOKENS
    assert answer.metadata.usage is not None
    assert answer.metadata.usage.output_tokens == 20


async def test_thinking_is_sent_back_with_its_signature(talk: Exchange) -> None:
    native: Any = {"anthropic": {"thinking": {"type": "adaptive"}, "max_tokens": 3000}}
    options = AdapterOptions(native=native, max_output_tokens=3000)
    talk.add(Role.USER, TextBlock("Read a.txt"))
    first = await talk.complete("anthropic", options)
    assert first.content[0].type == "thinking"
    assert talk.answer_calls() == 1
    second = await talk.complete("anthropic", options)
    assert second.content[0].type == "thinking"
