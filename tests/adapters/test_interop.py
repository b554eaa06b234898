"""Provider-switch failures (rows T…): one test for each way in which a conversation can break."""

import json
from typing import Any

import pytest

from build import user
from metis import adapters
from metis.canonical import decode, encode
from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire

CONTEXT = RequestContext(session_id="sess_interop")
GEMINI = adapters.get("gemini")


def answered(*parts: Any, reason: str = "STOP") -> Message:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": reason}
    body: Any = {"candidates": [candidate], "modelVersion": "gemini-3.5-flash"}
    return decode(encode(GEMINI.from_wire_response(body, CONTEXT)))


def streamed(*chunks: dict[str, Any]) -> Message:
    decoder = GEMINI.stream_decoder(CONTEXT)
    for chunk in chunks:
        decoder.feed(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n")
    decoder.finish()
    return decoder.message


def parts_sent(message: Message) -> list[Any]:
    body = json.loads(GEMINI.to_wire([user("go"), message, user("on")]).body)
    return body["contents"][1]["parts"]


CALL: Wire = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"}


@pytest.mark.row("T58")
def test_signature_is_sent_back_once_in_its_part() -> None:
    message = answered({"text": "I look."}, CALL)
    parts = parts_sent(message)
    assert [part.get("thoughtSignature") for part in parts] == [None, "c2ln"]


@pytest.mark.row("T59")
@pytest.mark.parametrize("text", ["", "done"])
def test_signed_text_is_sent_even_if_empty(text: str) -> None:
    signed = {"text": text, "thoughtSignature": "c2ln"}
    message = answered({"text": "so", "thought": True}, {"text": "yes"}, signed)
    thoughts = [block.text for block in message.content if isinstance(block, ThinkingBlock)]
    assert "so" in thoughts
    assert "yes" not in thoughts
    joined_text = "".join(block.text for block in message.content if isinstance(block, TextBlock))
    assert joined_text == "yes" + text
    assert parts_sent(message)[-1] == signed


@pytest.mark.row("T59")
def test_a_signature_in_the_last_chunk_is_kept() -> None:
    def chunk(part: dict[str, Any], **keys: Any) -> dict[str, Any]:
        content = {"role": "model", "parts": [part]}
        return {"candidates": [{"content": content, **keys}], "modelVersion": "gemini-3.5-flash"}

    last = chunk({"text": "", "thoughtSignature": "c2ln"}, finishReason="STOP")
    message = streamed(chunk({"text": "yes"}), last)
    assert json.dumps(parts_sent(message)).count("c2ln") == 1


@pytest.mark.row("T167")
def test_blocked_prompt_gives_content_filter_stop() -> None:
    blocked: Any = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "m"}
    plain = GEMINI.from_wire_response(blocked, CONTEXT)
    for message in (plain, streamed(blocked)):
        assert message.metadata.stop_reason is StopReason.CONTENT_FILTER
        assert message.content == ()
    assert json.loads(GEMINI.to_wire_response(plain, CONTEXT)) == blocked


@pytest.mark.row("T134")
def test_stream_items_are_identified_by_index_not_id() -> None:
    decoder = adapters.get("openai-responses").stream_decoder(CONTEXT)
    part: Wire = {"type": "output_text", "text": "", "annotations": []}
    item: Wire = {
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }
    joined_text: Wire = {"type": "output_text", "text": "hello", "annotations": []}
    at: Wire = {"output_index": 0, "content_index": 0}
    response: Wire = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5",
        "output": [],
    }
    completed = {**item, "id": "msg_e", "status": "completed", "content": [joined_text]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "id": "msg_a"}},
        {"type": "response.content_part.added", "item_id": "msg_b", **at, "part": part},
        {"type": "response.output_text.delta", "item_id": "msg_c", **at, "delta": "hel"},
        {"type": "response.output_text.delta", "item_id": "msg_d", **at, "delta": "lo"},
        {"type": "response.output_item.done", "output_index": 0, "item": completed},
        {
            "type": "response.completed",
            "response": {**response, "status": "completed", "output": [completed]},
        },
    ]
    for number, event in enumerate(events):
        data = json.dumps({**event, "sequence_number": number})
        decoder.feed(f"event: {event['type']}\ndata: {data}\n\n".encode())
    decoder.finish()
    assert [block for block in decoder.message.content if isinstance(block, TextBlock)] == [
        TextBlock("hello")
    ]
    assert decoder.message.metadata.stop_reason is StopReason.END_TURN


@pytest.mark.row("T63")
def test_same_model_at_another_host_receives_no_sealed_parts() -> None:
    content: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "yes", "annotations": []}],
        },
    ]
    body: Any = {"id": "resp_1", "status": "completed", "model": "gpt-5", "output": content}
    message = adapters.get("openai-responses").from_wire_response(body, CONTEXT)
    turns = [user("go"), message, user("on")]
    assert b"sealed" in adapters.get("openai-responses").to_wire(turns).body
    away = adapters.get("azure-responses").to_wire(turns)
    assert b"sealed" not in away.body
    assert b"rs_1" not in away.body
    assert away.losses
