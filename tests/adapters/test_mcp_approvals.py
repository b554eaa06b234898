"""Approvals of remote MCP calls, an exchange of OpenAI Responses alone, over a whole conversation.

The model asks for an approval, the client answers it, the provider runs the call, and the user goes
on. Every request has the whole history, because a stateless client sends it.
"""

import json
from typing import Any

import pytest

from metis import adapters
from metis.adapters import AdapterOptions, RequestContext
from metis.canonical.metadata import StopReason
from metis.streaming import BlockAdded
from metis.verify.edits import edit_faults
from metis.verify.json_differences import differences
from metis.verify.served import read_stream, write_stream, written_stream_faults
from metis.verify.stable import stable_faults

Body = dict[str, Any]
CONTEXT = RequestContext(session_id="sess_approvals")
RESPONSES = adapters.get("openai-responses")
OTHERS = ["anthropic", "bedrock-converse", "gemini", "ollama", "openai"]
SERVER: Body = {
    "type": "mcp",
    "server_label": "dice",
    "server_url": "https://mcp.example/sse",
    "require_approval": "always",
}
LISTED: Body = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "dice",
    "tools": [{"name": "roll", "input_schema": {"type": "object"}, "annotations": None}],
    "error": None,
}
WANTED: Body = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "dice",
    "name": "roll",
    "arguments": '{"sides": 6}',
}
CALLED: Body = {
    "type": "mcp_call",
    "id": "mcp_1",
    "approval_request_id": "mcpr_1",
    "server_label": "dice",
    "name": "roll",
    "arguments": '{"sides": 6}',
    "output": "4",
    "error": None,
    "status": "completed",
}
MESSAGE_ITEM: Body = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "A four.", "annotations": [], "logprobs": []}],
}


def response(*output: Body) -> Body:
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5"}
    return {**head, "status": "completed", "output": [*output], "usage": usage}


def request(*items: Body, approve: bool = True) -> Body:
    answer: Body = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}
    answer |= {"approve": approve} if approve else {"approve": False, "reason": "not now"}
    history = [{"role": "user", "content": "Roll."}, LISTED, WANTED, answer, *items]
    return {"model": "gpt-5", "tools": [SERVER], "input": history}


@pytest.mark.parametrize("approve", [True, False])
def test_a_response_that_waits_for_an_approval_comes_back_with_its_answer(*, approve: bool) -> None:
    body = response(LISTED, WANTED)
    message = RESPONSES.from_wire_response(body, CONTEXT)
    # The provider waits for the client, which has no call of its own to answer.
    assert message.metadata.stop_reason is StopReason.PAUSE
    events = RESPONSES.response_events(message, CONTEXT)
    assert sum(type(event) is BlockAdded for event in events) == 2
    assert list(written_stream_faults(RESPONSES, CONTEXT, events)) == []
    wanted = request(approve=approve)
    read = RESPONSES.from_wire_request(wanted, CONTEXT)
    assert read.messages[1].content_digest() == message.content_digest()
    wire = RESPONSES.to_wire(read.messages, read.tools, read.options)
    assert (list(differences(wanted, json.loads(wire.body))), wire.losses) == ([], [])


def test_the_call_that_was_approved_stays_behind_its_approval() -> None:
    body = response(CALLED, MESSAGE_ITEM)
    message = RESPONSES.from_wire_response(body, CONTEXT)
    stream, _ = write_stream(RESPONSES, CONTEXT, RESPONSES.response_events(message, CONTEXT))
    assert b"approval_request_id" in stream
    end = read_stream(RESPONSES, CONTEXT, stream)[-1]
    assert end.type == "message_complete"
    whole = request(CALLED, MESSAGE_ITEM, {"role": "user", "content": "Again."})
    read = RESPONSES.from_wire_request(whole, CONTEXT)
    wire = RESPONSES.to_wire(read.messages, read.tools, read.options)
    assert (list(differences(whole, json.loads(wire.body))), wire.losses) == ([], [])
    assert list(edit_faults(RESPONSES, read.messages, read.tools, read.options)) == []
    assert list(stable_faults(RESPONSES, whole, [RESPONSES, *map(adapters.get, OTHERS)])) == []


@pytest.mark.parametrize("name", OTHERS)
def test_other_providers_get_the_text_and_losses_for_all_four_parts(name: str) -> None:
    whole = request(CALLED, MESSAGE_ITEM, {"role": "user", "content": "Again."})
    read = RESPONSES.from_wire_request(whole, CONTEXT)
    wire = adapters.get(name).preview(read.messages, read.tools, AdapterOptions())
    lost = [loss.path for loss in wire.losses if loss.block_type == "opaque"]
    assert lost == ["$.content[0]", "$.content[1]", "$.content[0]", "$.content[0]"]
    assert b"mcp" not in wire.body
    assert all(text in wire.body for text in (b"Roll.", b"A four.", b"Again."))


def test_an_answer_may_name_a_response_that_the_provider_stores() -> None:
    items = [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}]
    body = {"model": "gpt-5", "previous_response_id": "resp_1", "tools": [SERVER], "input": items}
    read = RESPONSES.from_wire_request(body, CONTEXT)
    wire = RESPONSES.to_wire(read.messages, read.tools, read.options)
    assert (list(differences(body, json.loads(wire.body))), wire.losses) == ([], [])
