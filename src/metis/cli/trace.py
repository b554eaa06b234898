"""`metis trace`: the steps of a session in order, with times, costs and reasons."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.output import echo, echo_json
from metis.cli.render import render_block
from metis.cli.stored_sessions import find_session, on_store
from metis.cli.text import cell_width, count, format_usd, screen_width, style, truncate, unstyled
from metis.events import EventQuery
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
from metis.wire.call import SIMULATED

STEP_COLOURS = {
    "user": "green",
    "answer": "cyan",
    "call": "yellow",
    "failed": "red",
    "error": "red",
}
# The width of the clock, the kind of a step, and the gaps behind them.
_PREFIX_WIDTH = 21
_MINUTE_S = 60


class Step(Struct, frozen=True, kw_only=True):
    """One step of a session: a message, a tool call, a routing decision or a journal entry."""

    at: datetime
    what: str
    detail: str
    facts: tuple[str, ...] = ()

    def text(self, width: int) -> tuple[str, str]:
        """Return detail and facts so that both together fit into a width.

        The facts are cut only if they leave less than a third of the width to the detail.
        """
        detail = " ".join(self.detail.split())
        facts = f"  ({', '.join(self.facts)})" if self.facts else ""
        facts = truncate(facts, width - min(cell_width(detail), width // 3))
        return truncate(detail, width - cell_width(facts)), facts


@on_store(recover=False)
async def print_trace(store: Store, session_name: str, *, as_json: bool) -> int:
    """Print the steps of a session; with `as_json` each step is a line of JSON."""
    record = await find_session(store, session_name)
    steps = await session_steps(store, record.id)
    if as_json:
        for step in steps:
            echo_json(msgspec.json.encode(step))
    else:
        _print(record, steps)
    return 0


async def session_steps(store: Store, session_id: str) -> Sequence[Step]:
    """Return the steps of a session in order: those of its journal and those of its events."""
    steps = list(trace_steps(await store.history(session_id)))
    steps += await _event_steps(session_id)
    return sorted(steps, key=lambda step: step.at)


def step_parts(record: SessionRecord, step: Step, width: int) -> tuple[str, str, str, str]:
    """Return the time since the start, the kind, the detail and the facts, for one line."""
    elapsed = _format_elapsed((step.at - record.created_at).total_seconds())
    return (f"{elapsed:>9}", f"{step.what:<8}", *step.text(width - _PREFIX_WIDTH))


def _print(record: SessionRecord, steps: Sequence[Step]) -> None:
    started = record.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
    workspace = f", {record.workspace_path}" if record.workspace_path else ""
    heading = truncate(f"{record.id}  {started}{workspace}", screen_width())
    echo(style(heading, bold=True))
    for step in steps:
        clock, what, detail, facts = step_parts(record, step, screen_width())
        what = style(what, fg=STEP_COLOURS.get(step.what))
        echo(f"{style(clock, dim=True)}  {what}  {detail}{style(facts, dim=True)}")
    echo(style(count(len(steps), "step"), dim=True), err=True)


def _format_elapsed(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{max(seconds, 0):.2f} s"
    minutes, remainder = divmod(int(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def trace_steps(history: Iterable[AnyEntry]) -> Iterator[Step]:
    """Yield the steps that the journal of a session records."""
    for entry in history:
        if isinstance(entry, MessageEntry):
            yield from _message_steps(entry.message)
        elif type(entry) in _ENTRIES:
            what, describe = _ENTRIES[type(entry)]
            yield Step(at=entry.created_at, what=what, detail=describe(entry))


def _message_steps(message: Message) -> Iterator[Step]:
    at, metadata = message.created_at, message.metadata
    routing = metadata.routing
    if routing is not None:
        yield Step(at=at, what="route", detail=f"{routing.chosen_model}: {routing.reason}")
    text = " ".join(block.text for block in message.content if isinstance(block, TextBlock))
    thinking = [block for block in message.content if isinstance(block, ThinkingBlock)]
    for block in message.content:
        # A result precedes the text of its message: the model wrote the text after it.
        if isinstance(block, ToolResultBlock):
            result = "\n".join(render_block(part) for part in block.content)
            what = "failed" if block.is_error else "result"
            yield Step(at=at, what=what, detail=unstyled(result))
    if thinking and metadata.model:
        yield Step(at=at, what="thinking", detail=thinking[0].text or "(sealed)")
    if message.role is Role.ASSISTANT:
        yield Step(at=at, what="answer", detail=text, facts=_facts(message))
    elif text:
        yield Step(at=at, what=str(message.role), detail=text)
    for block in message.content:
        if isinstance(block, ToolUseBlock):
            call = unstyled(render_block(block)).removeprefix("→ ")
            yield Step(at=at, what="call", detail=call)


def _facts(message: Message) -> tuple[str, ...]:
    metadata = message.metadata
    ends = (metadata.stop_reason, None if metadata.status == "complete" else metadata.status)
    facts = list(dict.fromkeys(str(end) for end in ends if end))
    usage = metadata.usage
    if usage is not None:
        facts += [
            f"{usage.prompt_tokens} in",
            f"{usage.output_tokens} out",
            SIMULATED if usage.pricing_version == SIMULATED else format_usd(usage.cost_usd),
            f"{usage.latency_ms} ms",
        ]
    return tuple(facts)


def _swap_detail(entry: SwapEntry) -> str:
    if entry.from_model is None:
        return f"model changed to {entry.to_model}"
    return f"{entry.from_model} → {entry.to_model}"


# The kind and the detail of a step, by the type of its journal entry.
_ENTRIES: Mapping[type[Any], tuple[str, Callable[[Any], str]]] = {
    SwapEntry: ("swap", _swap_detail),
    CompactionEntry: ("summary", lambda entry: entry.summary),
    ErrorEntry: ("error", lambda entry: entry.text),
    RewindEntry: ("rewind", lambda entry: f"back to {entry.to_id or 'the start'}"),
    RetractionEntry: ("retract", lambda entry: f"{entry.message_id} {entry.reason or ''}"),
    ForkEntry: ("fork", lambda entry: f"from {entry.source_session_id}"),
    BookmarkEntry: ("bookmark", lambda entry: f"{entry.name} at {entry.message_id or 'nothing'}"),
    RecoveryEntry: ("recovery", lambda entry: count(len(entry.aborted_calls), "call") + " closed"),
}

# The kind and the detail of a step that is not in the journal, by the type of its bus event.
_EVENTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "session.resumed": ("resumed", lambda payload: f"after {count(payload.message_count, 'step')}"),
    "llm.call_failed": ("failed", lambda payload: f"{payload.model}: {payload.error_class}"),
    "turn.cancelled": ("stopped", lambda payload: payload.reason),
    "turn.failed": ("failed", lambda payload: payload.error_type),
    "turn.history_repaired": ("repair", lambda payload: ", ".join(payload.repairs)),
    "route.constraint_failed": ("refused", lambda payload: f"{payload.model}: {payload.reason}"),
    "tool.confirmation_resolved": (
        "confirm",
        lambda payload: f"{payload.decision} ({payload.scope})",
    ),
}


async def _event_steps(session_id: str) -> list[Step]:
    """Return the steps that only the event trace of this machine records."""
    # The trace belongs to this machine; a store in PostgreSQL may be shared.
    path = UserPaths.from_environment().trace
    if not path.exists():
        return []
    trace = SqliteTrace(path)
    try:
        events = await trace.select(EventQuery(session_id=session_id, types=frozenset(_EVENTS)))
    finally:
        trace.close()
    steps: list[Step] = []
    for event in events:
        # A stopped response is in the journal, with its own status.
        if isinstance(event.payload, LlmCallFailed) and event.payload.error_class == "cancelled":
            continue
        what, describe = _EVENTS[event.type]
        steps.append(Step(at=event.timestamp, what=what, detail=describe(event.payload)))
    return steps
