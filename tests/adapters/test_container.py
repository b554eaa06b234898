"""Code-execution containers are reused until they expire, and only with their issuer."""

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from build import user
from corpus import STEP, exchanges, needs_corpus
from metis import adapters
from metis.adapters.tool_options import container_of
from metis.canonical import Message
from metis.canonical.codec import decode, encode
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.json_access import maybe_object

CONTEXT = RequestContext(session_id="sess_container")
NOW = CONTEXT.created_at
RUNS: dict[str, dict[str, Any]] = {
    "anthropic": {"tools": [{"type": "code_execution_20260120", "name": "code_execution"}]},
    "openai_responses": {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def claude(expires_in: timedelta = timedelta(minutes=5)) -> Message:
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [{"type": "text", "text": "Done."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "container": {"id": "container_01", "expires_at": (NOW + expires_in).isoformat()},
    }
    return decode(encode(adapters.get("anthropic").from_wire_response(body, CONTEXT)))


def gpt() -> Message:
    called = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "cntr_1",
        "code": "1",
        "status": "completed",
        "outputs": None,
    }
    body = {"id": "resp_1", "object": "response", "model": "gpt-5", "output": [called]}
    return decode(encode(adapters.get("openai-responses").from_wire_response(body, CONTEXT)))


def body_with(
    name: str, answer: Message, native: Any = None, *, later: timedelta = timedelta()
) -> Any:
    talk = [user("go"), answer, replace(user("more"), created_at=NOW + later)]
    options = AdapterOptions(native=RUNS if native is None else native)
    wire = adapters.get(name).to_wire(talk, (), options)
    losses = [(loss.path, str(loss.change)) for loss in wire.losses if loss.block_type == "option"]
    return json.loads(wire.body), losses


USED = ("$.container", "synthesised")


@pytest.mark.row("T199")
def test_container_of_last_response_is_reused() -> None:
    body, losses = body_with("anthropic", claude())
    assert body["container"] == "container_01"
    assert USED in losses
    body, losses = body_with("openai-responses", gpt())
    assert body["tools"] == [{"type": "code_interpreter", "container": "cntr_1"}]
    assert USED in losses


@pytest.mark.row("T199")
def test_expired_container_is_not_reused() -> None:
    body, losses = body_with("anthropic", claude(), later=timedelta(minutes=6))
    assert ("container" in body, USED in losses) == (False, False)
    body, losses = body_with("openai-responses", gpt(), later=timedelta(minutes=21))
    assert body["tools"][0]["container"] == {"type": "auto"}
    assert USED not in losses


@pytest.mark.row("T199")
def test_container_of_another_issuer_is_not_reused() -> None:
    body, _ = body_with("openai-responses", claude())
    assert body["tools"][0]["container"] == {"type": "auto"}
    body, _ = body_with("azure-responses", gpt())
    assert body["tools"][0]["container"] == {"type": "auto"}
    body, _ = body_with("anthropic", gpt())
    assert "container" not in body


@pytest.mark.row("T199")
def test_request_with_container_or_without_code_execution_is_unchanged() -> None:
    native = {"anthropic": {**RUNS["anthropic"], "container": "container_02"}}
    body, losses = body_with("anthropic", claude(), native)
    assert (body["container"], losses) == ("container_02", [])
    body, losses = body_with("anthropic", claude(), {"anthropic": {"metadata": {"user_id": "u"}}})
    assert ("container" in body, losses) == (False, [])
    files = {"type": "auto", "file_ids": ["file-1"]}
    native = {"openai_responses": {"tools": [{"type": "code_interpreter", "container": files}]}}
    body, _ = body_with("openai-responses", gpt(), native)
    assert body["tools"][0]["container"] == files


def test_unreadable_container_is_ignored() -> None:
    answer = claude()
    raw = {"anthropic": {"response": {"container": {"id": 1}}}}
    broken = replace(answer, metadata=replace(answer.metadata, provider_raw=raw))
    assert container_of(broken) is None
    assert container_of(user("hi")) is None


@needs_corpus
@pytest.mark.row("T199")
def test_chosen_container_equals_that_of_recorded_clients() -> None:
    answers: dict[str, Message] = {}
    count = 0
    for exchange in exchanges("anthropic_messages"):
        request = maybe_object(exchange["request"])
        before = answers.get(exchange.get("echo_of") or "")
        if before is not None and isinstance(request.get("container"), str):
            container = container_of(before)
            assert container is not None
            assert container.id == request["container"]
            count += 1
        answer = maybe_object(exchange["response"])
        if answer and exchange["status"] == 200:
            answers[exchange["id"]] = adapters.get("anthropic").from_wire_response(answer, CONTEXT)
    if STEP == 1:  # a part of the corpus may have none
        assert count > 0
