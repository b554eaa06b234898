"""Conversations through adapters and a store: stored, loaded and continued."""

import logging
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from build import (
    NOW,
    assistant,
    call,
    numbered,
    provenance,
    system,
    text,
    thinking,
    tool,
    tool_id,
    ulid,
    user,
)
from judges import complaints
from metis import adapters
from metis.canonical import Message, MessageMetadata, Role, StopReason, ToolUseBlock
from metis.canonical.ids import new_ulid
from metis.catalog import price, price_table
from metis.store import Policy, Store
from metis.store import open as open_store
from metis.store.entries import CompactionEntry, MessageEntry
from metis.store.replay import ResponseMetadata, fork_points, replay
from metis.store.threads import view
from metis.streaming import MessageComplete
from metis.wire.call import AdapterOptions, RequestContext
from test_laws import ADAPTERS, faults

pytestmark = pytest.mark.anyio
S = "sess_42"
CONTEXT = RequestContext(session_id=S, created_at=NOW)


def anthropic_answer(number: int) -> dict[str, Any]:
    thought = {"type": "thinking", "thinking": f"hm {number}", "signature": f"sig{number}"}
    called = {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {"n": number}}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [thought, {"type": "text", "text": f"turn {number}"}, called],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 3},
    }


def openai_answer(number: int) -> dict[str, Any]:
    function = {"name": "f", "arguments": f'{{"n": {number}}}'}
    spoken_texts = {
        "role": "assistant",
        "content": f"turn {number}",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": "gpt-5",
        "choices": [{"index": 0, "message": spoken_texts, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


ANSWERS = {"anthropic": anthropic_answer, "openai": openai_answer}


def calls_in(messages: list[Message]) -> list[str]:
    blocks = (block for message in messages for block in message.content)
    return [block.id for block in blocks if isinstance(block, ToolUseBlock)]


@pytest.mark.row("M-283")
@pytest.mark.parametrize("third", ["gemini", "openai-responses", "anthropic", "openai"])
async def test_conversation_of_two_providers_continues_with_a_third(third: str, url: str) -> None:
    async with open_store(url) as store:
        await store.create_session(S)
        conversation = [system("be brief", id=new_ulid())]
        await store.append(conversation[0])
        for number in range(6):
            name = ("anthropic", "openai")[number % 2]
            conversation.append(user(f"question {number}", id=new_ulid()))
            adapters.get(name).to_wire(conversation)
            answer = adapters.get(name).from_wire_response(ANSWERS[name](number), CONTEXT)
            (called,) = calls_in([answer])
            result = tool(f"result {number}", answers=called, id=new_ulid())
            conversation += [answer, result]
            for message in conversation[-3:]:
                await store.append(message)

    async with open_store(url) as store:
        read = await store.messages(S)
        assert [message.digest() for message in read] == [
            message.digest() for message in conversation
        ]
        assert read == conversation
        ids = calls_in(read)
        assert len(set(ids)) == 6
        assert {item.id for item in await store.tool_calls(S)} == set(ids)
        adapter = adapters.get(third)
        wire = adapter.to_wire([*read, user("and now?", id=new_ulid())])
        body = json.decode(wire.body)
        assert third in ADAPTERS
        assert (complaints(third, body), faults(third, body)) == ([], [])
        for number in range(6):
            assert f"result {number}" in wire.body.decode()
            assert f"turn {number}" in wire.body.decode()
        sent = adapter.from_wire_request(wire.body, CONTEXT).messages
        answered = [m.metadata.parent_tool_use_id for m in sent if m.role is Role.TOOL]
        assert answered == calls_in(list(sent))
        assert len(answered) == 6
        assert await store.check() == []


@pytest.mark.row("M-297")
async def test_summary_entry_is_viewed_as_one_message(store: Store) -> None:
    conversation = numbered(system("s"), user("a"), assistant("b"), user("c"), assistant("d"))
    await store.create_session(S)
    for message in conversation:
        await store.append(message)
    entry = CompactionEntry(
        id=new_ulid(),
        session_id=S,
        created_at=NOW,
        summary="a was said, and b",
        first_kept_id=conversation[3].id,
    )
    await store.record(entry)
    assert await store.messages(S) == conversation
    history = await store.history(S)
    assert [type(item) for item in history] == [MessageEntry] * 5 + [CompactionEntry]
    visible = view(history).messages
    assert [message.id for message in visible] == [
        conversation[0].id,
        entry.id,
        conversation[3].id,
        conversation[4].id,
    ]
    assert (visible[1].role, visible[1].content) == (Role.USER, (text("a was said, and b"),))
    assert visible[1].metadata.origin == "compaction"


@pytest.mark.row("M-298")
async def test_old_or_large_raw_parts_are_removed_and_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(number: int, size: int, days: int) -> Message:
        about = provenance(provider_raw={"anthropic": {"x": "y" * size}})
        created = NOW - timedelta(days=days)
        return assistant("a", id=ulid(number), metadata=about, created_at=created)

    old, large, stored = answer(1, 5, 40), answer(2, 500, 0), answer(3, 5, 0)
    await store.create_session(S)
    for message in (old, large, stored):
        await store.append(message)
    policy = Policy(raw_before=NOW - timedelta(days=30), raw_bytes=100)
    with caplog.at_level(logging.INFO, logger="metis.store"):
        outcome = await store.sweep(policy, is_dry_run=False)
    assert {item.message_id for item in outcome.evictions} == {old.id, large.id}
    assert old.id in caplog.text
    assert large.id in caplog.text
    assert stored.id not in caplog.text
    remaining = await store.messages(S)
    assert [message.metadata.provider_raw is None for message in remaining] == [True, True, False]
    assert [message.content for message in remaining] == [
        item.content for item in (old, large, stored)
    ]


@pytest.mark.row("K-126", "KX-15")
async def test_conversation_is_forked_before_each_prompt(store: Store) -> None:
    conversation = numbered(
        system("s"),
        user("a"),
        assistant("look", call("f", tool_id(7))),
        tool("42", answers=tool_id(7)),
        user("b"),
        assistant("c"),
        user("d"),
    )
    await store.create_session(S)
    for message in conversation:
        await store.append(message)
    positions = [
        conversation.index(m) for m in conversation if m.id in fork_points(await store.messages(S))
    ]
    assert positions == [1, 4, 6]
    for position in positions:
        copy = await store.fork(S, at=conversation[position - 1].id)
        copied = await store.messages(copy.id)
        before = conversation[:position]
        assert [m.content_digest() for m in copied] == [m.content_digest() for m in before]
        assert {m.session_id for m in copied} == {copy.id}
        assert not {m.id for m in copied} & {m.id for m in conversation}
    assert await store.messages(S) == conversation


def sse(*frames: dict[str, Any]) -> bytes:
    lines = (f"event: {f['type']}\ndata: {json.encode(f).decode()}\n\n" for f in frames)
    return "".join(lines).encode()


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def thought(index: int, texts: str, signature: str) -> list[dict[str, Any]]:
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": texts},
        {"type": "signature_delta", "signature": signature},
    )


def interleaved(number: int) -> bytes:
    """Return a response with thinking, text, thinking, a call and text."""
    start: dict[str, Any] = anthropic_answer(number) | {"content": [], "stop_reason": None}
    text_start = {"type": "text", "text": ""}
    use: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {}}
    return sse(
        {"type": "message_start", "message": start},
        *thought(0, "one", "c2ln"),
        *block(1, text_start, *({"type": "text_delta", "text": word} for word in ("a", "b"))),
        *thought(2, "two", "c2lo"),
        *block(3, use, *({"type": "input_json_delta", "partial_json": p} for p in ('{"n"', ":1}"))),
        *block(4, text_start, {"type": "text_delta", "text": "c"}),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    )


@pytest.mark.row("K-025", "K-051", "K-100", "K-114", "K-129", "K-130")
async def test_each_model_call_is_stored_as_one_message(store: Store) -> None:
    """Deltas are for display; the journal has the responses with their parts in order."""
    await store.create_session(S)
    shown = 0
    for number in range(3):
        await store.append(user(f"question {number}", id=new_ulid()))
        decoder = adapters.get("anthropic").stream_decoder(CONTEXT)
        events = [*decoder.feed(interleaved(number)), *decoder.finish()]
        ends = [event for event in events if isinstance(event, MessageComplete)]
        assert len(ends) == 1
        assert events[-1] is ends[0]
        shown += len(events)
        answer = ends[0].message
        await store.append(answer)
        (called,) = calls_in([answer])
        await store.append(tool("ok", answers=called, id=new_ulid()))
        assert [item.type for item in answer.content] == [
            "thinking",
            "text",
            "thinking",
            "tool_use",
            "text",
        ]
        assert [getattr(item, "text", None) for item in answer.content] == [
            "one",
            "ab",
            "two",
            None,
            "c",
        ]
        assert answer.metadata.stop_reason is StopReason.TOOL_USE
        assert answer.metadata.usage is not None
        assert answer.metadata.usage.output_tokens == 9
    history = await store.history(S)
    assert shown > len(history)
    assert [type(entry) for entry in history] == [MessageEntry] * 9
    read = await store.messages(S)
    answers = [message for message in read if message.role is Role.ASSISTANT]
    assert len(answers) == 3
    rebuilt = [event for event in replay(history) if isinstance(event, ResponseMetadata)]
    assert [(event.usage, event.stop_reason) for event in rebuilt] == [
        (answer.metadata.usage, answer.metadata.stop_reason) for answer in answers
    ]


@pytest.mark.row("M-304")
async def test_stored_cost_is_the_computed_cost(store: Store) -> None:
    """A cost reported by the provider is stored separately and never replaces the computed one."""
    body = openai_answer(1) | {"model": "openai/gpt-5"}
    body["usage"] = {"prompt_tokens": 5000, "completion_tokens": 800, "cost": 99.5}
    answer = adapters.get("openrouter").from_wire_response(body, CONTEXT)
    counted = answer.metadata.usage
    assert counted is not None
    priced = price(counted, "openai:gpt-5", table=price_table("2026-05-08"))
    await store.create_session(S)
    about = replace(answer.metadata, usage=priced)
    await store.append(replace(answer, metadata=about))
    (read,) = await store.messages(S)
    stored = read.metadata.usage
    assert stored is not None
    # 5000 * 2.50 + 800 * 10, in millionths
    assert (stored.cost_usd, stored.pricing_version) == (Decimal("0.0205"), "2026-05-08")
    assert stored.reported_cost_usd == Decimal("99.5")


@pytest.mark.row("K-017")
async def test_result_text_is_equal_on_screen_and_wire(
    store: Store,
) -> None:
    called = call("f", tool_id(7))
    conversation = numbered(
        user("go"),
        assistant(thinking("hm"), called),
        tool("the whole output", answers=called.id),
    )
    await store.create_session(S)
    for message in conversation:
        await store.append(message)
    history = await store.history(S)
    (shown,) = [event for event in replay(history) if hasattr(event, "tool_use_id")][-1:]
    assert getattr(shown, "text", "") == "the whole output"
    for name in adapters.names():
        wire = adapters.get(name).to_wire(await store.messages(S), (), AdapterOptions())
        sent = adapters.get(name).from_wire_request(wire.body, CONTEXT).messages
        (result,) = [message for message in sent if message.role is Role.TOOL]
        assert [getattr(item, "content", ()) for item in result.content] == [
            (text("the whole output"),)
        ]
        assert isinstance(result.metadata, MessageMetadata)
