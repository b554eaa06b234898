"""`metis trace`: the steps of a session in order, with times, costs and reasons."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec
from msgspec import Struct

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.render import count, render_block
from metis.cli.sessions import with_store
from metis.cli.stored_sessions import find_session
from metis.cli.text import format_usd, screen_width, truncate
from metis.events import Event, EventQuery
from metis.events.trace import SqliteTrace
from metis.events.turn_events import LlmCallFailed
from metis.settings import UserPaths
from metis.store import SessionRecord, Store
from metis.store.entries import (
    AnyEntry,
    BookmarkEntry,
    CompactionEntry,
    ErrorEntry,
    ForkEntry,
    MessageEntry,
    RecoveryEntry,
    RetractionEntry,
    RewindEntry,
    SwapEntry,
)

_COLOURS = {"user": "green", "answer": "cyan", "call": "yellow", "failed": "red", "error": "red"}


class Step(Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    at: datetime
    what: str
    detail: str
    facts: tuple[str, ...] = ()


def print_trace(url: str | None, wanted: str, *, as_json: bool) -> int:
    """Print the timeline of a session; `as_json` prints each step as a line of JSON."""

    async def work(keep: Store) -> int:
        record = await find_session(keep, wanted)
        steps = list(trace_steps(await keep.history(record.id)))
        steps += await _traced(record.id)
        steps.sort(key=lambda step: step.at)
        if as_json:
            for step in steps:
                click.echo(msgspec.json.encode(step))
        else:
            _print(record, steps)
        return 0

    return with_store(url, work, recover=False)


def _print(record: SessionRecord, steps: Sequence[Step]) -> None:
    when = record.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
    where = f", {record.workspace_path}" if record.workspace_path else ""
    click.echo(click.style(truncate(f"{record.id}  {when}{where}", screen_width()), bold=True))
    for step in steps:
        since = (step.at - record.created_at).total_seconds()
        facts = f"  ({', '.join(step.facts)})" if step.facts else ""
        clock = click.style(f"{_clock(since):>9}", dim=True)
        what = click.style(f"{step.what:<8}", fg=_COLOURS.get(step.what))
        room = screen_width() - 21
        text = truncate(" ".join(step.detail.split()), max(room - len(facts), room // 3))
        click.echo(f"{clock}  {what}  {text}{click.style(facts, dim=True)}")
    click.echo(click.style(f"{count(len(steps), 'step')}", dim=True), err=True)


def _clock(seconds: float) -> str:
    """A time since the start, as people say it."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{max(seconds, 0):.2f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def trace_steps(history: Iterable[AnyEntry]) -> Iterator[Step]:
    """The steps that the journal of a session tells."""
    for entry in history:
        if isinstance(entry, MessageEntry):
            yield from _message_steps(entry.message)
            continue
        told = _ENTRIES.get(type(entry))
        if told is not None:
            what, words = told
            yield Step(at=entry.created_at, what=what, detail=words(entry))


def _message_steps(message: Message) -> Iterator[Step]:
    at, metadata = message.created_at, message.metadata
    routing = metadata.routing
    if routing is not None:
        yield Step(at=at, what="route", detail=f"{routing.chosen_model}: {routing.reason}")
    words = [block.text for block in message.content if isinstance(block, TextBlock)]
    thoughts = [block for block in message.content if isinstance(block, ThinkingBlock)]
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            what = "failed" if block.is_error else "result"
            shown = "\n".join(render_block(part) for part in block.content)
            yield Step(at=at, what=what, detail=click.unstyle(shown))
    if thoughts and metadata.model:
        yield Step(at=at, what="thought", detail=thoughts[0].text or "(sealed)")
    if message.role is Role.ASSISTANT:
        yield Step(at=at, what="answer", detail=" ".join(words), facts=_facts(message))
    elif words:
        yield Step(at=at, what=str(message.role), detail=" ".join(words))
    for block in message.content:
        if isinstance(block, ToolUseBlock):
            shown = click.unstyle(render_block(block)).removeprefix("→ ")
            yield Step(at=at, what="call", detail=shown)


def _facts(message: Message) -> tuple[str, ...]:
    metadata = message.metadata
    ends = (metadata.stop_reason, None if metadata.status == "complete" else metadata.status)
    facts = list(dict.fromkeys(str(end) for end in ends if end))
    usage = metadata.usage
    if usage is not None:
        facts += [
            f"{usage.prompt_tokens} in",
            f"{usage.output_tokens} out",
            format_usd(usage.cost_usd),
            f"{usage.latency_ms} ms",
        ]
    return tuple(facts)


_ENTRIES: Mapping[type[Any], tuple[str, Callable[[Any], str]]] = {
    SwapEntry: ("swap", lambda entry: f"{entry.from_model or 'the rules'} → {entry.to_model}"),
    CompactionEntry: ("summary", lambda entry: entry.summary),
    ErrorEntry: ("error", lambda entry: entry.text),
    RewindEntry: ("rewind", lambda entry: f"back to {entry.to_id or 'the start'}"),
    RetractionEntry: ("retract", lambda entry: f"{entry.message_id} {entry.reason or ''}"),
    ForkEntry: ("fork", lambda entry: f"from {entry.source_session_id}"),
    BookmarkEntry: ("bookmark", lambda entry: f"{entry.name} at {entry.message_id or 'nothing'}"),
    RecoveryEntry: ("recovery", lambda entry: count(len(entry.aborted_calls), "call") + " closed"),
}

_EVENTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "session.resumed": ("resumed", lambda told: f"after {count(told.message_count, 'step')}"),
    "llm.call_failed": ("failed", lambda told: f"{told.model}: {told.error_class}"),
    "turn.cancelled": ("stopped", lambda told: told.reason),
    "turn.failed": ("failed", lambda told: told.error_type),
    "turn.history_repaired": ("repair", lambda told: ", ".join(told.repairs)),
    "route.constraint_failed": ("refused", lambda told: f"{told.model}: {told.reason}"),
    "tool.confirmation_resolved": ("asked", lambda told: f"{told.decision} ({told.scope})"),
}
"""What the journal does not tell, by the type of the event."""


async def _traced(session_id: str) -> list[Step]:
    """The steps that only the trace of this machine knows."""
    path = UserPaths.from_environment().trace
    if not path.exists():
        return []
    trace = SqliteTrace(path)
    try:
        query = EventQuery(session_id=session_id, types=frozenset(_EVENTS))
        found = await trace.select(query)
        return [_event_step(event) for event in found if not _is_told(event)]
    finally:
        trace.close()


def _is_told(event: Event) -> bool:
    """Whether the journal tells it already: an answer that was stopped says so itself."""
    return isinstance(event.payload, LlmCallFailed) and event.payload.error_class == "cancelled"


def _event_step(event: Event) -> Step:
    what, words = _EVENTS[event.type]
    return Step(at=event.timestamp, what=what, detail=words(event.payload))
