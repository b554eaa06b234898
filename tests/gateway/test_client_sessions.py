"""Histories are recognised when a client sends them again, across protocols."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from corpus import needs_corpus
from corpus import responses as recorded_responses
from metis import adapters
from metis.adapters import RequestContext
from metis.adapters.codecs import PROTOCOLS
from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.gateway.client_sessions import (
    ClientSession,
    Join,
    Joiner,
    client_session,
    empty_chain,
)
from metis.store.exchanges import HistoryEnd
from metis.verify.recordings import adapter_for

CONTEXT = RequestContext(session_id="sess_client", model="m")
CORPUS_NAMES = {"anthropic": "anthropic_messages"}
STEP = 9


def recorded(protocol: str) -> Iterator[Message]:
    adapter = adapters.get(adapter_for(protocol) or "")
    for exchange in list(recorded_responses(CORPUS_NAMES.get(protocol, protocol)))[::STEP]:
        try:
            message = adapter.from_wire_response(json.dumps(exchange["response"]).encode(), CONTEXT)
        except MetisError:
            continue
        if message.content:
            yield message


def next_request(protocol: str, response: Any) -> dict[str, Any]:
    """Return the request with which a client continues after a response."""
    match protocol:
        case "anthropic":
            history = [{"role": "assistant", "content": response["content"]}]
        case "openai_chat":
            history = [response["choices"][0]["message"]]
        case "openai_responses":
            history = response["output"]
        case "gemini":
            content = response["candidates"][0]["content"]
            prompt = {"role": "user", "parts": [{"text": "hi"}]}
            return {"contents": [prompt, content]}
        case "ollama":
            history = [response["message"]]
        case _:
            prompt = {"role": "user", "content": [{"text": "hi"}]}
            return {"messages": [prompt, response["output"]["message"]]}
    key = "input" if protocol == "openai_responses" else "messages"
    return {"model": "m", "max_tokens": 9, key: [{"role": "user", "content": "hi"}, *history]}


@needs_corpus
@pytest.mark.parametrize("provider", PROTOCOLS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_response_is_recognised_when_its_client_sends_it_back(
    provider: str, protocol: str
) -> None:
    client = adapters.get(adapter_for(protocol) or "")
    for message in recorded(provider):
        served = json.loads(client.encode_response(message, CONTEXT).body)
        if protocol == "ollama" and "message" not in served:
            continue  # the response of a completion
        body = json.dumps(next_request(protocol, served)).encode()
        prompt, *echo = client.from_wire_request(body, CONTEXT).messages
        chain = empty_chain().extended([prompt])
        assert chain.extended([message]).digests[-1] == chain.extended(echo).digests[-1]


def message(role: Role, *content: Any) -> Message:
    return Message(
        id="m", session_id="s", role=role, content=content, created_at=CONTEXT.created_at
    )


def digest(*messages: Message) -> str:
    return empty_chain().extended(messages).digests[-1]


def test_a_digest_ignores_what_clients_change() -> None:
    prompt = message(Role.USER, TextBlock("hi"))
    whole = message(Role.ASSISTANT, TextBlock("one\n\ntwo"))
    parts = message(Role.ASSISTANT, ThinkingBlock("hm"), TextBlock("one"), TextBlock("two "))
    first, second = (
        message(Role.ASSISTANT, TextBlock("one")),
        message(Role.ASSISTANT, TextBlock("two")),
    )
    assert digest(prompt, whole) == digest(prompt, parts) == digest(prompt, first, second)
    system = message(Role.SYSTEM, TextBlock("Today is Monday."))
    assert digest(system, prompt, whole) == digest(prompt, whole)
    # Before the first response another system prompt is another conversation.
    assert digest(system, prompt) != digest(prompt)


def test_a_digest_covers_roles_texts_and_calls() -> None:
    prompt = message(Role.USER, TextBlock("hi"))
    digests = {
        digest(prompt, message(Role.ASSISTANT, TextBlock("one"))),
        digest(prompt, message(Role.ASSISTANT, TextBlock("two"))),
        digest(prompt, message(Role.USER, TextBlock("one"))),
        digest(prompt, message(Role.ASSISTANT, ToolUseBlock("tu_1", "one", {}))),
        digest(prompt, message(Role.ASSISTANT, ToolUseBlock("tu_1", "one", {"a": 1}))),
        digest(message(Role.USER, TextBlock("hi"), TextBlock("three"))),
    }
    assert len(digests) == 6


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"user-agent": "curl"}, None),
        ({"x-claude-code-session-id": "s"}, ClientSession("s")),
        (
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
            ClientSession("s", "a"),
        ),
        ({"session-id": "s", "thread-id": "s"}, ClientSession("s")),
        ({"session-id": "s", "thread-id": "t"}, ClientSession("s", "t")),
        (
            {"x-session-id": "s", "x-parent-session-id": "p"},
            ClientSession("s", None, "p"),
        ),
        ({"x-session-id": " "}, None),
        ({"x-session-id": "s" * 1000}, ClientSession("s" * 256)),
    ],
)
def test_clients_name_their_sessions_in_headers(
    headers: dict[str, str], expected: ClientSession | None
) -> None:
    assert client_session(headers) == expected


class CountedEnds(dict[tuple[str, str], HistoryEnd]):
    """Counts look-ups of conversation ends."""

    lookups = 0

    def get(self, *parts: Any) -> Any:
        self.lookups += 1
        return super().get(*parts)


@pytest.mark.parametrize("sessions", [10, 5000])
def test_joining_does_constant_look_ups_for_any_number_of_sessions(sessions: int) -> None:
    joiner, ends = Joiner(), CountedEnds()
    joiner._ends = ends  # pyright: ignore[reportPrivateUsage] - its work is counted
    for number in range(sessions):
        end = HistoryEnd(f"sess_{number}", "m")
        joiner.add("tenant", digest(message(Role.USER, TextBlock(f"prompt {number}"))), end)
    history = [
        message(role, TextBlock(f"{turn}"))
        for turn in range(200)
        for role in (Role.USER, Role.ASSISTANT)
    ]
    known = joiner.chain(tuple(history))
    joiner.add("tenant", known.digests[-1], HistoryEnd("sess_long", "m"))
    later = (*history, message(Role.USER, TextBlock("more")))
    ends.lookups = 0
    length, found = joiner.longest(Join("tenant", "", joiner.chain(later)))
    assert length == 400
    assert found is not None
    assert found.session_id == "sess_long"
    assert ends.lookups == 2
