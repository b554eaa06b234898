"""Sub-agents, forks and saved chats of other programs: parents, and costs counted once."""

import asyncio
import json
from pathlib import Path
from typing import Any

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.message import Role
from metis.events.turn_events import LlmCallCompleted
from metis.interchange.registry import detect_format
from metis.interchange.session_draft import ForeignSession, imported_session_id
from metis.interchange.session_format import WriteOptions
from metis.interchange.session_import import import_session
from metis.interchange.source import Source
from metis.session.stored_calls import stored_calls
from metis.store import open as open_store
from metis.store.entries import PARENT_KIND, SidecarEntry
from session_files import claude_file

COPY = "ffffffff-4e5f-4061-8071-2a3b4c5d6e7f"
SESSION = "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f"


def write_lines(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path) -> ForeignSession:
    source = Source(path)
    (session,) = detect_format(source).read(source)
    return session


def parent_of(session: ForeignSession) -> dict[str, Any]:
    (note,) = [
        entry
        for entry in session.entries
        if isinstance(entry, SidecarEntry) and entry.kind == PARENT_KIND
    ]
    return dict(note.data)


def claude_record(kind: str, content: Any, **fields: Any) -> dict[str, Any]:
    base = {"type": kind, "sessionId": SESSION, "timestamp": "2026-05-08T10:00:00.000Z"}
    return base | {"message": {"role": kind, "content": content}} | fields


def test_claude_code_task_has_parent_session_and_call(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "toolu_task", "name": "Task", "input": {"prompt": "search"}}
    parent = write_lines(
        tmp_path / f"{SESSION}.jsonl",
        claude_record("user", "delegate", uuid="u1", parentUuid=None),
        claude_record("assistant", [call], uuid="u2", parentUuid="u1"),
    )
    agents = tmp_path / SESSION / "subagents"
    agent: dict[str, Any] = {"isSidechain": True, "agentId": "a1", "parentUuid": None}
    child = write_lines(agents / "agent-a1.jsonl", claude_record("user", "search", **agent))
    (agents / "agent-a1.meta.json").write_text('{"agentType": "x", "toolUseId": "toolu_task"}')
    nested = write_lines(
        agents / "workflows" / "w" / "agent-a2.jsonl", claude_record("user", "x", **agent)
    )
    nested.with_suffix(".meta.json").write_text('{"parentAgentId": "a1"}')
    session = read(parent)
    (block,) = [b for m in session.messages() for b in m.content if isinstance(b, ToolUseBlock)]
    assert parent_of(read(child)) == {"session_id": session.session_id, "tool_use_id": block.id}
    assert parent_of(read(nested)) == {"session_id": read(child).session_id}
    asyncio.run(import_twice(tmp_path, child))


async def import_twice(tmp_path: Path, path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'metis.db'}") as store:
        for _ in range(2):
            session = read(path)
            await import_session(store, session)
            history = await store.history(session.session_id)
            assert len(history) == len(session.entries)


def test_sub_agents_of_other_programs_have_parent_session(tmp_path: Path) -> None:
    moment = "2026-05-08T10:00:00.000Z"
    meta: dict[str, Any] = {
        "id": "child",
        "timestamp": moment,
        "cwd": "/x",
        "parent_thread_id": "parent",
    }
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "parent", "depth": 1}}}
    old = {key: value for key, value in meta.items() if key != "parent_thread_id"}
    for payload in (meta, old | {"source": spawned}):
        path = write_lines(
            tmp_path / "c.jsonl", {"timestamp": moment, "type": "session_meta", "payload": payload}
        )
        assert parent_of(read(path)) == {"session_id": imported_session_id("codex", "parent")}
    info: dict[str, Any] = {"id": "ses_child", "parentID": "ses_parent", "time": {"created": 1}}
    path = tmp_path / "o.json"
    path.write_text(json.dumps({"info": info | {"directory": "/x", "title": "t"}, "messages": []}))
    assert parent_of(read(path)) == {"session_id": imported_session_id("opencode", "ses_parent")}
    first = {"sessionId": "kid", "projectHash": "p", "startTime": moment, "kind": "subagent"}
    path = write_lines(tmp_path / "chats" / "main-id" / "kid.jsonl", first)
    assert parent_of(read(path)) == {"session_id": imported_session_id("gemini-cli", "main-id")}
    line = {"role": "user", "message": {"content": [{"type": "text", "text": "go"}]}}
    path = write_lines(tmp_path / "main-id" / "subagents" / "kid.jsonl", line)
    assert parent_of(read(path)) == {"session_id": imported_session_id("cursor", "main-id")}


def test_copied_response_is_counted_once(tmp_path: Path) -> None:
    async def calls(paths: list[Path], name: str) -> int:
        async with open_store(f"sqlite:///{tmp_path / name}") as store:
            for path in paths:
                await import_session(store, read(path))
            events = [event async for event in stored_calls(store, since=None)]
        assert all(isinstance(event.payload, LlmCallCompleted) for event in events)
        return len(events)

    def copies_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if "payload" not in lines[0]:
            return [line | {"sessionId": COPY} for line in lines]
        # Codex writes the copies with the time of the fork.
        head = lines[0] | {"payload": lines[0]["payload"] | {"id": COPY}}
        return [line | {"timestamp": "2026-09-01T00:00:00.000Z"} for line in [head, *lines[1:]]]

    for name, original in (("claude", claude_file(tmp_path, "/x")), ("codex", rollout(tmp_path))):
        lines = [json.loads(line) for line in original.read_text().splitlines()]
        copy = write_lines(original.with_name(f"{COPY}.jsonl"), *copies_of(lines))
        alone = asyncio.run(calls([original], f"{name}1.db"))
        assert alone == 2
        assert asyncio.run(calls([original, copy], f"{name}2.db")) == alone


def rollout(directory: Path) -> Path:
    """A rollout of Codex with two turns and their usage."""
    records: list[tuple[str, dict[str, Any]]] = [("session_meta", {"id": "original", "cwd": "/x"})]
    for number in (1, 2):
        counts = {"input_tokens": 100 * number, "output_tokens": 10}
        info = {"total_token_usage": counts, "last_token_usage": counts}
        text = [{"type": "output_text", "text": f"answer {number}"}]
        records += [
            ("turn_context", {"turn_id": f"turn-{number}", "model": "gpt-5"}),
            ("response_item", {"type": "message", "role": "user", "content": f"q {number}"}),
            ("response_item", {"type": "message", "role": "assistant", "content": text}),
            ("event_msg", {"type": "token_count", "info": info}),
        ]
    moment = "2026-05-08T10:00:00.000Z"
    lines = [{"timestamp": moment, "type": kind, "payload": data} for kind, data in records]
    return write_lines(directory / "rollout-x.jsonl", *lines)


def test_a_saved_chat_of_gemini_cli_is_read_and_written_back(tmp_path: Path) -> None:
    call: dict[str, Any] = {"functionCall": {"id": "c1", "name": "ls", "args": {}}}
    answer = {"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a"}}}
    contents: list[dict[str, Any]] = [
        {"role": "user", "parts": [{"text": "list"}]},
        {"role": "model", "parts": [{"text": "yes"}, call]},
        {"role": "user", "parts": [answer]},
        {"role": "model", "parts": [{"text": "one file"}]},
    ]
    for document in (contents, {"history": contents, "authType": "oauth"}):
        path = tmp_path / "checkpoint-x.json"
        path.write_text(json.dumps(document))
        session = read(path)
        roles = [message.role for message in session.messages()]
        assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
        written = detect_format(Source(path)).write(session.entries, WriteOptions())
        assert json.loads(written.data) == document


def test_copilot_events_become_thinking_branches_and_stored_records(tmp_path: Path) -> None:
    def event(kind: str, at: int, **data: Any) -> dict[str, Any]:
        return {
            "type": kind,
            "data": data,
            "id": f"e{at}",
            "timestamp": f"2026-01-01T00:00:{at:02}Z",
        }

    task: dict[str, Any] = {"toolCallId": "t1", "name": "task", "arguments": {}}
    path = write_lines(
        tmp_path / "events.jsonl",
        event("session.start", 1, sessionId="s1"),
        event("user.message", 2, content="go"),
        event("assistant.reasoning", 3, content="a thought"),
        event("assistant.message", 4, content="", toolRequests=[task]),
        event("assistant.message", 5, content="inside", parentToolCallId="t1"),
        event("tool.execution_complete", 6, toolCallId="t1", success=True, result={"content": "r"}),
        event("assistant.message", 7, content="done"),
        event("session.invented", 8, mood="calm"),
    )
    session = read(path)
    messages = session.messages()
    assert messages[1].content[0] == ThinkingBlock("a thought")
    inside = next(m for m in messages if m.content == (TextBlock("inside"),))
    result = next(m for m in messages if m.role is Role.TOOL)
    # The result follows the response with its call, not the work of the sub-agent.
    assert result.metadata.parents == (messages[1].id,)
    assert inside.id not in {p for m in messages for p in m.metadata.parents}
    assert [loss.block_type for loss in session.losses] == ["session.invented"]
    kept = [entry.data["type"] for entry in session.entries if isinstance(entry, SidecarEntry)]
    assert kept == ["session.start", "assistant.reasoning", "session.invented"]
