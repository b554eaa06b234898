"""The trace store: replay, queries, retention, export and concurrent writes."""

import asyncio
import csv
import io
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from metis.canonical.errors import EventError, InvalidEventError
from metis.canonical.ids import UlidSource
from metis.events import (
    CATALOGUE,
    Event,
    EventQuery,
    MemoryTrace,
    TraceStore,
    report_gaps,
    sweep_trace,
)
from metis.events.export import COLUMNS, read_jsonl, write_csv, write_jsonl
from metis.events.system_events import BusGapDetected, TraceSwept
from metis.events.trace import SqliteTrace
from sample_events import START, every_event, recording_bus, run_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TraceStore]:
    if request.param == "memory":
        yield MemoryTrace()
        return
    with closing(SqliteTrace(tmp_path / "trace.db")) as trace:
        yield trace


async def test_replayed_events_equal_live_events(store: TraceStore) -> None:
    bus, emitted = recording_bus()
    bus.subscribe_batches(store.append, name="trace")
    run_turn(bus)
    run_turn(bus, "sess_2", "turn_2")
    await bus.close()
    live = [event for event in emitted if event.session_id == "sess_1"]
    assert await store.select(EventQuery(session_id="sess_1")) == live
    cursor = live[3].id
    assert await store.select(EventQuery(session_id="sess_1", after=cursor)) == live[4:]
    assert await store.select(EventQuery()) == emitted


async def test_every_event_type_round_trips(store: TraceStore) -> None:
    events = every_event()
    await store.append(events)
    await store.append(events[:3])
    assert await store.select(EventQuery()) == events


async def test_each_query_condition_filters(store: TraceStore) -> None:
    bus, emitted = recording_bus()
    run_turn(bus)
    run_turn(bus, "sess_2", "turn_2")
    await store.append(emitted)

    async def selected(query: EventQuery, expected: Callable[[Event], bool]) -> None:
        assert await store.select(query) == [event for event in emitted if expected(event)]

    middle = emitted[7].timestamp
    await selected(EventQuery(turn_id="turn_2"), lambda event: event.turn_id == "turn_2")
    await selected(EventQuery(types={"tool.called"}), lambda event: event.type == "tool.called")
    await selected(EventQuery(types=frozenset()), lambda _: False)
    await selected(EventQuery(since=middle), lambda event: event.timestamp >= middle)
    await selected(EventQuery(until=middle), lambda event: event.timestamp < middle)
    assert await store.select(EventQuery(limit=2)) == emitted[:2]


async def test_sweep_deletes_old_events_except_audit(store: TraceStore) -> None:
    events = every_event()
    await store.append(events)
    cutoff = START + timedelta(seconds=20)
    old = [event for event in events if event.timestamp < cutoff]
    audit = [event for event in old if event.event_type.is_audit]
    dry = await store.sweep(before=cutoff)
    assert dry.is_dry_run
    assert dry.deleted_count == len(old) - len(audit)
    assert dry.spared_count == len(audit) > 0
    assert await store.select(EventQuery()) == events
    bus, emitted = recording_bus()
    done = await sweep_trace(store, before=cutoff, dry_run=False, bus=bus)
    assert done.deleted == dry.deleted
    assert isinstance(emitted[0].payload, TraceSwept)
    assert emitted[0].payload.deleted_count == done.deleted_count
    remaining = await store.select(EventQuery())
    assert remaining == [event for event in events if event in audit or event.timestamp >= cutoff]
    assert (await store.sweep(before=cutoff, dry_run=False)).deleted_count == 0


def test_audit_event_types() -> None:
    assert {name for name, row in CATALOGUE.items() if row.is_audit} == {
        *("routing.policy_invalid", "memory.eviction", "tool.confirmation_resolved"),
        *("trace.swept", "bus.gap_detected", "budget.warned", "budget.exceeded"),
        *("gateway.key_issued", "gateway.key_revoked", "gateway.key_rotated"),
        *("gateway.auth_failed", "gateway.quota_exceeded"),
    }


async def test_calls_left_open_by_crash_are_reported_once(store: TraceStore) -> None:
    bus, emitted = recording_bus()
    run_turn(bus)
    await store.append(emitted[:5])
    later, received = recording_bus(ids=UlidSource(after=emitted[-1].id))
    gaps = await report_gaps(store, later)
    assert [event.type for event in gaps] == ["turn.started", "tool.called"]
    assert [type(event.payload) for event in received] == [BusGapDetected] * 2
    assert received[0].parent_event_id == emitted[0].id
    await store.append(received)
    assert await report_gaps(store, later) == ()


def test_export_is_deterministic() -> None:
    events = every_event()
    lines = list(write_jsonl(events))
    assert lines == list(write_jsonl(reversed(events)))
    assert list(read_jsonl([*lines, b"\n"])) == events
    table = b"".join(write_csv(events))
    assert table == b"".join(write_csv(reversed(events)))
    rows = list(csv.reader(io.StringIO(table.decode(), newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert [row[0] for row in rows[1:]] == [event.id for event in events]
    assert {len(row) for row in rows} == {len(COLUMNS)}
    with pytest.raises(InvalidEventError):
        list(read_jsonl([b"{}"]))


def test_csv_cell_is_never_a_formula() -> None:
    bus, emitted = recording_bus()
    bus.emit(every_event()[0].payload, session_id="=1+1")
    assert b",'=1+1," in b"".join(write_csv(emitted))


async def test_file_is_a_readable_sqlite_table(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    with closing(SqliteTrace(path)) as trace:
        await trace.append(every_event())
        with closing(sqlite3.connect(path)) as reader:
            assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert reader.execute("PRAGMA user_version").fetchone() == (1,)
            columns = [row[1] for row in reader.execute("PRAGMA table_info(events)")]
            assert columns == [
                *("id", "timestamp_us", "session_id", "turn_id", "parent_event_id"),
                *("type", "actor", "sensitivity", "payload_json"),
            ]
            (stamp,) = reader.execute("SELECT MIN(timestamp_us) FROM events").fetchone()
            assert stamp == int(START.timestamp()) * 1_000_000 + START.microsecond
    with closing(SqliteTrace(path)) as reread:
        assert await reread.select(EventQuery()) == every_event()


async def test_file_of_another_format_or_version_is_refused(tmp_path: Path) -> None:
    unusual, newer = tmp_path / "odd.db", tmp_path / "newer.db"
    unusual.write_bytes(b"this is not a database, not at all" * 40)
    with closing(sqlite3.connect(newer)) as writer:
        writer.execute("PRAGMA user_version = 9")
    for path in (unusual, newer):
        with pytest.raises(EventError, match=path.name):
            SqliteTrace(path)


async def test_unknown_types_in_a_file_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    with closing(SqliteTrace(path)) as trace:
        await trace.append(every_event())
        with closing(sqlite3.connect(path)) as writer, writer:
            writer.execute("UPDATE events SET type = 'future.done' WHERE type = 'trace.swept'")
        assert len(await trace.select(EventQuery())) == len(CATALOGUE) - 1


async def test_concurrent_appends_lose_nothing(tmp_path: Path) -> None:
    bus, emitted = recording_bus()
    for number in range(20):
        run_turn(bus, turn_id=f"turn_{number}")
    with closing(SqliteTrace(tmp_path / "trace.db")) as trace:
        await asyncio.gather(*(trace.append(emitted[n : n + 9]) for n in range(0, len(emitted), 9)))
        assert await trace.select(EventQuery()) == emitted
    assert threading.active_count() < 50


async def test_locked_file_does_not_block_the_event_loop(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    events = every_event()
    with closing(SqliteTrace(path)) as trace, closing(sqlite3.connect(path)) as other:
        await trace.append(events[:1])
        other.execute("BEGIN IMMEDIATE")
        appending = asyncio.create_task(trace.append(events[1:]))
        # The task waits in a thread: the loop would not iterate if it waited here.
        for _ in range(3):
            await asyncio.sleep(0)
        assert not appending.done()
        other.execute("COMMIT")
        await appending
        assert len(await trace.select(EventQuery())) == len(events)


async def test_write_ahead_log_is_checkpointed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metis.events.trace._CHECKPOINT_ROWS", 10)
    path = tmp_path / "trace.db"
    ids, (event, *_) = UlidSource(), every_event()
    with closing(SqliteTrace(path)) as trace:
        empty = path.stat().st_size
        for _ in range(60):
            await trace.append([structs.replace(event, id=ids.mint())])
        assert path.stat().st_size > empty
        assert len(await trace.select(EventQuery())) == 60
