"""Replay: the items to display for a journal, derived from its entries.

Interrupts and response metadata are not stored as entries. An interrupt is a response that was
cancelled or a tool call that was aborted; response metadata are fields of the assistant message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, OutcomeStatus, StopReason, Usage
from metis.store.entries import (
    AnyEntry,
    CompactionEntry,
    ErrorEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SwapEntry,
    TaskMetadataEntry,
)


class ReplayItem(Struct, frozen=True, kw_only=True):
    """One item of a replay; `entry_id` names the entry that it comes from."""

    entry_id: str


class ReplayedText(ReplayItem, frozen=True, kw_only=True, tag=True):
    """Text of a system, developer, user or assistant message."""

    role: Role
    text: str


class ReplayedThinking(ReplayItem, frozen=True, kw_only=True, tag=True):
    """The text of a thinking block; signatures are never shown."""

    text: str


class ReplayedMedia(ReplayItem, frozen=True, kw_only=True, tag=True):
    """An image or an artifact."""

    block: ImageBlock | ArtifactBlock


class ReplayedToolCall(ReplayItem, frozen=True, kw_only=True, tag=True):
    """A tool call."""

    tool_use_id: str
    name: str
    input: Mapping[str, Any]
    error: str | None = None
    """What is wrong with the arguments, if they were not a JSON object."""


class ReplayedToolResult(ReplayItem, frozen=True, kw_only=True, tag=True):
    """A tool result; an aborted one is an error, followed by an interrupt."""

    tool_use_id: str
    name: str | None
    status: Literal["success", "error"]
    text: str
    ui: Any | UnsetType = UNSET


class ResponseMetadata(ReplayItem, frozen=True, kw_only=True, tag=True):
    """Usage and stop reason of a response."""

    model: str | None
    response_id: str | None
    stop_reason: StopReason | None
    usage: Usage | None


class Interrupt(ReplayItem, frozen=True, kw_only=True, tag=True):
    """The user stopped a response or a tool."""

    tool_use_id: str | None = None


class ReplayedError(ReplayItem, frozen=True, kw_only=True, tag=True):
    """A stored error."""

    text: str


class TaskMetadata(ReplayItem, frozen=True, kw_only=True, tag=True):
    """Totals of a task."""

    data: Mapping[str, Any]


class ConversationChange(ReplayItem, frozen=True, kw_only=True, tag=True):
    """A change of the conversation itself: a swap, a summary, a rewind, a retraction."""

    kind: Literal["swap", "compaction", "rewind", "retraction"]
    text: str | None = None


AnyReplayItem = (
    ReplayedText
    | ReplayedThinking
    | ReplayedMedia
    | ReplayedToolCall
    | ReplayedToolResult
    | ResponseMetadata
    | Interrupt
    | ReplayedError
    | TaskMetadata
    | ConversationChange
)
"""Every kind of replay item."""


def replay(entries: Iterable[AnyEntry]) -> Iterator[AnyReplayItem]:
    """Yield the items of a journal in order, including messages that were hidden later."""
    for entry in entries:
        match entry:
            case MessageEntry():
                yield from replay_message(entry.message)
            case ErrorEntry():
                yield ReplayedError(entry_id=entry.id, text=entry.text)
            case TaskMetadataEntry():
                yield TaskMetadata(entry_id=entry.id, data=entry.data)
            case SwapEntry():
                yield ConversationChange(entry_id=entry.id, kind="swap", text=entry.to_model)
            case CompactionEntry():
                yield ConversationChange(entry_id=entry.id, kind="compaction", text=entry.summary)
            case RewindEntry():
                yield ConversationChange(entry_id=entry.id, kind="rewind", text=entry.note)
            case RetractionEntry():
                yield ConversationChange(
                    entry_id=entry.id, kind="retraction", text=entry.message_id
                )
            case _:
                pass  # other entries are not displayed


def replay_message(message: Message) -> Iterator[AnyReplayItem]:
    """Yield the items of one message, which are those that a live view shows."""
    for block in message.content:
        # A result needs the outcome, which is in the metadata of its message.
        if isinstance(block, ToolResultBlock):
            yield from _replay_result(message, block)
        else:
            yield from _replay_block(message, block)
    if message.role == Role.ASSISTANT:
        metadata = message.metadata
        yield ResponseMetadata(
            entry_id=message.id,
            model=metadata.model,
            response_id=metadata.response_id,
            stop_reason=metadata.stop_reason,
            usage=metadata.usage,
        )
        if is_interrupted(message):
            yield Interrupt(entry_id=message.id)


def _replay_block(message: Message, block: ContentBlock) -> Iterator[AnyReplayItem]:
    match block:
        case TextBlock():
            yield ReplayedText(entry_id=message.id, role=message.role, text=block.text)
        case ThinkingBlock() if block.text:
            yield ReplayedThinking(entry_id=message.id, text=block.text)
        case ImageBlock() | ArtifactBlock():
            yield ReplayedMedia(entry_id=message.id, block=block)
        case ToolUseBlock():
            yield ReplayedToolCall(
                entry_id=message.id,
                tool_use_id=block.id,
                name=block.name,
                input=block.input,
                error=None if block.invalid is None else block.invalid.error,
            )
        case _:
            return


def _replay_result(message: Message, block: ToolResultBlock) -> Iterator[AnyReplayItem]:
    outcome = message.metadata.outcome
    yield ReplayedToolResult(
        entry_id=message.id,
        tool_use_id=block.tool_use_id,
        name=None if outcome is None else outcome.tool_name,
        status="error" if block.is_error or is_interrupted(message) else "success",
        text=output_text(block),
        ui=UNSET if outcome is None else outcome.ui,
    )
    if is_interrupted(message):
        yield Interrupt(entry_id=message.id, tool_use_id=block.tool_use_id)


def is_interrupted(message: Message) -> bool:
    """Return whether the user stopped this response or tool; failures and timeouts do not count."""
    metadata = message.metadata
    if message.role == Role.TOOL:
        return metadata.outcome is not None and metadata.outcome.status == OutcomeStatus.ABORTED
    is_cancelled = metadata.status == MessageStatus.CANCELLED
    return is_cancelled or metadata.stop_reason == StopReason.CANCELLED


def output_text(result: ToolResultBlock) -> str:
    """Return the text of a tool result."""
    return "".join(block.text for block in result.content if isinstance(block, TextBlock))


def system_text(messages: Sequence[Message]) -> str:
    """Return the system messages as one text, for providers with one field for them."""
    texts = [
        block.text
        for message in messages
        if message.role == Role.SYSTEM
        for block in message.content
        if isinstance(block, TextBlock)
    ]
    return "\n\n".join(texts)


def fork_points(messages: Sequence[Message]) -> list[str]:
    """Return the ids of user messages, before each of which a conversation can be forked."""
    return [message.id for message in messages if message.role == Role.USER]
