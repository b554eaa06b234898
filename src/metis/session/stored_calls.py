"""The model calls of stored sessions as bus events, for statistics without a stored trace."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime

from metis.canonical.message import Message
from metis.canonical.metadata import StopReason, Usage
from metis.catalog.models import is_model_id
from metis.events import Actor, Event, Sensitivity
from metis.events.turn_events import LlmCallCompleted
from metis.session.conversation import USAGE_KIND, recorded_usage
from metis.store import Store
from metis.store.entries import (
    AnyEntry,
    CompactionEntry,
    ForkEntry,
    MessageEntry,
    SidecarEntry,
)
from metis.wire.json_access import maybe_object

# The query needs a limit, and statistics need all sessions.
_ALL = 1_000_000


async def stored_calls(store: Store, *, since: datetime | None) -> AsyncIterator[Event]:
    """Yield an `llm.call_completed` event for every model call of a store."""
    counted: set[str] = set()
    for record in await store.sessions(_ALL):
        if since is not None and record.updated_at < since:
            return  # sessions are sorted by their last change, newest first
        for event in _session_calls(await store.history(record.id), counted):
            if since is None or event.timestamp >= since:
                yield event


def copied_entry_ids(history: Sequence[AnyEntry]) -> set[str]:
    """Return the ids of entries that a fork copied: their calls were paid in the original."""
    forks = [entry for entry in history if isinstance(entry, ForkEntry)]
    copied = {copy for fork in forks for copy in fork.message_ids.values()}
    if forks:
        # A fork lists only the copies of messages; other entries are recognised by their time,
        # which is that of the original.
        forked_at = max(fork.created_at for fork in forks)
        copied.update(
            entry.id
            for entry in history
            if isinstance(entry, SidecarEntry | CompactionEntry) and entry.created_at < forked_at
        )
    return copied


def _is_counted(message: Message, counted: set[str]) -> bool:
    """Return whether an imported response was counted in another session; else add it.

    Forks of Claude Code and Codex copy responses into another file, which often does not name the
    file that it is a copy of.
    """
    origin, external = message.metadata.origin, message.metadata.external
    # The response ids of other programs are unique within a session only.
    if origin not in ("import:claude-code", "import:codex"):
        return False
    data = maybe_object((external or {}).get(origin.removeprefix("import:")))
    response = message.metadata.response_id or data.get("response")
    if not isinstance(response, str):
        return False
    key = f"{origin} {response}"
    if key in counted:
        return True
    counted.add(key)
    return False


def _session_calls(history: Sequence[AnyEntry], counted: set[str]) -> Iterator[Event]:
    """Yield the calls of one session: responses, summaries, and calls that left no message."""
    copied = copied_entry_ids(history)
    for entry in history:
        match entry:
            case MessageEntry() | SidecarEntry() | CompactionEntry() if entry.id in copied:
                pass
            case MessageEntry() if entry.message.metadata.usage is not None:
                metadata = entry.message.metadata
                if metadata.usage is not None and not _is_counted(entry.message, counted):
                    stop_reason = metadata.stop_reason or StopReason.UNKNOWN
                    yield _call_event(entry, metadata.model or "", metadata.usage, stop_reason)
            # A call that was retried or cancelled has a cost, but no message.
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
