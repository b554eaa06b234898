"""Trace events of a turn."""

import pytest

from build import call, image, text
from metis.canonical import new_tool_use_id
from metis.canonical.errors import SwapRefusedError
from metis.events import Bus, Event
from metis.events.event import encode_json
from metis.session import Metis
from sample_events import cause_faults
from session.fake import Fake, say, serving
from session.helpers import events_of, options

pytestmark = pytest.mark.anyio
CANARY = "sk-canary-0123456789"


def listening() -> tuple[Bus, list[Event]]:
    bus, bus_events = Bus(), list[Event]()
    bus.subscribe_fast(bus_events.append, name="test")
    return bus, bus_events


async def test_turn_events_are_ordered_with_causes_and_without_content(url: str) -> None:
    bus, bus_events = listening()
    reading = say("I read xyzzy.", call("read_file", new_tool_use_id(), path="plugh.txt"))
    keys = {"anthropic": CANARY}
    async with (
        serving(Fake(reading, say("done"))) as fake,
        Metis(url, options(fake, bus=bus, keys=keys)) as m,
    ):
        session = await m.session(model="sonnet")
        await events_of(session, "please read frotz")
    assert fake.headers[0]["x-api-key"] == CANARY
    assert [event.type for event in bus_events] == [
        "session.created",
        "turn.started",
        "route.decided",
        "llm.call_started",
        "llm.call_completed",
        "tool.called",
        "tool.completed",
        "llm.call_started",
        "llm.call_completed",
        "turn.completed",
    ]
    assert list(cause_faults(bus_events)) == []
    encoded_events = b"".join(map(encode_json, bus_events))
    for secret in (b"xyzzy", b"frotz", b"plugh", CANARY.encode()):
        assert secret not in encoded_events


@pytest.mark.row("M-246")
async def test_a_refused_swap_is_one_event(url: str) -> None:
    bus, bus_events = listening()
    async with serving(Fake()) as fake, Metis(url, options(fake, bus=bus, tools=None)) as m:
        session = await m.session(model="sonnet")
        await session.ask([text("what is this?"), image()])
        bus_events.clear()
        with pytest.raises(SwapRefusedError):
            await session.swap("openai:gpt-3.5-turbo")
    assert [event.type for event in bus_events] == ["route.constraint_failed"]
    payload = bus_events[0].payload
    assert getattr(payload, "model", None) == "openai:gpt-3.5-turbo"
    assert getattr(payload, "capability", None) == "no_vision_support"
    assert "images" in getattr(payload, "reason", "")


async def test_failed_call_is_one_event_and_ends_the_turn(url: str) -> None:
    bus, bus_events = listening()
    async with (
        serving(Fake(say(status=400, error="no frotz here"))) as fake,
        Metis(url, options(fake, bus=bus)) as m,
    ):
        session = await m.session(model="sonnet")
        with pytest.raises(Exception, match="frotz"):
            await session.ask("x")
    assert [event.type for event in bus_events][3:] == [
        "llm.call_started",
        "llm.call_failed",
        "turn.failed",
    ]
    assert b"frotz" not in b"".join(map(encode_json, bus_events))
    assert list(cause_faults(bus_events)) == []
