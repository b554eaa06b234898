"""Exports to frameworks: the libraries accept them, and what is read back says the same."""

import json
from pathlib import Path

import pytest

from metis.canonical.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import SCHEMA_VERSION, Message
from metis.interchange.claude_code import ClaudeCode
from metis.interchange.export import Conversation, ExportedFile
from metis.interchange.registry import detect_format
from metis.interchange.source import Source
from metis.interchange.writers import WRITERS
from metis.store import SessionRecord
from session_files import IMAGE, SEALED, claude_file


def exported(form: str, tmp_path: Path) -> tuple[ExportedFile, list[Message]]:
    (session,) = ClaudeCode().read(Source(claude_file(tmp_path, "/work/owls")))
    record = SessionRecord(
        id=session.session_id,
        workspace_path="",
        schema_version=SCHEMA_VERSION,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )
    messages = session.messages()
    return WRITERS[form](Conversation(record, messages)), messages


def facts(messages: list[Message]) -> list[str]:
    said: list[str] = []
    for block in (block for message in messages for block in message.content):
        if isinstance(block, TextBlock):
            said.append(block.text)
        elif isinstance(block, ToolUseBlock):
            said.append(f"{block.name} {dict(block.input)}")
        elif isinstance(block, ToolResultBlock):
            said += [f"{block.is_error} {getattr(one, 'text', '')}" for one in block.content]
    return said


@pytest.mark.parametrize("form", ["pydantic-ai", "vercel", "atif"])
def test_what_is_written_is_read_back(form: str, tmp_path: Path) -> None:
    file, messages = exported(form, tmp_path)
    source = Source(None, file.data)
    assert detect_format(source).name == form
    (session,) = detect_format(source).read(source)
    expected = facts(messages)
    if form == "atif":  # it does not mark a result as failed, and holds no images
        expected = [one.replace("True owl", "False owl") for one in expected]
        assert {loss.block_type for loss in file.losses} == {"image", "thinking"}
    else:
        assert file.losses == ()
        assert IMAGE.encode() in file.data
        assert SEALED.encode() in file.data
    # The reader of Vercel puts each result after its call.
    assert sorted(facts(session.messages())) == sorted(expected)


def test_pydantic_ai_accepts_its_messages(tmp_path: Path) -> None:
    messages = pytest.importorskip("pydantic_ai.messages")
    file, _ = exported("pydantic-ai", tmp_path)
    read = messages.ModelMessagesTypeAdapter.validate_json(file.data)
    assert [one.kind for one in read] == ["request", "response", "request", "response"]


def test_calls_of_vercel_hold_their_results(tmp_path: Path) -> None:
    file, _ = exported("vercel", tmp_path)
    parts = json.loads(file.data)[1]["parts"]
    states = [part["state"] for part in parts if part["type"] == "dynamic-tool"]
    assert states == ["output-available", "output-error"]
