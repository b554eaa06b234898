"""Accumulating stream events into content, usage and stop reason."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from msgspec import Raw

from metis.canonical import (
    InvalidInput,
    Message,
    OpaqueBlock,
    Role,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)
from metis.streaming import (
    Accumulator,
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    parse_arguments,
)

M = "01HZ001"
OPAQUE = OpaqueBlock("anthropic", Raw(b'{"type":"server_tool_use"}'))


def accumulated(*events: StreamEvent) -> Accumulator:
    accumulator = Accumulator()
    for event in events:
        accumulator.add(event)
    return accumulator


@pytest.mark.row("M-229", "M-231", "M-232", "M-233")
def test_deltas_add_up_to_content() -> None:
    done = accumulated(
        MessageStart(M),
        ThinkingDelta(M, 0, "let me "),
        ThinkingDelta(M, 0, "see"),
        ThinkingDelta(M, 0, "", "sig"),
        TextDelta(M, 1, "I'll "),
        TextDelta(M, 1, "read."),
        BlockAdded(M, 2, OPAQUE),
        ToolUseStart(M, 3, "tu_1", "read_file"),
        ToolUseInputDelta(M, 3, "tu_1", '{"path": "a'),
        ToolUseInputDelta(M, 3, "tu_1", '"}'),
        ToolUseEnd(M, 3, "tu_1", {"path": "a"}),
    )
    assert done.content == (
        ThinkingBlock("let me see", "sig"),
        TextBlock("I'll read."),
        OPAQUE,
        ToolUseBlock("tu_1", "read_file", {"path": "a"}),
    )


@pytest.mark.row("M-232")
def test_end_of_call_replaces_accumulated_arguments() -> None:
    done = accumulated(
        ToolUseStart(M, 0, "tu_1", "f"),
        ToolUseInputDelta(M, 0, "tu_1", '{"a":1'),
        ToolUseEnd(M, 0, "tu_1", {"a": 12}),
    )
    assert done.content == (ToolUseBlock("tu_1", "f", {"a": 12}),)


def test_open_call_has_partial_arguments() -> None:
    cut = accumulated(ToolUseStart(M, 0, "tu_1", "f"), ToolUseInputDelta(M, 0, "tu_1", '{"a":'))
    (call,) = cut.content
    assert isinstance(call, ToolUseBlock)
    assert call.input == {}
    assert call.invalid is not None
    assert call.invalid.raw == '{"a":'


@pytest.mark.row("M-234", "M-235")
def test_usage_and_stop_reason_are_stored() -> None:
    usage = Usage(
        input_tokens=1, output_tokens=2, cost_usd=Decimal(0), pricing_version="x", latency_ms=3
    )
    message = Message(
        id=M,
        session_id="s",
        role=Role.ASSISTANT,
        content=(TextBlock("hi"),),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    end = MessageComplete(M, StopReason.END_TURN, message)
    done = accumulated(UsageUpdate(M, usage), end)
    assert (done.usage, done.final_event) == (usage, end)


@pytest.mark.row("T34")
@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_absent_arguments_are_an_empty_input(text: str) -> None:
    assert parse_arguments(text) == ({}, None)


@pytest.mark.row("M-042", "T32")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[1]", "not an object but array of 1 item"),
        ("null", "not an object but null"),
        ('"x"', 'not an object but string "x"'),
        ('{"a":', "not JSON: Input data was truncated"),
    ],
)
def test_non_object_arguments_are_never_an_input(text: str, error: str) -> None:
    assert parse_arguments(text) == ({}, InvalidInput(text, error))
