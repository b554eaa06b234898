"""The journal of one session in memory, with its view, its options and its costs."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ImageBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import StoreError, StoreSpooledError
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
    entry_of,
)
from metis.store.threads import Threads
from metis.wire.call import SIMULATED, UNPRICED
from metis.wire.original_form import with_tool_ids
from metis.wire.reasoning import Reasoning

POINTER_OPTION = "provider_ptr"
"""The thread option that points to a model."""

# Kinds of the sidecar entries that a session writes into its journal.
UNPIN_KIND = "session.model"
"""The session has no pinned model any more."""
BUDGET_KIND = "session.budget"
"""The spending limit of the session."""
REASONING_KIND = "session.reasoning"
"""The reasoning option of the session."""
TOOLS_KIND = "session.tools"
"""The kind of the sidecar entry that switches tools on or off."""
CHECKPOINT_KIND = "session.checkpoint_name"
"""The kind of the sidecar entry that names a checkpoint."""
USAGE_KIND = "session.usage"
"""The usage of a model call that left no message."""
WORKER_KIND = "session.worker"
"""A finished worker session and its cost."""

T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine to its end, even if the caller is cancelled meanwhile.

    The cancellation is raised afterwards. So a write of a cancelled turn is either complete or was
    never started.
    """
    task = asyncio.ensure_future(work)
    interrupted: BaseException | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except BaseException as error:  # noqa: BLE001 - raised below, when the task is done
            interrupted = error
    if interrupted is not None:
        # Retrieve the error of the task, which asyncio would otherwise log as never retrieved.
        task.exception()
        raise interrupted
    return task.result()


class HistoryFacts:
    """The facts about a history that decide which models can answer it."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.has_images = False
        self.has_tool_calls = False
        self.has_files = False
        """Whether a block refers to a file of the workspace."""
        self.has_system_prompt = False
        self.file_extensions: set[str] = set()
        """The extensions of the files that tool calls have named, such as `.py`."""
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Update the facts with one more message."""
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
    """Return whether a block is a file of the workspace, or a tool result with one."""
    if isinstance(block, ToolResultBlock):
        return any(map(contains_file, block.content))
    return isinstance(block, Media) and block.source.kind == "file_ref"


def contains_image(block: ContentBlock) -> bool:
    """Return whether a block is an image, or a tool result with one."""
    if isinstance(block, ToolResultBlock):
        return any(isinstance(part, ImageBlock) for part in block.content)
    return isinstance(block, ImageBlock)


class ModelUse(Struct, frozen=True):
    """How many calls and tokens a session used of one model."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0

    def with_call(self, usage: Usage) -> "ModelUse":
        """Return the sums with one more call."""
        return ModelUse(
            self.calls + 1,
            self.prompt_tokens + usage.prompt_tokens,
            self.cached_input_tokens + usage.cached_input_tokens,
            self.output_tokens + usage.output_tokens,
        )


class SessionCost(Struct, frozen=True):
    """The exact cost of a session."""

    total_usd: Decimal
    by_model: dict[str, Decimal]
    unpriced_models: tuple[str, ...] = ()
    """Models without a price: their calls are not in the total."""
    used: dict[str, ModelUse] = {}
    """The calls and tokens of each model, including turns that were undone."""
    simulated_models: tuple[str, ...] = ()
    """Models in whose place the simulator answered, at no cost."""


class Conversation:
    """The stored journal of a session, and the history that models get."""

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
        self.reasoning: Reasoning | None = None
        """The reasoning option of the session; None leaves it to the library's options."""
        self.checkpoints: dict[int, str | None] = {}
        """The message at each checkpoint; None is before the first message."""
        self.checkpoint_names: dict[str, int] = {}
        """The number of each checkpoint that has a name."""
        self.has_tools = True
        """Whether the session offers its tools."""
        self.workers_usd = Decimal(0)
        """The cost of workers, which are separate sessions."""
        self._limit_usd: Decimal | UnsetType | None = UNSET
        self._threads = Threads()
        # Both are None after an entry that changes them, and are computed again on use.
        self._view: list[Message] | None = []
        self._thread_options: dict[str, Any] | None = {}
        self._facts = HistoryFacts()
        # The ids of all branches: a tool call id must be unique in its session, because results are
        # paired with calls by it (M-138).
        self._call_ids: set[str] = set()
        self._costs: dict[str, Decimal] = {}
        self._used: dict[str, ModelUse] = {}
        self._unpriced: set[str] = set()
        self._simulated: set[str] = set()
        # The number of entries, by which a pin and a pointer are ordered: the later one applies.
        self._entry_count = 0
        self._newest_seq = 0
        # Whether entries of this session are spooled in a local file and not in the store yet.
        self._is_behind = False
        self._pinned_at = 0
        self._pointed_at: dict[str, int] = {}
        for entry in entries:
            self._add(entry)

    @property
    def messages(self) -> list[Message]:
        """The history that models get."""
        if self._view is None:
            self._view = self._threads.view().messages
            self._facts = HistoryFacts(self._view)
        return self._view

    @property
    def facts(self) -> HistoryFacts:
        """The facts about the history."""
        if self._view is None:
            self._view = self.messages
        return self._facts

    @property
    def path(self) -> list[Message]:
        """Every message up to the newest, including those that a summary replaces."""
        return self._threads.path()

    def path_to(self, message_id: str) -> list[Message]:
        """Return every message up to the given one."""
        return self._threads.path(message_id)

    @property
    def tip(self) -> str | None:
        """The message that the next one follows."""
        return self._threads.tip

    @property
    def bookmarks(self) -> dict[str, str]:
        """The message id of each bookmark."""
        return dict(self._threads.bookmarks)

    def resolve(self, name: str) -> str | None:
        """Return the id of the message that an id or a bookmark names."""
        return self._threads.resolve(name)

    @property
    def thread_options(self) -> dict[str, Any]:
        """The options of the thread, merged along the path to the newest message."""
        if self._thread_options is None:
            self._thread_options = self._threads.options()
        return self._thread_options

    @property
    def pointer(self) -> str | None:
        """The model that the thread points to, unless a model was pinned later."""
        name = self.thread_options.get(POINTER_OPTION)
        if not name:
            return None
        pointed_at = max((self._pointed_at.get(message.id, 0) for message in self.path), default=0)
        return str(name) if pointed_at > self._pinned_at else None

    def budget(self, default: Budget) -> Budget:
        """Return the default limits, with the limit of the session if it has one."""
        limit = self._limit_usd
        return default if limit is UNSET else replace(default, session_usd=limit)

    def cost(self) -> SessionCost:
        """Return the cost of all calls of the session."""
        total = sum(self._costs.values(), Decimal(0))
        unpriced = tuple(sorted(self._unpriced))
        simulated = tuple(sorted(self._simulated))
        return SessionCost(total, dict(self._costs), unpriced, dict(self._used), simulated)

    def with_unique_call_ids(self, message: Message) -> Message:
        """Return the message with new ids for tool calls whose ids are already in use.

        Deterministic hosts return the same ids when a turn is undone and sent again.
        """
        calls = (block.id for block in message.content if isinstance(block, ToolUseBlock))
        new_ids = {call_id: new_tool_use_id() for call_id in calls if call_id in self._call_ids}
        if not new_ids:
            return message
        content = tuple(
            replace(block, id=new_ids.get(block.id, block.id))
            if isinstance(block, ToolUseBlock)
            else block
            for block in message.content
        )
        return with_tool_ids(replace(message, content=content), new_ids)

    # Writing

    async def append(self, *messages: Message) -> list[Message]:
        """Store messages, all or none; they are durable when this returns or is cancelled."""
        return await run_to_completion(self._append(messages))

    async def record(self, entry_type: Callable[..., AnyEntry], **fields: Any) -> AnyEntry:
        """Store a journal entry that is not a message."""
        entry = entry_type(
            id=new_ulid(), session_id=self.id, created_at=datetime.now(UTC), **fields
        )
        return await run_to_completion(self._record(entry))

    async def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """Store a sidecar entry of a session kind."""
        await self.record(SidecarEntry, kind=kind, data=data)

    async def record_usage(self, model: str, usage: Usage) -> None:
        """Store the usage of a model call that left no message."""
        await self.note(USAGE_KIND, {"model": model, "usage": msgspec.to_builtins(usage)})

    async def _append(self, messages: tuple[Message, ...]) -> list[Message]:
        # A prompt can be sent again, but a response or a tool result cannot be obtained twice. So
        # only these are spooled if the store cannot be reached.
        is_paid = any(message.role is not Role.USER for message in messages)
        if self._is_behind:
            await self._catch_up([entry_of(message) for message in messages] if is_paid else [])
        try:
            # Ids order the messages, so they are renewed if another process wrote a later one.
            entries = await self.store.append_all(messages, renew_ids=True, spool=is_paid)
        except StoreSpooledError:
            self._is_behind = True
            raise
        for entry in entries:
            self._add(entry)
        return [entry.message for entry in entries]

    async def _record(self, entry: AnyEntry) -> AnyEntry:
        is_paid = isinstance(entry, SidecarEntry) and entry.kind == USAGE_KIND
        if self._is_behind:
            await self._catch_up([entry] if is_paid else [])
        try:
            stored = await self.store.record(entry, spool=is_paid)
        except StoreSpooledError:
            self._is_behind = True
            raise
        self._add(stored)
        return stored

    async def _catch_up(self, next_entries: Sequence[AnyEntry]) -> None:
        """Store and read the entries that were spooled while the database was unreachable.

        If it is still unreachable, the next entries are spooled after the others.
        """
        try:
            await self.store.restore_spooled()
            for entry in await self.store.history(self.id, after=self._newest_seq):
                self._add(entry)
        except StoreError as error:
            raise await self.store.spool(next_entries, error) from error
        self._is_behind = False

    # Applying journal entries

    def _add(self, entry: AnyEntry) -> None:
        self._threads.add(entry)
        self._entry_count += 1
        self._newest_seq = entry.seq
        match entry:
            case MessageEntry():
                self._add_message(entry.message)
            case SwapEntry():
                self.pinned_model, self._pinned_at = entry.to_model, self._entry_count
            case SidecarEntry():
                self._add_note(entry)
            case CheckpointEntry():
                self.checkpoints[entry.number] = entry.message_id
            case BookmarkEntry():
                pass  # `_threads` has it; a bookmark does not change the view
            case CompactionEntry():
                self._view = None
                if entry.details and "usage" in entry.details:
                    self._add_usage(*recorded_usage(entry.details))
            case _:
                self._view = self._thread_options = None

    def _add_note(self, entry: SidecarEntry) -> None:
        kind, data = entry.kind, entry.data
        if kind == UNPIN_KIND:
            self.pinned_model, self._pinned_at = None, self._entry_count
        elif kind == USAGE_KIND:
            self._add_usage(*recorded_usage(data))
        elif kind == WORKER_KIND:
            self.workers_usd += Decimal(data["cost_usd"])
        elif kind == BUDGET_KIND:
            limit = data["session_usd"]
            self._limit_usd = None if limit is None else Decimal(limit)
        elif kind == REASONING_KIND:
            self.reasoning = msgspec.convert(data["reasoning"], Reasoning | None)
        elif kind == TOOLS_KIND:
            self.has_tools = data["enabled"]
        elif kind == CHECKPOINT_KIND:
            self.checkpoint_names[data["name"]] = data["number"]

    def _add_message(self, message: Message) -> None:
        metadata = message.metadata
        self._call_ids.update(b.id for b in message.content if isinstance(b, ToolUseBlock))
        if metadata.options:
            self._thread_options = None
            if POINTER_OPTION in metadata.options:
                self._pointed_at[message.id] = self._entry_count
        # A message with parents may start another branch, and the view does not show a partial one.
        # The view is then built again; any other message is appended to it.
        if metadata.parents or metadata.status == MessageStatus.PARTIAL:
            self._view = self._thread_options = None
        elif self._view is not None:
            self._view.append(message)
            self._facts.add(message)
        if metadata.usage is not None:
            self._add_usage(metadata.model or "", metadata.usage)

    def _add_usage(self, model: str, usage: Usage) -> None:
        if usage.pricing_version == UNPRICED:
            self._unpriced.add(model)
        elif usage.pricing_version == SIMULATED:
            self._simulated.add(model)
        self._costs[model] = self._costs.get(model, Decimal(0)) + usage.cost_usd
        self._used[model] = self._used.get(model, ModelUse()).with_call(usage)


def recorded_usage(data: Any) -> tuple[str, Usage]:
    """Return the model and the usage that a sidecar or compaction entry records."""
    return data["model"], msgspec.convert(data["usage"], Usage)


def entry_cost(entry: AnyEntry) -> Decimal:
    """Return the cost of the model call that an entry records."""
    match entry:
        case MessageEntry() if entry.message.metadata.usage is not None:
            return entry.message.metadata.usage.cost_usd
        case SidecarEntry() if entry.kind == USAGE_KIND:
            return recorded_usage(entry.data)[1].cost_usd
        case CompactionEntry() if entry.details and "usage" in entry.details:
            return recorded_usage(entry.details)[1].cost_usd
        case _:
            return Decimal(0)


# Few of many sessions change between two checks.
_FIRST_PAGE = 16
_CLOCK_SKEW = timedelta(seconds=5)
"""By how much the clock of another writing process may be behind."""


class SpendTracker:
    """Sums the cost of all sessions of a store; each entry is read only once."""

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._by_day: dict[date, Decimal] = {}
        self._read_until: dict[str, int] = {}
        self._checked_at: datetime | None = None
        self._lock = asyncio.Lock()

    async def totals(self, session_usd: Decimal = Decimal(0)) -> Spending:
        """Return the spending of this UTC day and month, together with that of a session."""
        now = self._now().astimezone(UTC)
        async with self._lock:  # two readers at once would count an entry twice
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
        month_start = datetime(now.year, now.month, 1, tzinfo=UTC)
        since = month_start if self._checked_at is None else self._checked_at - _CLOCK_SKEW
        for session_id in await self._changed_sessions(since):
            await self._read(session_id)
        self._checked_at = now

    async def _changed_sessions(self, since: datetime) -> list[str]:
        """Return the sessions that changed; the first page is short, because few usually have."""
        limit = _FIRST_PAGE
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
