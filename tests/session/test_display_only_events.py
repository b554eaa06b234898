"""Deltas, call starts, interrupts and losses are shown during a turn and not stored."""

import asyncio
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from build import call, thinking
from metis.canonical import MessageStatus, RedactedThinkingBlock, StopReason, new_tool_use_id
from metis.events import Bus, Event
from metis.session import Lost, Metis
from metis.store.entries import encode_entry
from metis.store.replay import Interrupt, replay
from metis.streaming import TextDelta, ToolUseStart
from session.fake import Fake, say, serving
from session.helpers import events_of, options

pytestmark = pytest.mark.anyio


async def stored_types(m: Metis, session_id: str) -> Counter[str]:
    history = await m.store.history(session_id)
    return Counter(json.loads(encode_entry(entry))["type"] for entry in history)


@pytest.mark.row("K-006", "K-007", "K-086", "K-087")
async def test_the_start_of_a_call_is_shown_and_never_stored(url: str) -> None:
    reading = say("I'll read it.", call("read_file", new_tool_use_id(), path="a"))
    async with serving(Fake(reading, say("done"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        shown = await events_of(session, "read it")
        stored = await stored_types(m, session.id)
    assert len([event for event in shown if isinstance(event, ToolUseStart)]) == 1
    assert len([event for event in shown if isinstance(event, TextDelta)]) > 1
    assert stored == {"message": 4}


@pytest.mark.row("K-010", "K-013")
async def test_interrupt_is_a_status_of_the_response_and_not_an_entry(url: str) -> None:
    slow = say("one two three four", events=4, hang=True)
    async with serving(Fake(slow)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        tasks: list[asyncio.Task[None]] = []
        async for event in session.send("count"):
            if isinstance(event, TextDelta) and not tasks:
                tasks.append(asyncio.create_task(session.cancel()))
        await tasks[0]
        stored = await stored_types(m, session.id)
        history = await m.store.history(session.id)
        answer = (await m.store.messages(session.id))[-1]
    assert stored == {"message": 2}
    assert answer.metadata.status is MessageStatus.CANCELLED
    assert answer.metadata.stop_reason is StopReason.CANCELLED
    assert [event for event in replay(history) if isinstance(event, Interrupt)] == [
        Interrupt(entry_id=answer.id)
    ]


@pytest.mark.row("M-002", "M-062", "M-223", "M-306")
async def test_loss_is_logged_as_warning_and_not_a_bus_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Equal turns with and without a loss put equal events on the bus of the session."""

    async def played(name: str, *parts: Any) -> tuple[Counter[str], list[Any], list[str]]:
        bus_events: list[Event] = []
        bus = Bus()
        bus.subscribe_fast(bus_events.append, name="test")
        caplog.clear()
        async with (
            serving(Fake(say(*parts, "so"), say("two"))) as fake,
            Metis(f"sqlite:///{tmp_path / name}.db", options(fake, bus=bus)) as m,
        ):
            session = await m.session(model="sonnet")
            await session.ask("why")
            await session.swap("openai:gpt-5")
            shown = await events_of(session, "on")
        lost = [event for event in shown if isinstance(event, Lost)]
        warned = [
            str(getattr(record, "block_type", ""))
            for record in caplog.records
            if record.name == "metis.adapters" and record.levelno == logging.WARNING
        ]
        return Counter(each.type for each in bus_events), lost, warned

    with caplog.at_level(logging.WARNING, logger="metis.adapters"):
        plain_events, nothing, no_warning = await played("plain")
        events, lost, warned = await played(
            "sealed", thinking("hm", signature="c2ln"), RedactedThinkingBlock("ZW5j")
        )
    assert (nothing, no_warning) == ([], [])
    assert warned == ["thinking", "redacted_thinking"]
    assert lost
    assert events == plain_events
    assert plain_events["turn.completed"] == 2
