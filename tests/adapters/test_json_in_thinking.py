"""Responses whose JSON answer is inside the thinking, with no text."""

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from build import user
from metis import adapters
from metis.canonical import TextBlock, ThinkingBlock
from metis.projection import Loss
from metis.streaming import MessageComplete, TextDelta
from metis.streaming.accumulator import Accumulator
from metis.wire.call import RequestContext
from metis.wire.output_format import OutputFormat

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
JSON = '{"city": "Bergen"}'
HOSTS = [("lmstudio", "reasoning_content"), ("azure", "reasoning_content"), ("vllm", "reasoning")]


def context(losses: list[Loss], output: OutputFormat | None = None) -> RequestContext:
    return RequestContext(
        session_id="sess_misplaced", output=output or OutputFormat(SCHEMA), on_loss=losses.append
    )


def body(key: str, thought: str, text: str | None = "") -> dict[str, Any]:
    message = {"role": "assistant", "content": text, key: thought}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "r", "object": "chat.completion", "model": "m", "choices": [choice]}


@pytest.mark.row("T118")
@pytest.mark.parametrize(("name", "key"), HOSTS)
def test_json_in_thinking_becomes_text_with_loss(
    name: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="metis.adapters")
    losses: list[Loss] = []
    message = adapters.get(name).from_wire_response(body(key, JSON), context(losses))
    assert [type(block) for block in message.content if block != TextBlock("")] == [
        ThinkingBlock,
        TextBlock,
    ]
    assert message.content[-1] == TextBlock(JSON)
    (loss,) = losses
    assert (loss.block_type, str(loss.change), loss.message_id) == (
        "thinking",
        "synthesised",
        message.id,
    )
    assert len(caplog.records) == 1
    assert "in the thinking" in caplog.text
    assert JSON.encode() not in caplog.text.encode()


@pytest.mark.row("T118")
@pytest.mark.parametrize("size", [1, 9, 100_000])
@pytest.mark.parametrize(("name", "key"), HOSTS)
def test_json_in_streamed_thinking_becomes_text(name: str, key: str, size: int) -> None:
    deltas = [{"role": "assistant", key: JSON[:5]}, {key: JSON[5:]}, {}]
    data = b"".join(
        b"data: %b\n\n"
        % json.dumps(
            {
                "id": "r",
                "object": "chat.completion.chunk",
                "model": "m",
                "choices": [
                    {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
                ],
            }
        ).encode()
        for delta in deltas
    )
    losses: list[Loss] = []
    decoder = adapters.get(name).stream_decoder(context(losses))
    data += b"data: [DONE]\n\n"
    events = [e for n in range(0, len(data), size) for e in decoder.feed(data[n : n + size])]
    events += decoder.finish()
    assert [event.text for event in events if isinstance(event, TextDelta)] == [JSON]
    end = events[-1]
    assert isinstance(end, MessageComplete)
    assert end.message.content[-1] == TextBlock(JSON)
    assert decoder.message.content == end.message.content
    accumulator = Accumulator()
    for event in events:
        accumulator.add(event)
    texts = [getattr(block, "text", None) for block in end.message.content]
    assert [getattr(block, "text", None) for block in accumulator.content] == texts
    assert len(losses) == 1


@pytest.mark.row("T118")
@pytest.mark.parametrize(
    ("thought", "text", "output"),
    [
        ("Let me see.", "", None),
        ('{"town": "Bergen"}', "", None),
        (JSON, "Bergen", None),
        ("[1]", "", OutputFormat()),
        (JSON, "", OutputFormat({"unevaluatedItems": False})),
    ],
)
def test_thinking_without_the_answer_stays_thinking(
    thought: str, text: str, output: OutputFormat | None
) -> None:
    losses: list[Loss] = []
    answer = body("reasoning_content", thought, text)
    request_context = context(losses, output)
    message = adapters.get("lmstudio").from_wire_response(answer, request_context)
    plain = adapters.get("lmstudio").from_wire_response(
        answer, replace(request_context, output=None)
    )
    assert message.content == plain.content
    assert losses == []


def test_next_request_has_the_answer_as_text() -> None:
    adapter = adapters.get("lmstudio")
    message = adapter.from_wire_response(body("reasoning_content", JSON), context([]))
    sent = json.loads(adapter.to_wire([user("hi"), message, user("on")]).body)
    assert sent["messages"][1]["content"] == JSON
