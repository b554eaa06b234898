"""Replay: display events derived from stored entries."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from build import (
    NOW,
    SESSION,
    assistant,
    call,
    provenance,
    system,
    text,
    thinking,
    tool,
    tool_id,
    ulid,
    user,
)
from metis.canonical import (
    Message,
    MessageMetadata,
    MessageStatus,
    Outcome,
    OutcomeStatus,
    RedactedThinkingBlock,
    StopReason,
)
from metis.canonical.blocks import ToolResultBlock
from metis.store.entries import (
    ENTRY_TYPES,
    AnyEntry,
    CompactionEntry,
    ErrorEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SidecarEntry,
    SwapEntry,
    TaskMetadataEntry,
    decode_entry,
    encode_entry,
)
from metis.store.replay import (
    ConversationChange,
    Interrupt,
    ReplayedError,
    ReplayedText,
    ReplayedThinking,
    ReplayedToolCall,
    ReplayedToolResult,
    ResponseMetadata,
    TaskMetadata,
    fork_points,
    output_text,
    replay,
    replay_message,
    system_text,
)


def entry(message: Message) -> MessageEntry:
    return MessageEntry(
        id=message.id, session_id=SESSION, created_at=message.created_at, message=message
    )


def common(number: int) -> dict[str, Any]:
    return {
        "id": ulid(number),
        "session_id": SESSION,
        "created_at": NOW + timedelta(seconds=number),
    }


def tool_message(status: OutcomeStatus, **fields: Any) -> Message:
    metadata = MessageMetadata(
        parent_tool_use_id=tool_id(1), outcome=Outcome(status=status, tool_name="bash")
    )
    return tool("out", answers=tool_id(1), metadata=metadata, **fields)


@pytest.mark.row("K-010", "K-013", "K-103")
def test_cancelled_response_ends_with_interrupt() -> None:
    stopped = provenance(status=MessageStatus.CANCELLED, stop_reason=StopReason.CANCELLED)
    answer = assistant("I was say", metadata=stopped)
    events = list(replay([entry(user("hi")), entry(answer)]))
    assert [type(event) for event in events] == [
        ReplayedText,
        ReplayedText,
        ResponseMetadata,
        Interrupt,
    ]
    assert events[-1] == Interrupt(entry_id=answer.id)
    assert "interrupt" not in ENTRY_TYPES
    assert "response_metadata" not in ENTRY_TYPES


def test_local_interrupt_overrides_provider_stop_reason() -> None:
    late = provenance(status=MessageStatus.CANCELLED, stop_reason=StopReason.END_TURN)
    assert isinstance(list(replay_message(assistant("x", metadata=late)))[-1], Interrupt)


@pytest.mark.row("K-013", "K-068", "K-069", "K-103")
def test_an_aborted_tool_is_shown_as_an_error_and_then_an_interrupt() -> None:
    events = list(replay_message(tool_message(OutcomeStatus.ABORTED)))
    assert [type(event) for event in events] == [ReplayedToolResult, Interrupt]
    assert isinstance(events[0], ReplayedToolResult)
    assert events[0].status == "error"
    assert events[1] == Interrupt(entry_id=ulid(1), tool_use_id=tool_id(1))


@pytest.mark.parametrize(
    ("status", "shown"), [(OutcomeStatus.SUCCESS, "success"), (OutcomeStatus.ERROR, "error")]
)
def test_failure_is_not_an_interrupt(status: OutcomeStatus, shown: str) -> None:
    failed = status == OutcomeStatus.ERROR
    block = ToolResultBlock(tool_id(1), (text("out"),), failed)
    message = replace(tool_message(status), content=(block,))
    assert [getattr(event, "status", None) for event in replay_message(message)] == [shown]


@pytest.mark.row("K-009", "K-117")
def test_response_metadata_come_from_the_message() -> None:
    about = provenance(stop_reason=StopReason.END_TURN, response_id="msg_1")
    answer = assistant("hi", metadata=about)
    live, reread = list(replay_message(answer)), list(replay([entry(answer)]))
    assert live == reread
    assert live[-1] == ResponseMetadata(
        entry_id=answer.id,
        model=about.model,
        response_id="msg_1",
        stop_reason=StopReason.END_TURN,
        usage=about.usage,
    )


@pytest.mark.row("K-039", "K-044")
def test_thinking_is_shown_without_signature() -> None:
    sealed = thinking("why", signature="SECRET-SEAL")
    answer = assistant(sealed, RedactedThinkingBlock("SECRET-DATA"), thinking(""), "so")
    events = list(replay_message(answer))
    assert [type(event) for event in events] == [ReplayedThinking, ReplayedText, ResponseMetadata]
    assert "SECRET" not in repr(events)


@pytest.mark.row("K-004", "K-022", "K-028", "K-076", "K-075", "K-124")
def test_errors_and_task_metadata_are_replayed_in_order() -> None:
    entries: list[AnyEntry] = [
        entry(user("hi")),
        ErrorEntry(text="overloaded", **common(2)),
        entry(assistant(call("bash", tool_id(1), cmd="ls"), id=ulid(3))),
        entry(tool("out", answers=tool_id(1), id=ulid(4))),
        TaskMetadataEntry(data={"turns": 1}, **common(5)),
    ]
    kinds = [
        ReplayedText,
        ReplayedError,
        ReplayedToolCall,
        ResponseMetadata,
        ReplayedToolResult,
        TaskMetadata,
    ]
    resumed = [decode_entry(encode_entry(item)) for item in entries]
    assert [type(event) for event in replay(resumed)] == kinds


def test_changes_of_the_conversation_are_marked_and_sidecars_are_not_shown() -> None:
    entries: list[AnyEntry] = [
        SwapEntry(to_model="openai:gpt-5", **common(1)),
        CompactionEntry(summary="s", **common(2)),
        RewindEntry(**common(3)),
        RetractionEntry(message_id=ulid(1), **common(4)),
        SidecarEntry(kind="away_summary", data={}, **common(5)),
    ]
    kinds = ["swap", "compaction", "rewind", "retraction"]
    assert [
        event.kind for event in replay(entries) if isinstance(event, ConversationChange)
    ] == kinds


@pytest.mark.row("K-055", "K-072")
def test_result_text_is_derived_from_its_blocks() -> None:
    block = tool("a", "b").content[0]
    assert isinstance(block, ToolResultBlock)
    assert output_text(block) == "ab"
    events = list(replay_message(tool("a", "b")))
    assert isinstance(events[0], ReplayedToolResult)
    assert events[0].text == "ab"


@pytest.mark.row("K-095")
def test_instructions_are_derived_from_the_stored_messages() -> None:
    assert system_text([system("one"), user("hi"), system("two")]) == "one\n\ntwo"


def test_conversation_can_be_forked_at_each_prompt() -> None:
    messages = [system("s", id=ulid(1)), user("a", id=ulid(2)), assistant("b", id=ulid(3))]
    assert fork_points([*messages, user("c", id=ulid(4))]) == [ulid(2), ulid(4)]
