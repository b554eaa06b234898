"""Rewinds, bookmarks and checkpoints of a conversation; no message is ever deleted."""

from collections.abc import Sequence
from itertools import takewhile

from msgspec import Struct

from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import InvalidValueError, NoTurnError
from metis.canonical.message import Message, Role
from metis.events.turn_events import SessionRewound
from metis.session.conversation import CHECKPOINT_KIND, Conversation
from metis.session.events import Trace
from metis.session.response import unanswered_calls
from metis.store.entries import BookmarkEntry, CheckpointEntry, RetractionEntry, RewindEntry

Position = str | int
"""A position in a conversation: a message id, a bookmark, or the number of a checkpoint."""


class PastTurn(Struct, frozen=True, kw_only=True):
    """One turn of a conversation: the prompt, and the responses and results that followed."""

    number: int
    """Counted from 1."""
    prompt: Message
    following: tuple[Message, ...] = ()
    """Responses and tool results in order."""

    @property
    def response(self) -> Message | None:
        """The last response, if there is one."""
        return next((m for m in reversed(self.following) if m.role is Role.ASSISTANT), None)


def past_turns(messages: Sequence[Message]) -> list[PastTurn]:
    """Return the turns of a conversation; messages before the first prompt belong to none."""
    starts = [n for n, message in enumerate(messages) if message.role is Role.USER]
    ends = [*starts[1:], len(messages)][: len(starts)]
    return [
        PastTurn(number=number, prompt=messages[start], following=tuple(messages[start + 1 : end]))
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
    ]


class HistoryEditor:
    """Moves the head of one session, and names positions in it."""

    def __init__(self, conversation: Conversation, trace: Trace) -> None:
        self._conversation = conversation
        self._trace = trace

    def find(self, position: Position | None) -> str | None:
        """Return the message id of a position, moved behind the results of its tool calls.

        None is the position before the first message. A conversation is never cut between a call
        and its results, because providers reject such a history.

        Raises:
            InvalidValueError: there is no such position, or a call at it has no result.
        """
        message_id = self._resolve(position)
        path = self._conversation.path
        index = next((n for n, message in enumerate(path) if message.id == message_id), None)
        if index is not None:
            while index + 1 < len(path) and path[index + 1].role is Role.TOOL:
                index += 1
            return path[index].id
        if message_id is not None and unanswered_calls(self._conversation.path_to(message_id)):
            fault = f"{message_id} has tool calls without results"
            raise InvalidValueError(fault, path="$.position")
        return message_id

    async def rewind(self, position: Position | None) -> None:
        """Move the head to a position."""
        await self._move_head(self.find(position))

    async def undo(self, count: int = 1) -> tuple[ContentBlock, ...]:
        """Undo the last turns; return the prompt of the first of them."""
        path = self._conversation.path
        turns = past_turns(path)
        if not 0 < count <= len(turns):
            raise NoTurnError(f"cannot take back {count} turns: there are {len(turns)}")
        prompt = turns[-count].prompt
        # The store knows only stored messages, so the head cannot move to a note of a rewind.
        earlier = takewhile(lambda message: message.id != prompt.id, path)
        stored = [message.id for message in earlier if _is_stored(message)]
        await self._move_head(stored[-1] if stored else None)
        return prompt.content

    async def retract(self, message_id: str, reason: str | None = None) -> None:
        """Remove a message and all that follow it from the history."""
        await self._conversation.record(RetractionEntry, message_id=message_id, reason=reason)

    async def bookmark(self, name: str, position: Position | None) -> str:
        """Set a bookmark, or move it; return the message id."""
        message_id = self._conversation.tip if position is None else self.find(position)
        if message_id is None:
            raise InvalidValueError("there is no message yet", path="$.position")
        await self._conversation.record(BookmarkEntry, message_id=message_id, name=name)
        return message_id

    async def unmark(self, name: str) -> None:
        """Remove a bookmark."""
        if name not in self._conversation.bookmarks:
            raise InvalidValueError(f"there is no bookmark {name!r}", path="$.name")
        await self._conversation.record(BookmarkEntry, message_id=None, name=name)

    async def checkpoint(self, name: str | None = None) -> int:
        """Number the current position, optionally with a name; return the number."""
        number = max(self._conversation.checkpoints, default=0) + 1
        await self._conversation.record(
            CheckpointEntry, message_id=self._conversation.tip, number=number
        )
        if name is not None:
            await self._conversation.note(CHECKPOINT_KIND, {"name": name, "number": number})
        return number

    def _resolve(self, position: Position | None) -> str | None:
        if isinstance(position, int):
            checkpoints = self._conversation.checkpoints
            if position not in checkpoints:
                raise InvalidValueError(f"there is no checkpoint {position}", path="$.position")
            return checkpoints[position]
        return None if position is None else self._conversation.resolve(position)

    async def _move_head(self, message_id: str | None) -> None:
        conversation = self._conversation
        before = len(conversation.path)
        await conversation.record(RewindEntry, to_id=message_id)
        removed = max(before - len(conversation.path), 0)
        self._trace.emit(SessionRewound(to_message_id=message_id, message_count=removed))


def _is_stored(message: Message) -> bool:
    """Return whether a message is in the store; the path also has notes about rewinds."""
    return message.metadata.origin != "rewind"
