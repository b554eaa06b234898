"""The event registry: closed list of types, privacy classes, encoding and decoding."""

import logging
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metis.canonical import SideEffects
from metis.canonical.errors import InvalidEventError
from metis.events import CATALOGUE, Event, Payload, Sensitivity, read_event
from metis.events.event import encode_json
from metis.events.registry import event_type_of
from metis.events.turn_events import RouteDecided, ToolCalled, ToolCompleted
from sample_events import (
    NAMED,
    PRIVATE,
    REFERENCE,
    completed,
    every_event,
    every_payload,
    filled,
    recording_bus,
)

STREAM_NAMES = ("message.", "text.", "thinking.", "tool.use_")
DOMAINS = {
    *("session", "turn", "llm", "tool", "route", "routing", "skill", "memory", "delegate"),
    *("feedback", "budget", "gateway", "bus", "trace"),
}


def name_of(payload: Payload) -> str:
    row = event_type_of(payload)
    assert row is not None
    return row.type


def test_event_types_are_closed_and_names_have_one_form() -> None:
    for name, row in CATALOGUE.items():
        assert name == row.type
        assert name.partition(".")[0] in DOMAINS
        assert not name.startswith(STREAM_NAMES), "reserved for streams"
        assert {*row.parents, *row.ends} <= CATALOGUE.keys()


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_type_is_at_least_as_private_as_its_fields(name: str) -> None:
    row = CATALOGUE[name]
    assert all(
        row.sensitivity.openness <= field.sensitivity.openness for field in row.fields.values()
    )


def test_no_event_type_has_a_content_field() -> None:
    text = {"text", "prompt", "content", "message", "messages", "input", "output", "email"}
    assert not [name for name, row in CATALOGUE.items() if text & row.fields.keys()]


@pytest.mark.parametrize("payload", every_payload(), ids=name_of)
def test_valid_payload_round_trips(payload: Payload) -> None:
    bus, emitted = recording_bus()
    event = bus.emit(payload)
    assert emitted == [event]
    assert event is not None
    assert event.payload == payload
    assert read_event(encode_json(event)) == event
    assert encode_json(read_event(encode_json(event))) == encode_json(event)


class Foreign(Payload, frozen=True, kw_only=True):
    """A payload type that is not registered."""

    number: int = 1


@pytest.mark.parametrize("payload", every_payload(), ids=name_of)
def test_an_invalid_payload_is_refused_or_dropped(
    payload: Payload, caplog: pytest.LogCaptureFixture
) -> None:
    for name in payload.__struct_fields__:
        wrong = replace(payload, **{name: {"no": "such"}})
        bus, emitted = recording_bus()
        with pytest.raises(InvalidEventError, match=name) as caught:
            bus.emit(wrong)
        assert name_of(payload) in caught.value.path
        lenient, received = recording_bus(strict=False)
        with caplog.at_level(logging.ERROR):
            assert lenient.emit(wrong) is None
        assert emitted == received == []
        assert "dropped an invalid event" in caplog.text


def test_money_is_a_number_and_round_trips() -> None:
    with pytest.raises(InvalidEventError, match="cost_usd"):
        completed(cost_usd=Decimal("NaN"))
    bus, emitted = recording_bus()
    bus.emit(replace(filled(ToolCompleted), files_modified=["a", "b"]))
    assert isinstance(emitted[0].payload, ToolCompleted)
    assert emitted[0].payload.files_modified == ("a", "b")


def test_unregistered_payload_is_refused() -> None:
    bus, emitted = recording_bus()
    with pytest.raises(InvalidEventError, match="not in the catalogue"):
        bus.emit(Foreign())
    assert emitted == []


@pytest.mark.parametrize("payload", every_payload(), ids=name_of)
def test_emitter_can_only_set_more_open_sensitivity(payload: Payload) -> None:
    row = event_type_of(payload)
    assert row is not None
    for sensitivity in Sensitivity:
        bus, emitted = recording_bus()
        if sensitivity.openness >= row.sensitivity.openness:
            bus.emit(payload, sensitivity=sensitivity)
            assert emitted[0].sensitivity is sensitivity
        else:
            with pytest.raises(InvalidEventError, match="more open"):
                bus.emit(payload, sensitivity=sensitivity)


@pytest.mark.row("M-120")
def test_tool_event_has_side_effect_class() -> None:
    bus, emitted = recording_bus()
    for effect in SideEffects:
        bus.emit(
            ToolCalled(
                tool_use_id="tu_1",
                tool_name="run",
                side_effects=effect,
                input_hash="h",
                input_size_bytes=1,
            )
        )
    assert [getattr(event.payload, "side_effects", None) for event in emitted] == list(SideEffects)


@pytest.mark.row("M-079", "M-309")
def test_routing_event_has_whole_chain() -> None:
    (event,) = [event for event in every_event() if isinstance(event.payload, RouteDecided)]
    assert isinstance(event.payload, RouteDecided)
    assert event.payload.chain[0].__struct_fields__ == (
        *("policy", "verdict", "reason", "candidate_model", "rule_name", "confidence"),
        *("pattern_alternatives", "validation_failure"),
    )


def test_an_unknown_type_or_field_is_skipped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = encode_json(every_event()[0])
    expected = every_event()[0].type.encode()
    assert read_event(data.replace(b'"type":"' + expected, b'"type":"future.done')) is None
    assert read_event(data.replace(b'"payload":{', b'"payload":{"future":1,')) is None
    assert caplog.text.count("skipped an event") == 2


@given(st.binary(max_size=30) | st.text(max_size=30))
def test_any_bytes_are_an_event_or_an_error(data: Any) -> None:
    with pytest.raises(InvalidEventError):
        read_event(data)


def test_sample_events_have_every_privacy_marker() -> None:
    emitted = b"".join(encode_json(event) for event in every_event()).decode()
    assert all(word in emitted for word in (PRIVATE, NAMED, REFERENCE))


def test_events_are_values() -> None:
    first, second = every_event(), every_event()
    assert first == second
    assert isinstance(first[0], Event)
