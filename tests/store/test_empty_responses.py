"""An empty response is stored, is not a complete message, and is never sent."""

import json
import logging
from typing import Any

import pytest

from build import user
from judged import RULES, request_faults
from metis import adapters
from metis.canonical import Message, MessageStatus, StopReason, new_ulid, validate
from metis.store import Store
from metis.wire.call import RequestContext

SESSION = "sess_42"
CHAT: dict[str, Any] = {"id": "c1", "object": "chat.completion", "created": 1, "model": "gpt-5"}
RESPONSE: dict[str, Any] = {"id": "r1", "object": "response", "created_at": 1, "model": "gpt-5"}
CLAUDE: dict[str, Any] = {"id": "m1", "type": "message", "role": "assistant", "model": "claude-x"}


def chat(reason: str, content: str | None) -> dict[str, Any]:
    texts = {"role": "assistant", "content": content}
    return CHAT | {"choices": [{"index": 0, "finish_reason": reason, "message": texts}]}


ANSWERS: dict[str, tuple[str, dict[str, Any], StopReason]] = {
    "anthropic, ended": (
        "anthropic",
        CLAUDE | {"content": [], "stop_reason": "end_turn"},
        StopReason.END_TURN,
    ),
    "anthropic, refused": (
        "anthropic",
        CLAUDE | {"content": [], "stop_reason": "refusal"},
        StopReason.REFUSAL,
    ),
    "gemini, blocked": (
        "gemini",
        {"candidates": [{"content": {"role": "model"}, "finishReason": "SAFETY"}]},
        StopReason.CONTENT_FILTER,
    ),
    "gemini, no candidate": (
        "gemini",
        {"promptFeedback": {"blockReason": "SAFETY"}},
        StopReason.CONTENT_FILTER,
    ),
    "ollama, ended": (
        "ollama",
        {"model": "m", "message": {"role": "assistant", "content": ""}, "done_reason": "stop"},
        StopReason.END_TURN,
    ),
    "openai, ended": ("openai", chat("stop", ""), StopReason.END_TURN),
    "openai, filtered": ("openai", chat("content_filter", None), StopReason.CONTENT_FILTER),
    "openai-responses, ended": (
        "openai-responses",
        RESPONSE | {"status": "completed", "output": []},
        StopReason.END_TURN,
    ),
    "openai-responses, all spent on thoughts": (
        "openai-responses",
        RESPONSE
        | {
            "status": "incomplete",
            "output": [],
            "incomplete_details": {"reason": "max_output_tokens"},
        },
        StopReason.MAX_TOKENS,
    ),
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def read(name: str) -> Message:
    adapter, body, _ = ANSWERS[name]
    context = RequestContext(session_id=SESSION, status=200)
    return adapters.get(adapter).from_wire_response(json.dumps(body).encode(), context)


@pytest.mark.row("M-123", "T166", "T169")
@pytest.mark.parametrize("name", ANSWERS)
def test_empty_response_has_stop_reason_and_is_valid(name: str) -> None:
    answer = read(name)
    assert answer.content == ()
    assert answer.metadata.stop_reason is ANSWERS[name][2]
    assert answer.metadata.status is MessageStatus.ERROR
    assert validate(answer) == []
    assert "M-123" not in {problem.rule for problem in validate(answer, "strict")}


@pytest.mark.anyio
@pytest.mark.row("M-123", "T166")
@pytest.mark.parametrize("name", ANSWERS)
async def test_empty_response_is_stored_and_next_request_is_valid(store: Store, name: str) -> None:
    await store.create_session(SESSION)
    request = await store.append(user("hi", id=new_ulid(), session_id=SESSION))
    entry = await store.append(read(name), renew_ids=True)
    stored = await store.messages(SESSION)
    assert stored == [request.message, entry.message]
    assert request_faults(stored) == {}
    assert await store.check() == []


@pytest.mark.row("T210")
@pytest.mark.parametrize("name", RULES)
def test_omitted_empty_response_is_a_loss(name: str) -> None:
    answer = read("anthropic, refused")
    wire = adapters.get(name).to_wire([user("hi"), answer, user("and now?")])
    assert [loss.message_id for loss in wire.losses if loss.change == "dropped"] == [answer.id]
