"""The journal of one session in memory, with its view, its options and its costs."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ImageBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import new_tool_use_id, new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Usage
from metis.events import Budget, Spending
from metis.projection.media import Media
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
from metis.wire.original_form import with_tool_ids
from metis.wire.reasoning import Reasoning


class HistoryFacts:
    """What of a conversation matters for who can answer it."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.has_images = False
        self.has_tool_calls = False
        self.has_files = False
        """Whether something is to be shown that lies in the workspace."""
        self.has_system_prompt = False
        self.file_extensions: set[str] = set()
        """The kinds of the files that calls have named, such as `.py`."""
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Look at one more message."""
        if message.role is Role.SYSTEM:
            self.has_system_prompt = True
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                self.has_tool_calls = True
                self._add_path(block.input.get("path"))
            else:
                self.has_images = self.has_images or contains_image(block)
                self.has_files = self.has_files or contains_file(block)

    def _add_path(self, path: object) -> None:
        suffix = PurePosixPath(path).suffix.lower() if isinstance(path, str) else ""
        if suffix:
            self.file_extensions.add(suffix)


def contains_file(block: ContentBlock) -> bool:
    """Whether a block is a file of the workspace, or a result that holds one."""
    if isinstance(block, ToolResultBlock):
        return any(map(contains_file, block.content))
    return isinstance(block, Media) and block.source.kind == "file_ref"


def contains_image(block: ContentBlock) -> bool:
    """Whether a block is an image, or a result that holds one."""
    if isinstance(block, ToolResultBlock):
        return any(isinstance(part, ImageBlock) for part in block.content)
    return isinstance(block, ImageBlock)


T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end; a cancellation that comes meanwhile goes on afterwards.

    What is half written when a turn is cancelled is then either there or was never begun.
    """
    task = asyncio.ensure_future(work)
    interrupted: BaseException | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except BaseException as error:  # noqa: BLE001 - it goes on below
            interrupted = error
    if interrupted is not None:
        task.exception()  # it was looked at; the interruption is what the caller hears of
        raise interrupted
    return task.result()


POINTER_OPTION = "provider_ptr"
"""The option of a turn that points to a model."""

UNPIN_KIND = "session.model"
"""The kind of the entry that says that no model is set for the session any more."""

BUDGET_KIND = "session.budget"
"""The kind of the entry that sets the limits of the session."""

REASONING_KIND = "session.reasoning"
"""The kind of the entry that sets how much models think in the session."""

USAGE_KIND = "session.usage"
"""The kind of the entry for a call that cost something and left no message."""


WORKER_KIND = "session.worker"
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
        pinned_model: str | None = None,
    ) -> None:
        self.id = session_id
        self.store = store
        self.pinned_model = pinned_model
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
        self._seen = HistoryFacts()
        self._calls: set[str] = set()
        self._costs: dict[str, Decimal] = {}
        self._used: dict[str, ModelUse] = {}
        self.workers_usd = Decimal(0)
        """What workers have cost, which are sessions of their own."""
        self._unpriced: set[str] = set()
        for entry in entries:
            self._take(entry)

    @property
    def messages(self) -> list[Message]:
        """What a model is shown now."""
        if self._view is None:
            self._view = self._threads.view().messages
            self._seen = HistoryFacts(self._view)
        return self._view

    @property
    def facts(self) -> HistoryFacts:
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

    async def append(self, *messages: Message) -> list[Message]:
        """Store messages, all or none; they are durable when this returns, or raises a cancel."""
        return await run_to_completion(self._keep(messages))

    async def record(self, entry: AnyEntry) -> AnyEntry:
        """Store an entry that is no message."""
        return await run_to_completion(self._note(entry))

    async def record_usage(self, model: str, usage: Usage) -> None:
        """Store what a call cost that left no message."""
        data = {"model": model, "usage": msgspec.to_builtins(usage)}
        await self.record(
            SidecarEntry(
                id=new_ulid(),
                session_id=self.id,
                created_at=datetime.now(UTC),
                kind=USAGE_KIND,
                data=data,
            )
        )

    def with_unique_call_ids(self, message: Message) -> Message:
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
    def thread_options(self) -> dict[str, Any]:
        """What the thread says of its turns, merged along the way to the newest message."""
        if self._inherited is None:
            self._inherited = self._threads.options()
        return self._inherited

    @property
    def pointer(self) -> str | None:
        """The model that the thread points to, unless another was set since it did."""
        name = self.thread_options.get(POINTER_OPTION)
        if not name or max(map(self._number_of, self.path), default=0) <= self._set_at:
            return None
        return str(name)

    def _number_of(self, message: Message) -> int:
        return self._pointed_at.get(message.id, 0)

    def budget(self, default: Budget) -> Budget:
        """The limits of the house, with the session's own if it has one."""
        own = self._limit_usd
        return default if own is UNSET else replace(default, session_usd=own)

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
                self.pinned_model, self._set_at = entry.to_model, self._taken
            case SidecarEntry():
                self._take_note(entry)
            case CheckpointEntry():
                self.checkpoints[entry.number] = entry.message_id
            case BookmarkEntry():
                pass
            case CompactionEntry():
                self._view = None
                if entry.details and "usage" in entry.details:
                    self._spend(*recorded_usage(entry.details))
            case _:
                self._view = self._inherited = None

    def _take_note(self, entry: SidecarEntry) -> None:
        kind, data = entry.kind, entry.data
        if kind == UNPIN_KIND:
            self.pinned_model, self._set_at = None, self._taken
        elif kind == USAGE_KIND:
            self._spend(*recorded_usage(data))
        elif kind == WORKER_KIND:
            self.workers_usd += Decimal(data["cost_usd"])
        elif kind == BUDGET_KIND:
            limit = data["session_usd"]
            self._limit_usd = None if limit is None else Decimal(limit)
        elif kind == REASONING_KIND:
            self.reasoning = msgspec.convert(data["reasoning"], Reasoning | None)

    def _take_message(self, message: Message) -> None:
        metadata = message.metadata
        self._calls.update(b.id for b in message.content if isinstance(b, ToolUseBlock))
        if metadata.options:
            self._inherited = None
            if POINTER_OPTION in metadata.options:
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


def recorded_usage(data: Any) -> tuple[str, Usage]:
    """The model and the usage that an entry tells of."""
    return data["model"], msgspec.convert(data["usage"], Usage)


def entry_cost(entry: AnyEntry) -> Decimal:
    """What an entry has cost."""
    match entry:
        case MessageEntry() if entry.message.metadata.usage is not None:
            return entry.message.metadata.usage.cost_usd
        case SidecarEntry() if entry.kind == USAGE_KIND:
            return recorded_usage(entry.data)[1].cost_usd
        case CompactionEntry() if entry.details and "usage" in entry.details:
            return recorded_usage(entry.details)[1].cost_usd
        case _:
            return Decimal(0)


_FEW_SESSIONS = 16
_LATE = timedelta(seconds=5)
"""Another writer's clock may be behind by that much."""


class SpendTracker:
    """Adds up what the sessions of a store have cost; only what is new is read."""

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._by_day: dict[date, Decimal] = {}
        self._read_until: dict[str, int] = {}
        self._looked_at: datetime | None = None
        self._lock = asyncio.Lock()

    async def totals(self, session_usd: Decimal = Decimal(0)) -> Spending:
        """What was spent up to now, by days of UTC; the session knows its own."""
        now = self._now().astimezone(UTC)
        async with self._lock:  # two at once would count the same twice
            await self._catch_up(now)
        month = [
            amount
            for day, amount in self._by_day.items()
            if (day.year, day.month) == (now.year, now.month)
        ]
        return Spending(
            session_usd=session_usd,
            day_usd=self._by_day.get(now.date(), Decimal(0)),
            month_usd=sum(month, Decimal(0)),
        )

    async def _catch_up(self, now: datetime) -> None:
        first = datetime(now.year, now.month, 1, tzinfo=UTC)
        since = first if self._looked_at is None else self._looked_at - _LATE
        for session_id in await self._changed(since):
            await self._read(session_id)
        self._looked_at = now

    async def _changed(self, since: datetime) -> list[str]:
        """The sessions that changed since a time: mostly few of many, so few are asked for."""
        limit = _FEW_SESSIONS
        while True:
            records = await self._store.sessions(limit)
            changed = [record.id for record in records if record.updated_at >= since]
            if len(changed) < len(records) or len(records) < limit:
                return changed
            limit *= 8

    async def _read(self, session_id: str) -> None:
        after = self._read_until.get(session_id, 0)
        for entry in await self._store.history(session_id, after=after):
            self._read_until[session_id] = entry.seq
            day = entry.created_at.date()
            self._by_day[day] = self._by_day.get(day, Decimal(0)) + entry_cost(entry)
