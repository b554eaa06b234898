"""klaude-code session directories, also after a crash at any moment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from build import assistant, call, tool, tool_id, ulid, user
from metis.canonical import Message
from metis.canonical.errors import ForeignDocumentError
from metis.interchange.klaude.directory import (
    EVENTS,
    META,
    load_directory,
    read_meta,
    save_directory,
)

TALK = [
    user("count"),
    assistant("I read.", call("read_file", tool_id(1), path="a")),
    tool("three", answers=tool_id(1)),
    assistant("Three."),
]


def numbered(*messages: Message) -> list[Message]:
    return [replace(message, id=ulid(number)) for number, message in enumerate(messages)]


@pytest.mark.row("KX-16")
def test_directory_has_events_file_and_metadata_file(tmp_path: Path) -> None:
    talk = numbered(*TALK)
    losses = save_directory(tmp_path, talk, work_dir="/work", title="Counting")
    assert not [loss for loss in losses if loss.path.startswith("$.content")]
    lines = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    assert [set(line) for line in lines] == [{"type", "data"}] * 4
    assert [line["type"] for line in lines] == [
        "UserMessage",
        "AssistantMessage",
        "ToolResultMessage",
        "AssistantMessage",
    ]
    meta = json.loads((tmp_path / META).read_bytes())
    assert meta["messages_count"] == 4
    assert meta["user_messages"] == ["count"]
    assert (meta["work_dir"], meta["title"]) == ("/work", "Counting")
    assert meta["model_name"] == "claude-sonnet-4-6"
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []
    back = load_directory(tmp_path)
    assert [item.content_digest() for item in back.messages] == [
        item.content_digest() for item in talk
    ]


def test_growing_session_keeps_existing_lines(tmp_path: Path) -> None:
    talk = numbered(*TALK)
    save_directory(tmp_path, talk[:1])
    before = (tmp_path / EVENTS).read_bytes()
    (tmp_path / META).write_text(json.dumps(read_meta(tmp_path) | {"archived": True}))
    save_directory(tmp_path, talk)
    assert (tmp_path / EVENTS).read_bytes().startswith(before)
    assert read_meta(tmp_path)["archived"] is True
    with pytest.raises(ForeignDocumentError, match="line 1"):
        save_directory(tmp_path, numbered(user("something else")))
    assert len(load_directory(tmp_path).messages) == 4


def test_torn_line_is_reported_and_rewritten(tmp_path: Path) -> None:
    talk = numbered(*TALK)
    save_directory(tmp_path, talk)
    full = (tmp_path / EVENTS).read_bytes()
    for cut in (*range(0, len(full), 7), len(full) - 1, len(full)):
        (tmp_path / EVENTS).write_bytes(full[:cut])
        result = load_directory(tmp_path)
        assert len(result.messages) == full[:cut].count(b"\n")
        is_torn = cut > 0 and full[cut - 1 : cut] != b"\n"
        assert [loss.block_type for loss in result.losses] == (["line"] if is_torn else [])
    save_directory(tmp_path, talk)
    assert (tmp_path / EVENTS).read_bytes() == full


def test_missing_or_broken_metadata_is_accepted(tmp_path: Path) -> None:
    assert read_meta(tmp_path) == {}
    (tmp_path / META).write_text("{")
    assert read_meta(tmp_path) == {}
    save_directory(tmp_path, numbered(*TALK))
    assert read_meta(tmp_path)["messages_count"] == 4


WRITER = """
import sys
from pathlib import Path
from msgspec.structs import replace
from build import ulid, user
from metis.interchange.klaude.directory import save_directory
folder, talk = Path(sys.argv[1]), []
for number in range(100_000):
    talk.append(replace(user(f"message {number} " + "x" * 5000), id=ulid(number)))
    save_directory(folder, talk)
    print(number, flush=True)
"""


@pytest.mark.row("KX-16")
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_acknowledged_events_survive_kill_at_any_moment(tmp_path: Path, count: int) -> None:
    root = Path(__file__).parent.parent
    paths = os.pathsep.join([str(root.parent / "src"), str(root)])
    writer = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert writer.stdout is not None
    reasons = [int(writer.stdout.readline()) for _ in range(count)]
    writer.kill()
    reasons += [int(line) for line in writer.stdout.read().split(b"\n")[:-1]]
    writer.stdout.close()
    writer.wait()
    saved = reasons[-1] + 1
    result = load_directory(tmp_path).messages
    assert len(result) >= saved
    assert [item.content[0].text.split(" x")[0] for item in result] == [  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - texts
        f"message {number}" for number in range(len(result))
    ]
    meta = json.loads((tmp_path / META).read_bytes())
    assert saved <= meta["messages_count"] <= len(result)
