"""API keys appear nowhere, and message content is in no event."""

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from build import call, thinking
from metis.canonical import SideEffects, ToolUseBlock, new_tool_use_id
from metis.canonical.errors import MetisError
from metis.events import Bus, Event, EventQuery, MemoryTrace, Sensitivity
from metis.events.event import encode_json
from metis.events.export import otlp_json, write_csv, write_jsonl
from metis.events.trace import SqliteTrace
from metis.session import Metis
from metis.tools import Confirmation, Registry, Rule
from metis.tools.builtin import BUILTINS
from session.fake import Fake, Say, say, serving
from session.helpers import events_of, options

pytestmark = pytest.mark.anyio
CANARY = "sk-canary-0123456789abcdef"
WORDS = ("frotz", "xyzzy", "plugh", "gnusto", "rezrov", "blorb")
"""Content markers: prompt, text, thinking, tool arguments, tool results and errors."""


def script() -> list[Say]:
    reading = call("read_file", new_tool_use_id(), path="plugh.txt")
    wrong = call("read_file", new_tool_use_id(), path=["plugh"])
    running = call("run_command", new_tool_use_id(), command="echo plugh rezrov")
    return [
        say(thinking("gnusto", signature="c2ln"), "xyzzy", reading, wrong, running),
        say("xyzzy"),
        say("xyzzy"),
        say("the gist of xyzzy"),
        say(status=400, error=f"blorb {CANARY}"),
        say(status=500, error=f"blorb {CANARY}"),
        say("xyzzy one two", events=4),
        say(status=401, error=f"Incorrect API key provided: {CANARY}. blorb"),
    ]


async def live(tmp_path: Path, url: str) -> tuple[list[Event], list[str], list[str]]:
    """Run a session; return its events, the texts of its errors and the lines of its export."""
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    (tmp_path / "plugh.txt").write_text("rezrov")
    errors: list[str] = []
    every = dict.fromkeys(SideEffects, Rule.AUTO)
    given: dict[str, Any] = {
        "bus": bus,
        "keys": {"anthropic": CANARY},
        "workspace": tmp_path,
        "tools": Registry(*BUILTINS),
        "confirmation": Confirmation(rules=every),
    }
    async with serving(Fake(*script())) as fake, Metis(url, options(fake, **given)) as m:
        session = await m.session(model="sonnet", system="frotz")
        await events_of(session, "frotz")
        await events_of(session, "frotz")
        assert await session.compact()
        for _ in range(4):
            try:
                session = await m.session(model="sonnet")
                await events_of(session, "frotz")
            except MetisError as error:
                errors += [repr(error), *traceback.format_exception(error)]
        lines = [line.decode() for s in await m.sessions() for line in await m.store.export(s.id)]
        assert {request["x-api-key"] for request in fake.headers} == {CANARY}
    return bus_events, errors, lines


def files_with(word: str, folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if word.encode() in path.read_bytes()]


async def test_a_key_is_in_no_log_event_trace_export_error_or_file(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        bus_events, errors, lines = await live(tmp_path, url)
    trace = MemoryTrace()
    await trace.append(bus_events)
    kept = await trace.select(EventQuery())
    on_disk = SqliteTrace(tmp_path / "trace.db")
    await on_disk.append(bus_events)
    on_disk.close()
    assert len(errors) > 4
    visible_texts = [
        caplog.text,
        *errors,
        *lines,
        *(encode_json(event).decode() for event in bus_events),
    ]
    visible_texts += [
        line.decode() for line in (*write_jsonl(kept), *write_csv(kept), otlp_json(kept))
    ]
    visible_texts += [str(vars(record)) for record in caplog.records]
    assert not [text for text in visible_texts if CANARY in text]
    assert files_with(CANARY, tmp_path) == []


async def test_message_content_is_in_no_event_and_no_log(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "metis"):
        bus_events, _, _ = await live(tmp_path, url)
    types = {event.type for event in bus_events}
    assert types >= {"session.compacted", "tool.input_invalid", "turn.failed", "llm.call_failed"}
    for event in bus_events:
        text = encode_json(event).decode()
        found = [word for word in WORDS if word in text]
        assert not found, (event.type, found)
        if event.sensitivity is not Sensitivity.PRIVATE:
            assert str(tmp_path) not in text, event.type
    assert not [word for word in WORDS if word in caplog.text]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {"path": "../secret.txt"}),
        ("read_file", {"path": "{outside}/secret.txt"}),
        ("read_file", {"path": "link/secret.txt"}),
        ("write_file", {"path": "../secret.txt", "content": "gone"}),
        ("write_file", {"path": "link/secret.txt", "content": "gone"}),
        ("edit_file", {"path": "link/secret.txt", "old_text": "t", "new_text": "gone"}),
        ("list_files", {"path": ".."}),
        ("grep", {"pattern": "trea.", "path": "link"}),
        ("memory_add", {"file": "../secret.txt", "text": "gone"}),
        ("load_skill", {"name": "../../secret"}),
    ],
)
async def test_no_tool_of_a_session_leaves_its_workspace(
    tmp_path: Path, url: str, tool: str, arguments: dict[str, str]
) -> None:
    outside, work = tmp_path / "outside", tmp_path / "outside" / "work"
    home = tmp_path / "home"
    skill = home / "skills" / "a"
    work.mkdir(parents=True)
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: a\ndescription: b\n---\nc")
    secret = outside / "secret.txt"
    secret.write_text("treasure")
    (work / "link").symlink_to(outside)
    given = {name: text.format(outside=outside) for name, text in arguments.items()}
    call_response = say(ToolUseBlock(new_tool_use_id(), tool, given))
    every = dict.fromkeys(SideEffects, Rule.AUTO)
    chosen = {
        "workspace": work,
        "home": home,
        "tools": Registry(*BUILTINS),
        "confirmation": Confirmation(rules=every),
    }
    async with (
        serving(Fake(call_response, say("ok"))) as fake,
        Metis(url, options(fake, **chosen)) as m,
    ):
        session = await m.session(model="sonnet")
        await session.ask("go")
        (result,) = [each for each in session.messages if each.role.value == "tool"]
    assert result.content[0].is_error, result.content  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a result
    assert secret.read_text() == "treasure"
    assert "treasure" not in str(fake.bodies[-1])
    assert sorted(path.name for path in outside.iterdir()) == ["secret.txt", "work"]
