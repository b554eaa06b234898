"""Import-only formats: every sample file is recognised, and imported completely and validly."""

import json
import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest

from metis import encode
from metis.canonical import validate_session
from metis.canonical.blocks import (
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.interchange.registry import detect_format, session_format, session_formats
from metis.interchange.session_draft import ForeignSession
from metis.interchange.source import Source

SESSIONS = Path(__file__).parents[3] / "shared" / "sessions"
KINDS = {
    "aider": "aider",
    "atif": "atif",
    "chatgpt-export": "chatgpt",
    "claude-ai-export": "claude-ai",
    "copilot-cli": "copilot-cli",
    "cursor": "cursor",
    "kimi": "kimi",
    "librechat": "librechat",
    "openai-agents": "openai-agents",
    "qwen-code": "qwen-code",
}


def files() -> list[Any]:
    cases = [
        pytest.param(name, path, id=f"{kind}-{path.stem[:30]}")
        for kind, name in KINDS.items()
        for path in sorted((SESSIONS / kind).rglob("*"))
        if path.is_file() and path.suffix != ".db" and not path.name.endswith("state.json")
    ]
    return cases or [pytest.param("", Path(), marks=pytest.mark.skip("no session files here"))]


every_file = pytest.mark.parametrize(("name", "path"), files())


def read(name: str, document: object, path: Path | None = None) -> list[ForeignSession]:
    """Return the sessions of a document, which must be recognised."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    source = Source(path, data)
    assert detect_format(source).name == name
    return list(session_format(name).read(source))


def texts(messages: list[Message]) -> list[tuple[str, list[str]]]:
    return [
        (message.role, [block.text for block in message.content if isinstance(block, TextBlock)])
        for message in messages
    ]


@every_file
def test_file_is_recognised_valid_and_decoded_deterministically(name: str, path: Path) -> None:
    source = Source(path)
    assert detect_format(source).name == name
    form = session_format(name)
    sessions = list(form.read(source))
    assert sessions
    assert [session.entries for session in form.read(Source(path))] == [
        session.entries for session in sessions
    ]
    for session in sessions:
        messages = session.messages()
        assert validate_session(messages) == []
        answered = {m.metadata.parent_tool_use_id for m in messages if m.role is Role.TOOL}
        calls = [b for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
        open_calls = [call for call in calls if call.id not in answered]
        losses = [loss for loss in session.losses if loss.block_type == "tool_use"]
        assert len(losses) >= len(open_calls)


@every_file
def test_every_text_of_a_file_is_in_a_message_or_a_loss(name: str, path: Path) -> None:
    if path.suffix == ".md":
        return
    data = path.read_bytes()
    held = json.dumps(
        [
            [json.loads(line) for line in _encoded(session)] + [str(one) for one in session.losses]
            for session in session_format(name).read(Source(path))
        ],
        ensure_ascii=False,
    )
    for text in _message_texts(name, data):
        assert json.dumps(text, ensure_ascii=False)[1:-1] in held


def _encoded(session: ForeignSession) -> list[bytes]:
    return [encode(message) for message in session.messages()]


def _message_texts(name: str, data: bytes) -> list[str]:
    """Return the texts that a program shows as messages, read without metis."""
    data = data.replace(b'}{"uuid"', b'}\n{"uuid"')  # as a crash of Qwen Code leaves them
    lines = [data] if data.lstrip()[:1] in b"[{" and b"\n{" not in data else data.splitlines()
    listed: list[str] = []

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            if fields.get("is_visually_hidden_from_conversation"):
                return
            for inner, item in fields.items():
                walk(item, inner)
        elif isinstance(value, list):
            for item in cast("list[Any]", value):
                walk(item, key)
        elif isinstance(value, str) and key in _SHOWN.get(name, ()) and value:
            listed.append(value)

    for line in lines:
        walk(json.loads(line), "")
    return listed


_SHOWN: dict[str, tuple[str, ...]] = {
    "chatgpt": ("parts",),
    "claude-ai": ("text",),
    "librechat": ("text",),
    "atif": ("message", "reasoning_content"),
    "cursor": ("text", "thinking"),
    "kimi": ("think",),
    "qwen-code": ("text",),
}


def test_names_of_the_formats_are_fixed() -> None:
    assert {
        *("claude-code", "codex", "klaude", "attocode", "gpt2099", "cline", "cursor"),
        *("copilot-cli", "aider", "chatgpt", "claude-ai", "llm", "open-webui", "librechat"),
        *(
            "pydantic-ai",
            "langchain",
            "vercel",
            "openai-agents",
            "otel",
            "atif",
            "kimi",
            "qwen-code",
        ),
    } <= set(session_formats())


def test_pydantic_ai_messages() -> None:
    document = [
        {
            "kind": "request",
            "parts": [
                {"part_kind": "system-prompt", "content": "Be brief."},
                {
                    "part_kind": "user-prompt",
                    "content": ["Weather?", {"type": "text", "text": "!"}],
                },
            ],
        },
        {
            "kind": "response",
            "model_name": "claude-sonnet-4-6",
            "provider_name": "anthropic",
            "usage": {"input_tokens": 12, "output_tokens": 3, "cache_read_tokens": 2},
            "parts": [
                {
                    "part_kind": "thinking",
                    "content": "hm",
                    "signature": "s",
                    "provider_name": "anthropic",
                },
                {
                    "part_kind": "tool-call",
                    "tool_name": "weather",
                    "args": '{"town":"Oslo"}',
                    "tool_call_id": "c1",
                },
            ],
        },
        {
            "kind": "request",
            "parts": [
                {
                    "part_kind": "retry-prompt",
                    "tool_name": "weather",
                    "tool_call_id": "c1",
                    "content": "no",
                }
            ],
        },
    ]
    (session,) = read("pydantic-ai", document)
    system, user, response, result = session.messages()
    assert validate_session(session.messages()) == []
    assert texts([system, user]) == [("system", ["Be brief."]), ("user", ["Weather?", "!"])]
    thinking, call = response.content
    assert thinking == ThinkingBlock("hm", signature="s", issuer="anthropic")
    assert isinstance(call, ToolUseBlock)
    assert call.input == {"town": "Oslo"}
    usage = response.metadata.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_input_tokens) == (10, 2)
    block = result.content[0]
    assert isinstance(block, ToolResultBlock)
    assert block.is_error


def test_langchain_messages_in_both_spellings() -> None:
    plain = [
        {"type": "human", "data": {"content": "hi", "id": "1"}},
        {
            "type": "ai",
            "data": {
                "content": "",
                "id": "2",
                "tool_calls": [{"id": "c", "name": "f", "args": {"a": 1}}],
                "response_metadata": {"model_name": "gpt-5"},
            },
        },
        {"type": "tool", "data": {"content": "done", "tool_call_id": "c", "status": "error"}},
    ]
    serialised = [
        {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "HumanMessage"],
            "kwargs": {"content": "hi"},
        }
    ]
    (session,) = read("langchain", plain)
    assert [message.role for message in session.messages()] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
    ]
    assert session.messages()[1].metadata.model == "openai:gpt-5"
    (other,) = read("langchain", serialised)
    assert texts(other.messages()) == [("user", ["hi"])]


def test_vercel_messages() -> None:
    pixel = "data:image/png;base64,iVBORw0KGgo="
    document = [
        {
            "id": "1",
            "role": "user",
            "parts": [
                {"type": "text", "text": "look"},
                {"type": "file", "mediaType": "image/png", "url": pixel},
            ],
        },
        {
            "id": "2",
            "role": "assistant",
            "parts": [
                {"type": "step-start"},
                {
                    "type": "reasoning",
                    "text": "hm",
                    "providerMetadata": {"anthropic": {"signature": "s"}},
                },
                {
                    "type": "tool-weather",
                    "toolCallId": "c",
                    "state": "output-available",
                    "input": {"a": 1},
                    "output": {"sky": "snow"},
                },
                {"type": "text", "text": "Snow."},
            ],
        },
    ]
    (session,) = read("vercel", document)
    messages = session.messages()
    assert validate_session(messages) == []
    roles = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert [message.role for message in messages] == roles
    assert isinstance(messages[0].content[1], ImageBlock)
    assert messages[1].content[0] == ThinkingBlock("hm", signature="s", issuer="anthropic")


def test_open_webui_chats_keep_their_branches() -> None:
    def node(key: str, parent: str | None, role: str, content: str) -> dict[str, Any]:
        return {
            "id": key,
            "parentId": parent,
            "role": role,
            "content": content,
            "timestamp": 1714585031,
        }

    history = {
        "a": node("a", None, "user", "hi"),
        "b": node("b", "a", "assistant", "one"),
        "c": node("c", "a", "assistant", "two"),
    }
    document = [
        {
            "id": "x",
            "user_id": "u",
            "title": "T",
            "chat": {"history": {"messages": history, "currentId": "b"}},
        }
    ]
    (session,) = read("open-webui", document)
    first, second, third = session.messages()
    assert session.title == "T"
    assert third.metadata.parents == (first.id,)
    assert session.tip == second.id


def test_cline_tasks() -> None:
    document: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": "x"},
                {"type": "text", "text": "env"},
            ],
        },
    ]
    (session,) = read("cline", document, Path("1747/api_conversation_history.json"))
    assert session.foreign_id == "1747"
    roles = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]
    assert [message.role for message in session.messages()] == roles


@pytest.mark.parametrize("convention", ["messages", "prompt", "openinference"])
def test_spans_that_continue_each_other_are_one_conversation(convention: str) -> None:
    turns = [("user", "hi"), ("assistant", "hello"), ("user", "bye"), ("assistant", "ciao")]

    def attributes(count: int) -> dict[str, Any]:
        before, (_, answer) = turns[: count - 1], turns[count - 1]
        if convention == "messages":
            return {
                "gen_ai.input.messages": json.dumps(
                    [{"role": r, "parts": [{"type": "text", "content": t}]} for r, t in before]
                ),
                "gen_ai.output.messages": json.dumps(
                    [
                        {
                            "role": "assistant",
                            "parts": [{"type": "text", "content": answer}],
                            "finish_reason": "stop",
                        }
                    ]
                ),
                "gen_ai.request.model": "gpt-5",
                "gen_ai.usage.input_tokens": 5,
            }
        if convention == "prompt":
            listed = {
                f"gen_ai.prompt.{n}.{k}": v
                for n, (r, t) in enumerate(before)
                for k, v in (("role", r), ("content", t))
            }
            return {
                **listed,
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.content": answer,
            }
        listed = {
            f"llm.input_messages.{n}.message.{k}": v
            for n, (r, t) in enumerate(before)
            for k, v in (("role", r), ("content", t))
        }
        return {
            **listed,
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": answer,
        }

    def span(count: int) -> dict[str, Any]:
        fields = [
            {"key": key, "value": {"intValue" if isinstance(value, int) else "stringValue": value}}
            for key, value in attributes(count).items()
        ]
        return {
            "traceId": "t",
            "name": "chat",
            "startTimeUnixNano": str(count),
            "attributes": fields,
        }

    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span(4), span(2)]}]}]}
    (session,) = read("otel", document)
    assert texts(session.messages()) == [(role, [text]) for role, text in turns]


def test_llm_database(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    database = sqlite3.connect(path)
    database.executescript(
        """
        CREATE TABLE conversations (id TEXT, name TEXT, model TEXT);
        CREATE TABLE responses (id TEXT, model TEXT, prompt TEXT, system TEXT, response TEXT,
          conversation_id TEXT, duration_ms INT, datetime_utc TEXT, input_tokens INT,
          output_tokens INT);
        INSERT INTO conversations VALUES ('c', 'Title', 'gpt-5');
        INSERT INTO responses VALUES ('r1', 'gpt-5', 'hi', 'Be brief.', 'hello', 'c', 5,
          '2026-05-08T09:30:00', 7, 2);
        CREATE TABLE messages (hash TEXT, parent_hash TEXT, role TEXT, provider_metadata TEXT);
        CREATE TABLE parts (id INT, message_hash TEXT, position INT, type TEXT, tool_name TEXT,
          text TEXT, payload TEXT);
        CREATE TABLE threads (id TEXT, name TEXT, tip_message_hash TEXT, forked_from TEXT,
          datetime_utc TEXT);
        CREATE TABLE turns (id TEXT, thread_id TEXT, tip_message_hash TEXT, model TEXT,
          resolved_model TEXT, input_tokens INT, output_tokens INT, duration_ms INT,
          datetime_utc TEXT);
        INSERT INTO messages VALUES ('a', NULL, 'user', NULL), ('b', 'a', 'assistant', NULL);
        INSERT INTO parts VALUES (1, 'a', 0, 'text', NULL, 'weather', NULL),
          (2, 'b', 0, 'tool_call', 'f', NULL, '{"tool_call_id":"t","arguments":{"a":1}}');
        INSERT INTO threads VALUES ('th', 'New', 'b', NULL, '2026-05-08T09:30:00');
        INSERT INTO turns VALUES ('u', 'th', 'b', 'gpt-5', NULL, 3, 4, 5, '2026-05-08T09:30:00');
        """
    )
    database.commit()
    database.close()
    source = Source(path)
    assert detect_format(source).name == "llm"
    new, old = session_format("llm").read(source)
    assert texts(old.messages()) == [
        ("system", ["Be brief."]),
        ("user", ["hi"]),
        ("assistant", ["hello"]),
    ]
    assert old.messages()[-1].metadata.model == "openai:gpt-5"
    call = new.messages()[-1].content[0]
    assert isinstance(call, ToolUseBlock)
    assert call.input == {"a": 1}


def test_openai_agents_database(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE agent_sessions (session_id TEXT)")
    database.execute("CREATE TABLE agent_messages (id INTEGER, session_id TEXT, message_data TEXT)")
    database.execute("INSERT INTO agent_sessions VALUES ('s')")
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "ok"}],
        },
    ]
    for number, item in enumerate(items):
        row = (number, "s", json.dumps(item))
        database.execute("INSERT INTO agent_messages VALUES (?, ?, ?)", row)
    database.commit()
    database.close()
    (session,) = session_format("openai-agents").read(Source(path))
    roles = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert [message.role for message in session.messages()] == roles


def test_spans_of_other_conversations_stay_separate() -> None:
    def span(at: int, *texts: str) -> dict[str, Any]:
        listed = [{"role": "user", "parts": [{"type": "text", "content": text}]} for text in texts]
        attributes = {"gen_ai.input.messages": json.dumps(listed)}
        return {"name": "chat", "traceId": "t", "startTimeUnixNano": at, "attributes": attributes}

    document = [span(1, "a"), span(2, "b"), span(3, "a", "c"), span(4, "b", "d"), span(5, "a")]
    sessions = read("otel", document)
    assert [session.foreign_id for session in sessions] == ["t", "t#1", "t#2"]
    lists = [[text for _, found in texts(one.messages()) for text in found] for one in sessions]
    assert lists == [["a", "c"], ["b", "d"], ["a"]]
