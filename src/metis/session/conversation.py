"""Conversation: the journal of one session in memory, always as far as the store has it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.ids import new_tool_use_id, new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, Usage
from metis.events import Budget
from metis.session.finishing import finished
from metis.session.seen import Seen
from metis.store import Store
from metis.store.entries import (
    AnyEntry,
    BookmarkEntry,
    CheckpointEntry,
    CompactionEntry,
    MessageEntry,
    SidecarEntry,
    SwapEntry,
)
from metis.store.threads import Threads
from metis.wire.call import UNPRICED
from metis.wire.reasoning import Reasoning
from metis.wire.spelling import with_tool_ids

POINTER = "provider_ptr"
"""The option of a turn that points to a model."""

PINNED = "session.model"
"""The kind of the entry that says that no model is set for the session any more."""

BUDGET = "session.budget"
"""The kind of the entry that sets the limits of the session."""

REASONING = "session.reasoning"
"""The kind of the entry that sets how much models think in the session."""

UNSEEN = "session.usage"
"""The kind of the entry for a call that cost something and left no message."""


DELEGATED = "session.worker"
"""The kind of the entry for a worker that is done, and what it has cost."""


class ModelUse(Struct, frozen=True):
    """How often a model was asked in a session, and with how many tokens."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0

    def with_call(self, usage: Usage) -> "ModelUse":
        """The same with one more call."""
        return ModelUse(
            self.calls + 1,
            self.prompt_tokens + usage.prompt_tokens,
            self.cached_input_tokens + usage.cached_input_tokens,
            self.output_tokens + usage.output_tokens,
        )


class SessionCost(Struct, frozen=True):
    """What a session has cost, exactly."""

    total_usd: Decimal
    by_model: dict[str, Decimal]
    unpriced_models: tuple[str, ...] = ()
    """Models without a known price: their calls are not in the total."""
    used: dict[str, ModelUse] = {}
    """What was asked of each model, whether or not it is still shown."""


class Conversation:
    """What was said in a session, and what a model is shown of it."""

    def __init__(
        self,
        store: Store,
        session_id: str,
        entries: Iterable[AnyEntry] = (),
        *,
        pinned: str | None = None,
    ) -> None:
        self.id = session_id
        self.store = store
        self.pinned = pinned
        """The model that the user set for the session."""
        self._limit_usd: Decimal | UnsetType | None = UNSET
        self.reasoning: Reasoning | None = None
        """How much models think in the session; None leaves it to the house."""
        self.checkpoints: dict[int, str | None] = {}
        """The message at each numbered place; None is before the first."""
        self._threads = Threads()
        self._view: list[Message] | None = []
        self._inherited: dict[str, Any] | None = {}
        self._taken = 0
        self._set_at = 0
        """After how many entries a model was set by hand."""
        self._pointed_at: dict[str, int] = {}
        """The same for each message that points to a model."""
        self._seen = Seen()
        self._calls: set[str] = set()
        self._costs: dict[str, Decimal] = {}
        self._used: dict[str, ModelUse] = {}
        self.delegated_usd = Decimal(0)
        """What workers have cost, which are sessions of their own."""
        self._unpriced: set[str] = set()
        for entry in entries:
            self._take(entry)

    @property
    def messages(self) -> list[Message]:
        """What a model is shown now."""
        if self._view is None:
            self._view = self._threads.view().messages
            self._seen = Seen(self._view)
        return self._view

    @property
    def seen(self) -> Seen:
        """What kinds of things are in what a model is shown."""
        if self._view is None:
            self._view = self.messages
        return self._seen

    @property
    def path(self) -> list[Message]:
        """Every message that leads to the newest, summed up or not."""
        return self._threads.path()

    @property
    def tip(self) -> str | None:
        """The message that the next one follows."""
        return self._threads.tip

    @property
    def bookmarks(self) -> dict[str, str]:
        """Every name and the message where it is now."""
        return dict(self._threads.bookmarks)

    def resolve(self, headish: str) -> str | None:
        """The id of the message that an id or a bookmark names."""
        return self._threads.resolve(headish)

    def path_to(self, message_id: str) -> list[Message]:
        """Every message that leads to one of them."""
        return self._threads.path(message_id)

    async def keep(self, *messages: Message) -> list[Message]:
        """Store messages, all or none; they are durable when this returns, or raises a cancel."""
        return await finished(self._keep(messages))

    async def note(self, entry: AnyEntry) -> AnyEntry:
        """Store an entry that is no message."""
        return await finished(self._note(entry))

    async def note_usage(self, model: str, usage: Usage) -> None:
        """Store what a call cost that left no message."""
        data = {"model": model, "usage": msgspec.to_builtins(usage)}
        await self.note(
            SidecarEntry(
                id=new_ulid(),
                session_id=self.id,
                created_at=datetime.now(UTC),
                kind=UNSEEN,
                data=data,
            )
        )

    def with_fresh_calls(self, message: Message) -> Message:
        """The same message; a call whose id an earlier one has gets another.

        Hosts that repeat themselves give the same ids when a turn is taken back and asked again.
        """
        calls = (block.id for block in message.content if isinstance(block, ToolUseBlock))
        fresh = {own: new_tool_use_id() for own in calls if own in self._calls}
        if not fresh:
            return message
        content = tuple(
            replace(block, id=fresh.get(block.id, block.id))
            if isinstance(block, ToolUseBlock)
            else block
            for block in message.content
        )
        return with_tool_ids(replace(message, content=content), fresh)

    def cost(self) -> SessionCost:
        """What all calls of the session have cost."""
        total = sum(self._costs.values(), Decimal(0))
        unpriced = tuple(sorted(self._unpriced))
        return SessionCost(total, dict(self._costs), unpriced, dict(self._used))

    @property
    def inherited(self) -> dict[str, Any]:
        """What the thread says of its turns, merged along the way to the newest message."""
        if self._inherited is None:
            self._inherited = self._threads.options()
        return self._inherited

    @property
    def pointer(self) -> str | None:
        """The model that the thread points to, unless another was set since it did."""
        name = self.inherited.get(POINTER)
        if not name or max(map(self._number_of, self.path), default=0) <= self._set_at:
            return None
        return str(name)

    def _number_of(self, message: Message) -> int:
        return self._pointed_at.get(message.id, 0)

    def budget(self, house: Budget) -> Budget:
        """The limits of the house, with the session's own if it has one."""
        own = self._limit_usd
        return house if own is UNSET else replace(house, session_usd=own)

    async def _keep(self, messages: tuple[Message, ...]) -> list[Message]:
        entries = await self.store.append_all(messages, renew_ids=True)
        for entry in entries:
            self._take(entry)
        return [entry.message for entry in entries]

    async def _note(self, entry: AnyEntry) -> AnyEntry:
        noted = await self.store.record(entry)
        self._take(noted)
        return noted

    def _take(self, entry: AnyEntry) -> None:
        self._threads.add(entry)
        self._taken += 1
        match entry:
            case MessageEntry():
                self._take_message(entry.message)
            case SwapEntry():
                self.pinned, self._set_at = entry.to_model, self._taken
            case SidecarEntry():
                self._take_note(entry)
            case CheckpointEntry():
                self.checkpoints[entry.number] = entry.message_id
            case BookmarkEntry():
                pass
            case CompactionEntry():
                self._view = None
                if entry.details and "usage" in entry.details:
                    self._spend(*usage_in(entry.details))
            case _:
                self._view = self._inherited = None

    def _take_note(self, entry: SidecarEntry) -> None:
        kind, data = entry.kind, entry.data
        if kind == PINNED:
            self.pinned, self._set_at = None, self._taken
        elif kind == UNSEEN:
            self._spend(*usage_in(data))
        elif kind == DELEGATED:
            self.delegated_usd += Decimal(data["cost_usd"])
        elif kind == BUDGET:
            limit = data["session_usd"]
            self._limit_usd = None if limit is None else Decimal(limit)
        elif kind == REASONING:
            self.reasoning = msgspec.convert(data["reasoning"], Reasoning | None)

    def _take_message(self, message: Message) -> None:
        metadata = message.metadata
        self._calls.update(b.id for b in message.content if isinstance(b, ToolUseBlock))
        if metadata.options:
            self._inherited = None
            if POINTER in metadata.options:
                self._pointed_at[message.id] = self._taken
        if metadata.parents or metadata.status == MessageStatus.PARTIAL:
            self._view = self._inherited = None
        elif self._view is not None:
            self._view.append(message)
            self._seen.add(message)
        if metadata.usage is not None:
            self._spend(metadata.model or "", metadata.usage)

    def _spend(self, model: str, usage: Usage) -> None:
        if usage.pricing_version == UNPRICED:
            self._unpriced.add(model)
        self._costs[model] = self._costs.get(model, Decimal(0)) + usage.cost_usd
        self._used[model] = self._used.get(model, ModelUse()).with_call(usage)


def usage_in(data: Any) -> tuple[str, Usage]:
    """The model and the usage that an entry tells of."""
    return data["model"], msgspec.convert(data["usage"], Usage)


def spent_in(entry: AnyEntry) -> Decimal:
    """What an entry has cost."""
    match entry:
        case MessageEntry() if entry.message.metadata.usage is not None:
            return entry.message.metadata.usage.cost_usd
        case SidecarEntry() if entry.kind == UNSEEN:
            return usage_in(entry.data)[1].cost_usd
        case CompactionEntry() if entry.details and "usage" in entry.details:
            return usage_in(entry.details)[1].cost_usd
        case _:
            return Decimal(0)
