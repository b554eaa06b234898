"""Calls: what models were asked in a store, as events that can be counted."""

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime

from metis.canonical.metadata import StopReason, Usage
from metis.catalog.model_id import is_model_id
from metis.events import Actor, Event, Sensitivity
from metis.events.work import LlmCallCompleted
from metis.session.conversation import UNSEEN, usage_in
from metis.store import Store
from metis.store.entries import AnyEntry, CompactionEntry, MessageEntry, SidecarEntry

_ALL = 1_000_000


async def calls_in(keep: Store, *, since: datetime | None = None) -> AsyncIterator[Event]:
    """Every call of a store that cost something or could have, session by session."""
    for record in await keep.sessions(_ALL):
        if since is not None and record.updated_at < since:
            return
        for event in calls_of(await keep.history(record.id)):
            if since is None or event.timestamp >= since:
                yield event


def calls_of(history: Iterable[AnyEntry]) -> Iterator[Event]:
    """The calls of one session: answers, summaries, and calls that left no message."""
    for entry in history:
        match entry:
            case MessageEntry() if entry.message.metadata.usage is not None:
                metadata = entry.message.metadata
                if metadata.usage is not None:
                    stop = metadata.stop_reason or StopReason.UNKNOWN
                    yield _event(entry, metadata.model or "", metadata.usage, stop)
            case SidecarEntry() if entry.kind == UNSEEN:
                yield _event(entry, *usage_in(entry.data))
            case CompactionEntry() if entry.details and "usage" in entry.details:
                yield _event(entry, *usage_in(entry.details))
            case _:
                pass


def _event(
    entry: MessageEntry | SidecarEntry | CompactionEntry,
    model: str,
    usage: Usage,
    stop_reason: StopReason = StopReason.UNKNOWN,
) -> Event:
    return Event(
        id=entry.id,
        timestamp=entry.created_at,
        session_id=entry.session_id,
        type="llm.call_completed",
        actor=Actor.SYSTEM,
        sensitivity=Sensitivity.PSEUDONYMOUS,
        payload=LlmCallCompleted(
            model=model or "unknown",
            provider=model.partition(":")[0] if is_model_id(model) else "unknown",
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            cache_creation_input_tokens=usage.cache_creation_input_tokens,
            cache_creation_1h_input_tokens=usage.cache_creation_1h_input_tokens,
            cost_usd=usage.cost_usd,
            pricing_version=usage.pricing_version,
            latency_ms=usage.latency_ms,
            stop_reason=stop_reason,
        ),
    )
