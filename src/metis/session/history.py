"""History: going back in a conversation, and giving names to its places; nothing is deleted."""

from collections.abc import Sequence
from itertools import takewhile

from msgspec import Struct

from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import InvalidValueError, NoTurnError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.events.turn_events import SessionRewound
from metis.session.conversation import Conversation
from metis.session.events import Trace
from metis.session.options import Setup
from metis.session.response import unanswered_calls
from metis.store.entries import BookmarkEntry, CheckpointEntry, RetractionEntry, RewindEntry

Position = str | int
"""A place in a conversation: the id of a message, a bookmark, or the number of a checkpoint."""


class PastTurn(Struct, frozen=True, kw_only=True):
    """One turn as it is seen now: what the user said, and what came of it."""

    number: int
    """Counted from 1."""
    prompt: Message
    following: tuple[Message, ...] = ()
    """Answers and results in their order."""

    @property
    def response(self) -> Message | None:
        """The last answer, if there is one."""
        return next((m for m in reversed(self.following) if m.role is Role.ASSISTANT), None)


def past_turns(messages: Sequence[Message]) -> list[PastTurn]:
    """The turns of a conversation; what was said before the first belongs to none."""
    starts = [n for n, message in enumerate(messages) if message.role is Role.USER]
    ends = [*starts[1:], len(messages)][: len(starts)]
    return [
        PastTurn(number=number, prompt=messages[start], following=tuple(messages[start + 1 : end]))
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
    ]


class HistoryEditor:
    """Steps back, bookmarks and checkpoints of one session."""

    def __init__(self, setup: Setup, conversation: Conversation, trace: Trace) -> None:
        self._setup = setup
        self._conversation = conversation
        self._trace = trace

    def find(self, position: Position | None) -> str | None:
        """The message at a place, or the last result of its calls; None is before the first.

        A conversation is never cut between a call and its results.
        """
        own = self._resolve(position)
        path = self._conversation.path
        at = next((n for n, message in enumerate(path) if message.id == own), None)
        if at is not None:
            while at + 1 < len(path) and path[at + 1].role is Role.TOOL:
                at += 1
            return path[at].id
        if own is not None and unanswered_calls(self._conversation.path_to(own)):
            raise InvalidValueError(f"{own} has calls without results", path="$.place")
        return own

    async def rewind(self, position: Position | None) -> None:
        """Go back to a place: what came after it is no longer seen."""
        await self._go(self.find(position))

    async def undo(self, count: int = 1) -> tuple[ContentBlock, ...]:
        """Take the last turns back; gives what the user had said in the first of them."""
        path = self._conversation.path
        turns = past_turns(path)
        if not 0 < count <= len(turns):
            raise NoTurnError(f"{count} turns cannot be taken back: there are {len(turns)}")
        question = turns[-count].prompt
        earlier = takewhile(lambda each: each.id != question.id, path)
        before = [each.id for each in earlier if _is_stored(each)]
        await self._go(before[-1] if before else None)
        return question.content

    async def retract(self, message_id: str, reason: str | None = None) -> None:
        """Take a message back, and what follows it with it."""
        await self._conversation.record(
            RetractionEntry(
                id=new_ulid(),
                session_id=self._conversation.id,
                created_at=self._setup.now(),
                message_id=message_id,
                reason=reason,
            )
        )

    async def bookmark(self, name: str, position: Position | None) -> str:
        """Give a name to a place, or move it there; gives the id of the message."""
        found = self._conversation.tip if position is None else self.find(position)
        if found is None:
            raise InvalidValueError("nothing was said yet", path="$.place")
        await self._name(name, found)
        return found

    async def unmark(self, name: str) -> None:
        """Take a bookmark away."""
        if name not in self._conversation.bookmarks:
            raise InvalidValueError(f"no bookmark is called {name!r}", path="$.name")
        await self._name(name, None)

    async def checkpoint(self) -> int:
        """Number the place where the conversation is now; the number stays there."""
        number = max(self._conversation.checkpoints, default=0) + 1
        await self._conversation.record(
            CheckpointEntry(
                id=new_ulid(),
                session_id=self._conversation.id,
                created_at=self._setup.now(),
                message_id=self._conversation.tip,
                number=number,
            )
        )
        return number

    def _resolve(self, place: Position | None) -> str | None:
        if isinstance(place, int):
            checkpoints = self._conversation.checkpoints
            if place not in checkpoints:
                raise InvalidValueError(f"there is no checkpoint {place}", path="$.place")
            return checkpoints[place]
        return None if place is None else self._conversation.resolve(place)

    async def _go(self, target: str | None) -> None:
        conversation = self._conversation
        before = len(conversation.path)
        await conversation.record(
            RewindEntry(
                id=new_ulid(),
                session_id=conversation.id,
                created_at=self._setup.now(),
                to_id=target,
            )
        )
        gone = before - len(conversation.path)
        self._trace.emit(SessionRewound(to_message_id=target, message_count=max(gone, 0)))

    async def _name(self, name: str, message_id: str | None) -> None:
        await self._conversation.record(
            BookmarkEntry(
                id=new_ulid(),
                session_id=self._conversation.id,
                created_at=self._setup.now(),
                message_id=message_id,
                name=name,
            )
        )


def _is_stored(message: Message) -> bool:
    """Whether a message is one of the store, and no note that stands like one."""
    return message.metadata.origin != "rewind"
