"""Messages that metis produces follow the base specification, with additional notes."""

from typing import Any

import pytest

import metis
from build import assistant, call, provenance, tool_id
from metis import adapters
from metis.canonical import Message, StopReason, new_tool_use_id, validate
from metis.session import Metis, Options
from session.fake import Fake, say, serving
from session.helpers import options

pytestmark = pytest.mark.anyio


def problems(message: Message) -> list[tuple[str, str]]:
    return [(problem.rule, problem.path) for problem in validate(message, "strict")]


@pytest.mark.row("M-146", "M-147", "M-148")
async def test_a_response_of_the_simulator_obeys_the_base_specification(url: str) -> None:
    async with metis.open(url, Options(simulate=True)) as m:
        session = await m.session(model="sonnet")
        await session.ask("say all is well")
        prompt, response = await m.store.messages(session.id)
    assert response.metadata.stop_reason is StopReason.END_TURN
    assert response.metadata.response_id
    assert [problems(prompt), problems(response)] == [[], []]


async def test_turns_with_tools_and_summaries_obey_the_base_specification(url: str) -> None:
    full = say(status=400, error="prompt is too long: 250000 tokens > 200000 maximum")
    reading = say("I'll read it.", call("read_file", new_tool_use_id(), path="README.md"))
    script = [reading, say("one"), full, say("the gist"), say("two")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("read it")
        await session.ask("go on")
        stored = await m.store.messages(session.id)
        summary = session.messages[0]
    assert stored[2].metadata.outcome is not None
    assert summary.metadata.origin is not None
    assert [problems(message) for message in [*stored, summary]] == [[]] * 7


@pytest.mark.parametrize(
    "name", ["anthropic", "openai", "openai-responses", "gemini", "bedrock-converse", "ollama"]
)
def test_a_message_that_is_joined_from_stream_events_obeys_the_base_specification(
    name: str,
) -> None:
    adapter = adapters.get(name)
    served = assistant("so", call("f", tool_id(1), a=1), metadata=provenance())
    encoder, decoder = adapter.stream_encoder(), adapter.stream_decoder()
    for event in adapter.response_events(served):
        decoder.feed(encoder.encode(event))
    decoder.feed(encoder.finish())
    decoder.finish()
    # A decoder does not know the route, which a session adds.
    assert problems(decoder.message) == [("M-147", "$.metadata.routing")]


RESPONSES: list[tuple[str, dict[str, Any]]] = [
    (
        "anthropic",
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "so"},
            ],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 2, "service_tier": "standard"},
        },
    ),
    (
        "openai-responses",
        {
            "id": "resp_1",
            "object": "response",
            "model": "m",
            "status": "completed",
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [
                        {
                            "type": "output_text",
                            "text": "so",
                            "annotations": [{"type": "url_citation", "url": "https://a.example"}],
                        }
                    ],
                },
            ],
            "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        },
    ),
]


@pytest.mark.parametrize(("name", "body"), RESPONSES)
def test_thinking_and_citations_of_a_response_are_notes(name: str, body: dict[str, Any]) -> None:
    response = adapters.get(name).from_wire_response(body)
    assert problems(response) == [("M-147", "$.metadata.routing")]
