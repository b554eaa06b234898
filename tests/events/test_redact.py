"""Redaction of events: modes, pseudonyms and aggregates."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from metis.events import Event, Redaction, aggregate, pseudonym, redact
from metis.events.event import encode_json
from sample_events import NAMED, PRIVATE, REFERENCE, every_event, recording_bus, run_turn

MODES = [Redaction.PASSTHROUGH, Redaction.PSEUDONYMIZE, Redaction.REDACT_PRIVATE]


def emitted_events(events: list[Event]) -> str:
    return b"".join(encode_json(event) for event in events).decode()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("salt", ["", "pepper"])
def test_redaction_is_deterministic_and_idempotent(mode: Redaction, salt: str) -> None:
    once = list(redact(every_event(), mode, salt=salt))
    assert list(redact(every_event(), mode, salt=salt)) == once
    assert list(redact(once, mode, salt=salt)) == once


def test_each_mode_removes_its_fields() -> None:
    events = every_event()
    plain, pseudonymous, private = (emitted_events(list(redact(events, mode))) for mode in MODES)
    assert plain == emitted_events(events)
    assert REFERENCE not in pseudonymous
    assert "sess_1" not in pseudonymous
    assert "turn_1" not in pseudonymous
    assert PRIVATE in pseudonymous
    assert PRIVATE not in private
    assert REFERENCE not in private
    assert NAMED in private
    assert "[REDACTED]" in private


@pytest.mark.parametrize("mode", MODES)
def test_event_envelope_is_preserved(mode: Redaction) -> None:
    for before, after in zip(every_event(), redact(every_event(), mode), strict=True):
        for field in ("id", "parent_event_id", "timestamp", "actor", "type"):
            assert getattr(before, field) == getattr(after, field)
        numbers = {k: v for k, v in to_builtins(before.payload).items() if isinstance(v, int)}
        assert numbers.items() <= to_builtins(after.payload).items()


def test_events_of_one_session_can_still_be_grouped() -> None:
    bus, events = recording_bus()
    run_turn(bus)
    run_turn(bus, "sess_2", "turn_2")
    sessions = [event.session_id for event in redact(events, Redaction.PSEUDONYMIZE, salt="a")]
    assert len(set(sessions)) == 2
    other = [event.session_id for event in redact(events, Redaction.PSEUDONYMIZE, salt="b")]
    assert not set(sessions) & set(other)


def test_aggregate_mode_leaves_only_sums() -> None:
    events = every_event()
    assert list(redact(events, Redaction.AGGREGATE_ONLY)) == []
    totals = aggregate([*events, *events])
    assert aggregate(reversed([*events, *events])) == totals
    text = repr(totals)
    assert not [word for word in (PRIVATE, NAMED, REFERENCE, "sess_1") if word in text]
    (calls,) = [total for total in totals if total.type == "llm.call_completed"]
    assert (calls.count, calls.sums["input_tokens"], str(calls.sums["cost_usd"])) == (2, 6, "3.00")


@given(st.text(), st.sampled_from(["user", "session"]), st.text())
def test_a_pseudonym_is_stable_and_hides_the_name(name: str, tag: str, salt: str) -> None:
    created = pseudonym(name, tag, salt)
    assert re.fullmatch(rf"ps:{tag}:[0-9a-f]{{16}}", created)
    assert pseudonym(name, tag, salt) == created == pseudonym(created, tag, salt)
