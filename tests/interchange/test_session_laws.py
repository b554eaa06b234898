"""The laws of session files, on every available file of other programs."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from folded import as_test, check_all
from metis.canonical import validate_session
from metis.canonical.blocks import TextBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.interchange.registry import detect_format, session_format
from metis.interchange.session_format import WriteOptions
from metis.interchange.source import Source
from metis.store.entries import MessageEntry, decode_entry, encode_entry

SESSIONS = Path(__file__).parents[3] / "shared" / "sessions"
FORMATS = ("claude-code", "codex", "gemini-cli", "opencode", "pi")
_OTHER_FORMATS = ("fixture-paced.jsonl", ".meta.json", "gemini/schema_drift.json")
_DIRECTORIES = ("message", "part")


def files(name: str) -> list[Path]:
    return [
        path
        for path in sorted((SESSIONS / name).rglob("*.json*"))
        if not str(path).endswith(_OTHER_FORMATS)
        # opencode's storage has a file per message and per part; the session names them.
        if not set(_DIRECTORIES) & set(path.parts)
    ]


def every_file(check: Callable[[str, Path], None]) -> Callable[..., None]:
    """Make one test per format of a check of a session file."""

    def run(name: str) -> None:
        check_all(check, ((name, path) for path in files(name)))

    is_absent = pytest.mark.skipif(not SESSIONS.is_dir(), reason="no session files here")
    return is_absent(pytest.mark.parametrize("name", FORMATS)(as_test(check, run)))


def records(data: bytes, path: Path) -> list[Any]:
    if path.suffix == ".json":
        return [json.loads(data)]
    values: list[Any] = []
    for line in data.splitlines():
        try:
            values.append(json.dumps(json.loads(line)))
        except ValueError:
            values.append(line)
    return [value for value in values if value]


@every_file
def test_a_file_is_recognised_and_written_record_by_record(name: str, path: Path) -> None:
    source = Source(path)
    assert detect_format(source).name == name
    (session,) = session_format(name).read(source)
    stored = [decode_entry(encode_entry(entry)) for entry in session.entries]
    written = session_format(name).write(stored, WriteOptions())
    if name == "opencode":  # its directories and its output are written as an export
        (again,) = session_format(name).read(Source(None, written.data))
        assert facts(again.messages()) == facts(session.messages())
        return
    assert records(written.data, path) == records(path.read_bytes(), path)
    assert written.losses == []


@every_file
def test_messages_are_valid_and_decoded_deterministically(name: str, path: Path) -> None:
    form = session_format(name)
    (session,), (again,) = form.read(Source(path)), form.read(Source(path))
    assert validate_session(session.messages()) == []
    assert session.entries == again.entries


@every_file
def test_every_call_has_its_result_or_a_loss(name: str, path: Path) -> None:
    (session,) = session_format(name).read(Source(path))
    messages = session.messages()
    answered = {m.metadata.parent_tool_use_id for m in messages if m.role is Role.TOOL}
    calls = [b for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
    open_calls = [call for call in calls if call.id not in answered]
    losses = [loss for loss in session.losses if loss.block_type == "tool_use"]
    assert len(losses) >= len(open_calls)


@every_file
def test_usage_is_counted_once_per_response(name: str, path: Path) -> None:
    (session,) = session_format(name).read(Source(path))
    counted = [
        entry.message.metadata.response_id
        for entry in session.entries
        if isinstance(entry, MessageEntry) and entry.message.metadata.usage is not None
    ]
    named = [response for response in counted if response is not None]
    assert len(named) == len(set(named))


@every_file
def test_every_block_is_exported_to_other_programs_or_a_loss(name: str, path: Path) -> None:
    target = session_format("codex" if name == "claude-code" else "claude-code")
    (session,) = session_format(name).read(Source(path))
    if not session.messages():
        return
    written = target.write(session.entries, WriteOptions(foreign_id="f", cwd=os.sep))
    (back,) = target.read(Source(None, written.data))
    assert validate_session(back.messages()) == []
    named = {loss.message_id for loss in written.losses}
    sent = facts(back.messages())
    for message in session.messages():
        if message.id not in named:
            assert facts([message]) <= sent


def facts(messages: Sequence[Message]) -> set[str]:
    """Return the content of blocks; one message of a program may be two of another."""
    return {
        str((block.name, block.input) if isinstance(block, ToolUseBlock) else _texts(block))
        for message in messages
        for block in message.content
        if block != TextBlock("")
    }


def _texts(block: Any) -> Any:
    inner: Any = getattr(block, "content", None)
    return getattr(block, "text", None) if inner is None else [_texts(part) for part in inner]
