"""The model calls of stored sessions, as the events that would have reported them."""

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime

from metis.canonical.metadata import StopReason, Usage
from metis.catalog.models import is_model_id
from metis.events import Actor, Event, Sensitivity
from metis.events.turn_events import LlmCallCompleted
from metis.session.conversation import USAGE_KIND, recorded_usage
from metis.store import Store
from metis.store.entries import AnyEntry, CompactionEntry, MessageEntry, SidecarEntry

_ALL = 1_000_000


async def stored_calls(store: Store, *, since: datetime | None) -> AsyncIterator[Event]:
    """Yield every model call of a store as the event that would have reported it."""
    for record in await store.sessions(_ALL):
        if since is not None and record.updated_at < since:
            return  # sessions come in the order of their last change
        for event in _session_calls(await store.history(record.id)):
            if since is None or event.timestamp >= since:
                yield event


def _session_calls(history: Iterable[AnyEntry]) -> Iterator[Event]:
    """Yield the calls of one session: responses, summaries, and calls that left no message."""
    for entry in history:
        match entry:
            case MessageEntry() if entry.message.metadata.usage is not None:
                metadata = entry.message.metadata
                if metadata.usage is not None:
                    stop_reason = metadata.stop_reason or StopReason.UNKNOWN
                    yield _call_event(entry, metadata.model or "", metadata.usage, stop_reason)
            # A call that was retried or cancelled has cost money, but left no message.
            case SidecarEntry() if entry.kind == USAGE_KIND:
                yield _call_event(entry, *recorded_usage(entry.data))
            case CompactionEntry() if entry.details and "usage" in entry.details:
                yield _call_event(entry, *recorded_usage(entry.details))
            case _:
                pass


def _call_event(
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
