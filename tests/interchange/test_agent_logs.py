"""Codex rollbacks and event-only rollouts; Qwen Code and Kimi logs; unsupported files."""

import json
from pathlib import Path
from typing import Any

import pytest

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import UnknownFormatError
from metis.canonical.message import Role
from metis.interchange.registry import detect_format
from metis.interchange.session_draft import ForeignSession, imported_session_id
from metis.interchange.session_format import WriteOptions
from metis.interchange.source import Source
from metis.store.entries import PARENT_KIND, CompactionEntry, SidecarEntry
from metis.store.threads import Threads

MOMENT = "2026-05-08T10:00:00.000Z"


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def read(data: bytes, name: str) -> ForeignSession:
    source = Source(None, data)
    assert detect_format(source).name == name
    (session,) = detect_format(source).read(source)
    return session


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": MOMENT, "type": kind, "payload": payload}


def message_record(role: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return codex("response_item", type="message", role=role, content=[part])


def texts(session: ForeignSession) -> list[str]:
    path = Threads(session.entries).path()
    return [b.text for message in path for b in message.content if isinstance(b, TextBlock)]


def test_codex_rollback_removes_turns() -> None:
    data = lines(
        codex("session_meta", id="t1", cwd="/x"),
        message_record("user", "<environment_context>/x</environment_context>"),
        *(
            message_record(role, f"{role} {turn}")
            for turn in (1, 2, 3)
            for role in ("user", "assistant")
        ),
        codex("event_msg", type="thread_rolled_back", num_turns=2),
        message_record("user", "another"),
    )
    session = read(data, "codex")
    first = "<environment_context>/x</environment_context>"
    assert texts(session) == [first, "user 1", "assistant 1", "another"]
    more = (
        codex("event_msg", type="thread_rolled_back", num_turns=99),
        message_record("user", "last"),
    )
    data += lines(*more)
    session = read(data, "codex")
    assert texts(session) == [first, "last"]
    assert written_records(session, data) == [json.loads(line) for line in data.splitlines()]


def written_records(session: ForeignSession, data: bytes) -> list[Any]:
    written = detect_format(Source(None, data)).write(session.entries, WriteOptions())
    return [json.loads(line) for line in written.data.splitlines()]


def test_codex_events_are_read_if_there_are_no_items() -> None:
    item = {"type": "AgentMessage", "id": "i1", "content": [{"type": "Text", "text": "two owls"}]}
    data = lines(
        codex("session_meta", id="t1", cwd="/x", history_mode="paginated"),
        codex("turn_context", model="gpt-5", turn_id="1"),
        codex("event_msg", type="user_message", message="which owls?"),
        codex("event_msg", type="agent_reasoning", text="I look"),
        codex("event_msg", type="item_completed", thread_id="t1", turn_id="1", item=item),
        codex("event_msg", type="agent_message", message="anything else?"),
    )
    session = read(data, "codex")
    assert texts(session) == ["which owls?", "two owls", "anything else?"]
    assert ThinkingBlock("I look") in session.messages()[1].content
    assert written_records(session, data) == [json.loads(line) for line in data.splitlines()]
    # With items, the same events only repeat them.
    both = read(data + lines(message_record("assistant", "two owls")), "codex")
    assert texts(both) == ["which owls?", "two owls"]


def qwen(uuid: str, parent: str | None, kind: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    base = {"uuid": uuid, "parentUuid": parent, "sessionId": "s", "timestamp": MOMENT, "type": kind}
    role = "model" if kind == "assistant" else "user"
    return base | {"message": {"role": role, "parts": list(parts)}} | fields


def test_qwen_code_branches_and_parts_with_one_uuid() -> None:
    call: dict[str, Any] = {"functionCall": {"id": "c1", "name": "read", "args": {}}}
    answer = {"functionResponse": {"id": "c1", "name": "read", "response": {"error": "gone"}}}
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 2, "cachedContentTokenCount": 4}
    last = lines(qwen("u5", "u4", "assistant", {"text": "done"}))
    glued = lines(
        qwen("u3", "u2", "assistant", {"text": "hm", "thought": True}),
    ).rstrip(b"\n")
    data = (
        lines(
            qwen("u1", None, "user", {"text": "start"}),
            qwen("x1", "u1", "assistant", {"text": "discarded"}),
            {
                "uuid": "u2",
                "parentUuid": "u1",
                "sessionId": "s",
                "type": "system",
                "subtype": "rewind",
            },
        )
        + glued
        + lines(qwen("u3", "u2", "assistant", call, usageMetadata=counts, model="qwen3"))
        + lines(qwen("u4", "u3", "tool_result", answer))
        + last
    )
    session = read(data, "qwen-code")
    assert texts(session) == ["start", "done"]
    response = next(
        m for m in session.messages() if any(isinstance(b, ToolUseBlock) for b in m.content)
    )
    assert isinstance(response.content[0], ThinkingBlock)
    usage = response.metadata.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (6, 4, 2)
    (result,) = [m for m in session.messages() if m.role is Role.TOOL]
    assert getattr(result.content[0], "is_error", False)


def test_kimi_steps_are_responses(tmp_path: Path) -> None:
    def event(kind: str, **fields: Any) -> dict[str, Any]:
        return {
            "type": "context.append_loop_event",
            "event": {"type": kind, **fields},
            "time": 1785613801102,
        }

    message = {"role": "user", "content": [{"type": "text", "text": "run ls"}], "toolCalls": []}
    usage = {"inputOther": 5, "output": 3, "inputCacheRead": 7, "inputCacheCreation": 0}
    data = lines(
        {"type": "metadata", "protocol_version": "1.4", "created_at": 1785613801000},
        {"type": "context.append_message", "message": message, "time": 1785613801001},
        event("step.begin", uuid="st1"),
        event("content.part", part={"type": "think", "think": "I run it"}),
        event("tool.call", toolCallId="Bash_0", name="Bash", args={"command": "ls"}),
        event("tool.result", toolCallId="Bash_0", result={"output": "a.txt"}),
        event("step.end", uuid="st1", usage=usage, messageId="m1"),
        {
            "type": "context.apply_compaction",
            "summary": "short",
            "tokensBefore": 9,
            "time": 1785613801200,
        },
        event("step.begin", uuid="st2"),
        event("content.part", part={"type": "text", "text": "one file"}),
        {"type": "mood.changed", "mood": "calm"},
    )
    path = tmp_path / "session_1" / "agents" / "agent-0" / "wire.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    (session,) = detect_format(Source(path)).read(Source(path))
    assert session.format == "kimi"
    roles = [message.role for message in session.messages()]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    counted = session.messages()[1].metadata.usage
    assert counted is not None
    assert (counted.input_tokens, counted.cached_input_tokens) == (5, 7)
    assert [e.summary for e in session.entries if isinstance(e, CompactionEntry)] == ["short"]
    (note,) = [e for e in session.entries if isinstance(e, SidecarEntry) and e.kind == PARENT_KIND]
    assert note.data == {"session_id": imported_session_id("kimi", "session_1")}
    assert [loss.block_type for loss in session.losses] == ["mood.changed"]


@pytest.mark.parametrize(
    "data",
    [
        # Hermes, Droid and Grok write records that resemble other formats.
        json.dumps({"session_id": "s", "messages": [{"role": "user", "content": "hi"}]}).encode(),
        lines({"type": "system", "subtype": "init", "sessionId": "s", "timestamp": 1767812640310}),
        lines({"type": "user", "content": "hi"}, {"type": "reasoning", "summary": []}),
        b"",
        b"\x00\xff binary",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_files_of_unsupported_programs_are_refused(data: bytes) -> None:
    with pytest.raises(UnknownFormatError):
        detect_format(Source(None, data))
