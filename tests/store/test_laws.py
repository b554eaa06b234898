"""The contract of every store; each test runs on SQLite and on PostgreSQL."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from build import (
    EVERY_BLOCK,
    MODEL,
    NOW,
    assistant,
    call,
    developer,
    image,
    numbered,
    provenance,
    system,
    text,
    thinking,
    tool,
    tool_id,
    ulid,
    usage,
    user,
)
from metis.canonical import (
    Extra,
    Message,
    MessageMetadata,
    MessageStatus,
    Outcome,
    OutcomeStatus,
    StopReason,
    UnknownBlock,
    encode,
)
from metis.canonical.errors import (
    DecodeError,
    DuplicateSessionError,
    InvalidMessageError,
    InvalidValueError,
    StoreError,
    UnknownMessageError,
    UnknownSessionError,
)
from metis.canonical.ids import new_ulid
from metis.store import EventRecord, Policy, Store
from metis.store import open as open_store
from metis.store.entries import (
    BookmarkEntry,
    CompactionEntry,
    ErrorEntry,
    ForkEntry,
    MessageEntry,
    RecoveryEntry,
    RetractionEntry,
    RewindEntry,
    SwapEntry,
    TaskMetadataEntry,
)

pytestmark = pytest.mark.anyio
S = "sess_42"


def conversation() -> list[Message]:
    """Return a turn with instructions, an image, thinking, a call, its result and a response."""
    return numbered(
        system("be brief"),
        developer("the user is in a hurry"),
        user("what is in it?", image()),
        assistant(thinking("hm", signature="c2ln"), text("look"), call("read", tool_id(7), a=1)),
        tool("42", answers=tool_id(7)),
        assistant("it says 42"),
    )


async def filled(store: Store, messages: Sequence[Message] | None = None) -> list[Message]:
    await store.create_session(S, workspace_path="/work", active_model=MODEL)
    stored = list(messages or conversation())
    for message in stored:
        await store.append(message)
    return stored


@pytest.mark.row("M-006", "M-010", "M-012", "M-023", "K-019", "K-048", "K-073", "K-088", "K-093")
async def test_appended_messages_are_read_in_order(store: Store) -> None:
    stored = await filled(store)
    assert await store.messages(S) == stored
    assert [encode(item) for item in await store.messages(S)] == [encode(item) for item in stored]
    assert [item.digest() for item in await store.messages(S)] == [m.digest() for m in stored]
    assert await store.messages(S, newest=2) == stored[-2:]
    assert await store.message(S, stored[3].id) == stored[3]
    assert await store.check() == []


async def test_every_block_and_unknown_parts_round_trip_byte_for_byte(store: Store) -> None:
    blocks = [EVERY_BLOCK[tag] for tag in ("text", "image", "document", "audio", "video")]
    strange = UnknownBlock(b'{"type":"hologram", "n": 1.50}')
    newer = replace(
        user(*blocks, strange, id=ulid(201)),
        extra=Extra({"mood": Raw(b'"calm"')}),
        metadata=MessageMetadata(extra=Extra({"later": Raw(b"[1, 2]")})),
    )
    stored = [user("hi", id=ulid(200)), newer]
    await filled(store, stored)
    assert [encode(item) for item in await store.messages(S)] == [encode(item) for item in stored]
    assert await store.message(S, newer.id) == newer
    lines = await store.export(S)
    await store.delete(S)
    await store.import_lines(lines)
    assert [encode(item) for item in await store.messages(S)] == [encode(item) for item in stored]


@pytest.mark.row("M-027")
async def test_a_message_for_an_unknown_session_is_refused(store: Store) -> None:
    with pytest.raises(UnknownSessionError) as outcome:
        await store.append(user("hi"))
    assert outcome.value.session_id == S
    with pytest.raises(UnknownSessionError):
        await store.messages(S)
    with pytest.raises(UnknownSessionError):
        await store.history(S)


@pytest.mark.row("M-122")
async def test_invalid_message_is_refused_and_not_stored(store: Store) -> None:
    await store.create_session(S)
    with pytest.raises(InvalidMessageError) as outcome:
        await store.append(user())
    assert outcome.value.problems[0].rule == "M-123"
    assert await store.messages(S) == []


@pytest.mark.row("M-138", "M-139", "M-140", "M-141")
async def test_calls_and_results_are_checked_against_the_session(store: Store) -> None:
    await filled(store)
    await store.create_session("sess_other")
    wrong = {
        "M-138": tool("?", answers=tool_id(99), id=ulid(300)),
        "M-139": tool("?", answers=tool_id(7), id=ulid(300), session_id="sess_other"),
        "M-140": tool("?", answers=tool_id(7), id=ulid(300)),
        "M-141": assistant(call("read", tool_id(7)), id=ulid(300)),
        "M-164": user("again", id=ulid(100), session_id="sess_other"),
        "M-165": user("too late", id=ulid(99)),
    }
    before = await store.history(S)
    for rule, message in wrong.items():
        with pytest.raises(InvalidMessageError) as outcome:
            await store.append(message)
        assert [problem.rule for problem in outcome.value.problems] == [rule]
    assert await store.history(S) == before
    assert await store.messages("sess_other") == []


async def test_one_bad_message_among_many_fails_alone(store: Store) -> None:
    await store.create_session(S)
    ids = [new_ulid() for _ in range(9)]
    bad = tool("?", answers=tool_id(99), id=ids[4])
    messages = [user(str(n), id=item) if item != bad.id else bad for n, item in enumerate(ids)]
    results = await asyncio.gather(
        *(store.append(message) for message in messages), return_exceptions=True
    )
    assert [isinstance(item, InvalidMessageError) for item in results] == [
        message is bad for message in messages
    ]
    assert await store.messages(S) == [message for message in messages if message is not bad]


@pytest.mark.parametrize("count", [15, 16, 17, 64, 65, 97, 150])
async def test_duplicate_row_fails_alone_in_a_group(store: Store, count: int) -> None:
    await store.create_session("sess_other")
    await store.create_session(S)
    ids = [new_ulid() for _ in range(count)]
    accepted = count // 2
    await store.append(user("mine", id=ids[accepted], session_id="sess_other"))
    messages = [user(str(n), id=item) for n, item in enumerate(ids)]
    results = await asyncio.gather(
        *(store.append(message) for message in messages), return_exceptions=True
    )
    wrong = results[accepted]
    assert isinstance(wrong, InvalidMessageError)
    assert [problem.rule for problem in wrong.problems] == ["M-164"]
    there = messages[:accepted] + messages[accepted + 1 :]
    assert [item.id for item in results if isinstance(item, MessageEntry)] == [m.id for m in there]
    assert await store.messages(S) == there
    assert await store.check() == []


@pytest.mark.parametrize("count", [16, 64, 81, 200])
async def test_group_with_calls_and_results_round_trips(store: Store, count: int) -> None:
    await store.create_session(S)
    calls = [assistant(call("read", tool_id(n)), id=new_ulid()) for n in range(count)]
    results = [tool(str(n), answers=tool_id(n), id=new_ulid()) for n in range(count)]
    for group in (calls, results):
        await asyncio.gather(*(store.append(message) for message in group))
    assert await store.messages(S) == calls + results
    records = await store.tool_calls(S)
    assert [(record.message_id, record.result_message_id) for record in records] == [
        (one.id, other.id) for one, other in zip(calls, results, strict=True)
    ]
    assert await store.check() == []


async def test_append_all_is_all_or_nothing(store: Store) -> None:
    await store.create_session(S)
    good, bad = user("a", id=ulid(1)), tool("?", answers=tool_id(99), id=ulid(2))
    with pytest.raises(InvalidMessageError):
        await store.append_all([good, bad])
    assert await store.messages(S) == []
    entries = await store.append_all([good, user("b", id=ulid(2))])
    assert [entry.seq for entry in entries] == [1, 2]


@pytest.mark.row("M-165")
async def test_concurrent_writer_with_older_id_gets_new_id(store: Store) -> None:
    await filled(store, [user("first", id=ulid(50))])
    late = user("late", id=ulid(49))
    entry = await store.append(late, renew_ids=True)
    assert entry.message.id > ulid(50)
    assert [m.id for m in await store.messages(S)] == [ulid(50), entry.id]
    assert entry.message.content == late.content


@pytest.mark.row(
    *("M-262", "M-263", "M-264", "M-265", "M-266", "M-267", "M-268", "M-269", "M-270", "M-169"),
)
async def test_tool_calls_follow_their_messages(store: Store) -> None:
    await store.create_session(S)
    calls = [call(name, tool_id(n)) for n, name in enumerate("abcd", 1)]
    raw = {"anthropic": {"ids": {tool_id(1): "toolu_1"}}}
    request = assistant(*calls, id=ulid(1), metadata=provenance(provider_raw=raw))
    await store.append(request)
    pending = await store.tool_calls(S, status="pending")
    assert [(item.id, item.name, item.message_id) for item in pending] == [
        (item.id, item.name, request.id) for item in calls
    ]
    assert pending[0].provider_id == "toolu_1"
    assert pending[0].provider == "anthropic"
    assert (pending[0].result_message_id, pending[0].completed_at) == (None, None)
    assert await store.provider_ids(S, "anthropic") == {tool_id(1): "toolu_1"}
    assert await store.tool_use_id(S, "anthropic", "toolu_1") == tool_id(1)
    assert await store.tool_use_id(S, "anthropic", "toolu_2") is None
    aborted = MessageMetadata(
        parent_tool_use_id=tool_id(3), outcome=Outcome(status=OutcomeStatus.ABORTED)
    )
    later = NOW + timedelta(seconds=1)
    for number, answer in enumerate(
        [
            tool("fine", answers=tool_id(1)),
            replace(tool("bad", answers=tool_id(2)), content=(failed_result(tool_id(2)),)),
            replace(tool("stopped", answers=tool_id(3)), metadata=aborted),
        ],
        2,
    ):
        await store.append(replace(answer, id=ulid(number), created_at=later))
    outcome = {item.id: item for item in await store.tool_calls(S)}
    statuses = [outcome[tool_id(n)].status for n in (1, 2, 3, 4)]
    assert statuses == ["succeeded", "failed", "cancelled", "pending"]
    assert outcome[tool_id(1)].result_message_id == ulid(2)
    assert outcome[tool_id(1)].created_at == NOW
    assert outcome[tool_id(1)].completed_at == later


def failed_result(tool_use_id: str) -> Any:
    from build import result  # noqa: PLC0415 - named like a local word elsewhere

    return result("bad", answers=tool_use_id, is_error=True)


async def test_partial_message_is_completed(store: Store) -> None:
    await store.create_session(S)
    partial = assistant(
        "so f", id=ulid(1), metadata=provenance(status=MessageStatus.PARTIAL, usage=None)
    )
    await store.append(partial)
    assert await store.messages(S) == [partial]
    final = assistant("so far", call("read", tool_id(1)), id=ulid(1))
    await store.save(final)
    assert await store.messages(S) == [final]
    assert [item.id for item in await store.tool_calls(S, status="pending")] == [tool_id(1)]
    with pytest.raises(StoreError, match="complete"):
        await store.save(assistant("other", id=ulid(1)))
    await store.save(final)
    with pytest.raises(UnknownMessageError):
        await store.save(assistant("nowhere", id=ulid(9)))
    assert await store.check() == []


@pytest.mark.row("K-004", "K-008", "K-022")
async def test_history_has_messages_and_other_entries(store: Store) -> None:
    stored = await filled(store)
    head: dict[str, Any] = {"session_id": S, "created_at": NOW}
    entries = [
        ErrorEntry(id=new_ulid(), text="overloaded", status=529, **head),
        TaskMetadataEntry(id=new_ulid(), data={"cost": "0.1"}, **head),
        SwapEntry(id=new_ulid(), from_model=MODEL, to_model="openai:gpt-5", **head),
        CompactionEntry(id=new_ulid(), summary="so far", first_kept_id=stored[2].id, **head),
        RewindEntry(id=new_ulid(), to_id=stored[1].id, **head),
        RetractionEntry(id=new_ulid(), message_id=stored[0].id, **head),
    ]
    placed = [await store.record(entry) for entry in entries]
    history = await store.history(S)
    assert [entry.seq for entry in history] == list(range(1, 13))
    messages = [entry.message for entry in history if isinstance(entry, MessageEntry)]
    assert messages == stored
    assert history[6:] == placed
    assert await store.history(S, newest=3) == history[-3:]
    assert await store.history(S, after=10) == history[10:]
    assert (await store.session(S)).active_model == "openai:gpt-5"
    assert await store.messages(S) == stored
    for bad in (
        RewindEntry(id=new_ulid(), to_id=ulid(999), **head),
        RetractionEntry(id=new_ulid(), message_id=ulid(999), **head),
    ):
        with pytest.raises(UnknownMessageError):
            await store.record(bad)
    with pytest.raises(InvalidValueError, match="appended"):
        await store.record(history[0])


@pytest.mark.row("G-025", "G-044", "G-045", "G-046", "G-047")
async def test_bookmarks_are_unique_and_move_with_the_thread(store: Store) -> None:
    stored = await filled(store, [user("a", id=ulid(1)), user("b", id=ulid(2))])

    async def name(title: str, message_id: str | None) -> None:
        entry = BookmarkEntry(
            id=new_ulid(), session_id=S, created_at=NOW, name=title, message_id=message_id
        )
        await store.record(entry)

    await name("Grüße 🦉", stored[0].id)
    await name("main", stored[1].id)
    await store.append(user("c", id=ulid(3)))
    assert await store.bookmarks(S) == {"Grüße 🦉": ulid(1), "main": ulid(3)}
    branch = MessageMetadata(parents=(ulid(1),))
    await store.append(user("d", id=ulid(4), metadata=branch))
    assert await store.bookmarks(S) == {"Grüße 🦉": ulid(4), "main": ulid(3)}
    await name("main", ulid(1))
    assert (await store.bookmarks(S))["main"] == ulid(1)
    await name("main", None)
    assert list(await store.bookmarks(S)) == ["Grüße 🦉"]
    for bad in ("", "a\nb", new_ulid(), "a" * 25):
        with pytest.raises(InvalidValueError):
            await name(bad, ulid(1))
    with pytest.raises(UnknownMessageError):
        await name("lost", ulid(999))


@pytest.mark.row("G-026")
async def test_unknown_parent_is_refused(store: Store) -> None:
    await filled(store, [user("a", id=ulid(1)), user("b", id=ulid(2))])
    await store.append(user("c", id=ulid(3), metadata=MessageMetadata(parents=(ulid(1), ulid(2)))))
    for parent in (ulid(4), ulid(9)):
        with pytest.raises(InvalidMessageError, match=r"parents\[0\]"):
            await store.append(user("d", id=ulid(4), metadata=MessageMetadata(parents=(parent,))))


async def test_fork_has_new_ids_and_records_original_ids(store: Store) -> None:
    stored = await filled(store)
    fork = await store.fork(S, at=stored[4].id)
    copies = await store.messages(fork.id)
    assert [m.content_digest() for m in copies] == [m.content_digest() for m in stored[:5]]
    assert not {m.id for m in copies} & {m.id for m in stored}
    record = (await store.history(fork.id))[0]
    assert isinstance(record, ForkEntry)
    assert record.source_session_id == S
    assert record.source_message_id == stored[4].id
    assert list(record.message_ids.values()) == [m.id for m in copies]
    (answered,) = await store.tool_calls(fork.id)
    assert answered.id == record.tool_use_ids[tool_id(7)]
    assert answered.status == "succeeded"
    await store.append(replace(user("on", id=new_ulid()), session_id=fork.id))
    assert len(await store.messages(S)) == 6
    assert await store.check() == []
    with pytest.raises(UnknownMessageError):
        await store.fork(S, at=ulid(999))


async def test_copy_of_partial_message_cannot_be_continued(store: Store) -> None:
    partial = assistant("so f", id=ulid(1), metadata=provenance(status=MessageStatus.PARTIAL))
    await filled(store, [partial])
    fork = await store.fork(S)
    (copy,) = await store.messages(fork.id)
    assert copy.metadata.status == MessageStatus.ERROR
    assert await store.messages(S) == [partial]
    await store.save(assistant("so far", id=ulid(1)))
    assert await store.check() == []


async def test_entries_of_newer_version_are_not_swept(store: Store) -> None:
    raw = {"anthropic": {"x": "y" * 500}}
    newer = replace(
        assistant("a", id=ulid(1), metadata=provenance(provider_raw=raw)),
        extra=Extra({"mood": Raw(b'"calm"')}),
    )
    await filled(store, [newer])
    outcome = await store.sweep(Policy(raw_bytes=10), is_dry_run=False)
    assert outcome.evictions == ()
    assert [encode(m) for m in await store.messages(S)] == [encode(newer)]


async def test_imported_entries_become_a_session(store: Store) -> None:
    await filled(store)
    history = await store.history(S)
    with pytest.raises(DuplicateSessionError):
        await store.import_entries(history)
    await store.delete(S)
    record = await store.import_entries(history, workspace_path="/work")
    assert await store.session(S) == record
    assert await store.history(S) == history
    times = [entry.created_at for entry in history]
    assert (record.created_at, record.updated_at) == (min(times), max(times))
    assert (record.workspace_path, record.active_model) == ("/work", None)
    with pytest.raises(InvalidValueError):
        await store.import_entries([])


async def test_export_and_import_lose_nothing(store: Store) -> None:
    stored = await filled(store)
    await store.set_routing_policy(S, {"rules": [{"name": "cheap"}]})
    await store.record(
        BookmarkEntry(
            id=new_ulid(), session_id=S, created_at=NOW, name="main", message_id=stored[5].id
        )
    )
    await store.append(user("more", id=ulid(200)))
    lines = await store.export(S)
    record, history = await store.session(S), await store.history(S)
    calls, bookmarks = await store.tool_calls(S), await store.bookmarks(S)
    with pytest.raises(DuplicateSessionError):
        await store.import_lines(lines)
    await store.delete(S)
    with pytest.raises(UnknownSessionError):
        await store.session(S)
    await store.import_lines(lines)
    assert await store.session(S) == record
    assert await store.history(S) == history
    assert await store.tool_calls(S) == calls
    assert await store.bookmarks(S) == bookmarks == {"main": ulid(200)}
    assert await store.export(S) == lines
    twin = await store.import_lines(lines, new_ids=True)
    assert len(await store.messages(twin.id)) == 7
    assert await store.check() == []


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"{}"],
        [b'{"type":"session"}'],
        [b"nonsense"],
    ],
)
async def test_invalid_export_is_refused(store: Store, lines: list[bytes]) -> None:
    with pytest.raises(DecodeError, match="line 1"):
        await store.import_lines(lines)
    assert await store.sessions() == []


async def test_broken_line_error_names_the_line_and_nothing_is_imported(store: Store) -> None:
    await filled(store)
    lines = await store.export(S)
    await store.delete(S)
    with pytest.raises(DecodeError, match="line 3"):
        await store.import_lines([*lines[:2], lines[2][:-9], *lines[3:]])
    with pytest.raises(InvalidMessageError):
        await store.import_lines([lines[0], *lines[5:]])
    assert await store.sessions() == []


@pytest.mark.row("M-251")
async def test_a_session_keeps_its_policy(store: Store) -> None:
    record = await store.create_session(workspace_path="/w", routing_policy={"default": MODEL})
    assert (await store.session(record.id)).routing_policy == {"default": MODEL}
    await store.set_routing_policy(record.id, None)
    assert (await store.session(record.id)).routing_policy is None
    with pytest.raises(UnknownSessionError):
        await store.set_routing_policy("sess_none", {})
    with pytest.raises(DuplicateSessionError):
        await store.create_session(record.id)
    assert [item.id for item in await store.sessions()] == [record.id]


async def test_calls_left_open_by_crash_are_closed(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    partial = assistant("so f", id=ulid(2), metadata=provenance(status=MessageStatus.PARTIAL))
    calls = assistant(call("a", tool_id(1)), call("b", tool_id(2)), id=ulid(1))
    dead = open_store(url)
    await filled(dead, [calls, partial])
    dead._database.close()  # pyright: ignore[reportPrivateUsage] - as in a crash: without a word
    with caplog.at_level(logging.WARNING, logger="metis.store"):
        async with open_store(url) as store:
            messages = await store.messages(S)
            history = await store.history(S)
            assert [type(entry) for entry in store.recoveries] == [RecoveryEntry]
            assert await store.tool_calls(S, status="pending") == []
            cancelled = await store.tool_calls(S, status="cancelled")
            assert await store.check() == []
    assert messages[1].metadata.status == MessageStatus.ERROR
    assert messages[1].metadata.stop_reason == StopReason.ERROR
    assert messages[1].content == partial.content
    assert [m.metadata.parent_tool_use_id for m in messages[2:]] == [tool_id(1), tool_id(2)]
    outcomes = [m.metadata.outcome for m in messages[2:]]
    assert [item and item.status for item in outcomes] == [OutcomeStatus.ABORTED] * 2
    assert [item.id for item in cancelled] == [tool_id(1), tool_id(2)]
    recovery = history[-1]
    assert isinstance(recovery, RecoveryEntry)
    assert recovery.failed_messages == (partial.id,)
    assert recovery.aborted_calls == (tool_id(1), tool_id(2))
    assert S in caplog.text
    async with open_store(url) as reread:
        assert reread.recoveries == []
        assert await reread.messages(S) == messages


async def test_open_calls_of_another_running_store_are_not_closed(url: str) -> None:
    async with open_store(url) as busy:
        await filled(busy, [assistant(call("a", tool_id(1)), id=ulid(1))])
        async with open_store(url) as second:
            assert second.recoveries == []
            assert len(await second.tool_calls(S, status="pending")) == 1
        await busy.append(tool("done", answers=tool_id(1), id=ulid(2)))
    async with open_store(url) as later:
        assert later.recoveries == []


async def test_call_open_at_store_close_is_closed_later(url: str) -> None:
    async with open_store(url) as first:
        await filled(first, [assistant(call("a", tool_id(1)), id=ulid(1))])
    async with open_store(url) as second:
        assert second.recoveries[0].aborted_calls == (tool_id(1),)


async def test_open_call_is_found_among_many_sessions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "max_tracked_sessions", 1)
    async with open_store(url) as first:
        for number in range(1, 4):
            await first.create_session(f"sess_{number}")
            await first.append(user("hi", id=ulid(number), session_id=f"sess_{number}"))
        request = assistant(call("a", tool_id(1)), id=ulid(9), session_id="sess_3")
        await first.append(request)
    async with open_store(url) as second:
        assert [item.aborted_calls for item in second.recoveries] == [(tool_id(1),)]


async def test_search_ranks_by_relevance(store: Store) -> None:
    await store.create_session(S)
    await store.append(user("owl owl owl", id=ulid(1), session_id=S))
    await store.append(user("an owl " + "and other birds " * 20, id=ulid(2), session_id=S))
    assert [hit.message_id for hit in await store.search("owl")] == [ulid(1), ulid(2)]


async def test_search_for_very_common_word(store: Store) -> None:
    """Of very many hits the newest are ranked; within a session all are found."""
    await store.create_session(S)
    await store.create_session("sess_other")
    await store.append(user("a bird flies", id=ulid(1), session_id="sess_other"))
    birds = [user("a bird", id=ulid(number), session_id=S) for number in range(2, 700)]
    await store.append_all(birds)
    hits = await store.search("bird", limit=3)
    assert [hit.message_id for hit in hits] == [ulid(699), ulid(698), ulid(697)]
    hits = await store.search("bird", session_id="sess_other")
    assert [hit.message_id for hit in hits] == [ulid(1)]
    assert len(await store.search("bird", limit=1000)) == 699


@pytest.mark.row("M-274")
async def test_search_finds_text_and_tool_content(store: Store) -> None:
    stored = await filled(store)
    assert [hit.message_id for hit in await store.search("brief")] == [stored[0].id]
    # Their lengths differ, and each database ranks by a measure of its own.
    hits = sorted(hit.message_id for hit in await store.search("42"))
    assert hits == [stored[4].id, stored[5].id]
    assert [hit.message_id for hit in await store.search("READ look")] == [stored[3].id]
    assert await store.search("nowhere") == []
    assert await store.search("  ") == []
    assert await store.search('"brief OR (') == []
    partial = assistant("owl", id=ulid(300), metadata=provenance(status=MessageStatus.PARTIAL))
    await store.append(partial)
    assert await store.search("owl") == []
    await store.save(assistant("owls fly", id=ulid(300)))
    hits = await store.search("fly", session_id=S)
    assert [hit.message_id for hit in hits] == [partial.id]
    assert "[fly]" in hits[0].snippet
    assert await store.search("fly", session_id="sess_other") == []
    assert await store.rebuild_search() == 7
    assert len(await store.search("fly")) == 1
    await store.delete(S)
    assert await store.search("fly") == []
    await store.create_session("sess_new")
    await store.append(user("they fly again", id=ulid(301), session_id="sess_new"))
    assert [hit.message_id for hit in await store.search("fly")] == [ulid(301)]
    await store.purge()
    assert [hit.message_id for hit in await store.search("fly")] == [ulid(301)]


async def test_sweep_previews_before_deleting(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    raw = {"anthropic": {"keys": {"x": "y" * 500}}}
    big = assistant("a", id=ulid(1), metadata=provenance(provider_raw=raw))
    small = assistant("b", id=ulid(2), metadata=provenance(provider_raw={"anthropic": {"n": 1}}))
    await filled(store, [big, small])
    await store.create_session("sess_old")
    event = EventRecord(
        id=ulid(1),
        timestamp_us=1,
        type="turn.started",
        actor="a",
        sensitivity="p",
        payload_json="{}",
    )
    await store.add_events([event])
    policy = Policy(raw_bytes=100, events_before=NOW)
    outcome = await store.sweep(policy)
    assert outcome.is_dry_run
    assert [item.message_id for item in outcome.evictions] == [big.id]
    assert outcome.event_count == 1
    assert [encode(m) for m in await store.messages(S)] == [encode(big), encode(small)]
    with caplog.at_level(logging.INFO, logger="metis.store"):
        await store.sweep(policy, is_dry_run=False)
    assert big.id in caplog.text
    messages = await store.messages(S)
    assert messages == [big, small]
    assert messages[0].metadata.provider_raw is None
    assert messages[1].metadata.provider_raw is not None
    later = NOW + timedelta(days=36500)
    missing = await store.sweep(Policy(sessions_before=later), is_dry_run=False)
    assert set(missing.sessions) == {S, "sess_old"}
    assert await store.sessions() == []


async def test_events_and_prices_are_stored(store: Store) -> None:
    events = [
        EventRecord(
            id=ulid(n),
            timestamp_us=n,
            session_id=S,
            type="turn.started",
            actor="user",
            sensitivity="public",
            payload_json='{"n":1}',
        )
        for n in range(3)
    ]
    await store.add_events(events)
    assert await store.events(S) == events
    assert await store.events(S, after=ulid(1)) == events[2:]
    await store.save_prices("2026-05-08", {"models": {"a": "1.50"}})
    await store.save_prices("2026-05-08", {"models": {}})
    assert await store.prices() == {"2026-05-08": {"models": {"a": "1.50"}}}


async def test_money_and_time_round_trip_exactly(store: Store) -> None:
    spent = usage(cost_usd=Decimal("0.000000000000000001"))
    message = assistant(
        "a",
        id=ulid(1),
        metadata=provenance(usage=spent),
        created_at=NOW.replace(year=1, microsecond=1),
    )
    await filled(store, [message])
    (reread,) = await store.messages(S)
    assert reread.created_at == message.created_at
    assert reread.metadata.usage == spent


async def test_concurrent_tasks_keep_their_order(store: Store) -> None:
    sessions = [(await store.create_session()).id for _ in range(32)]

    async def write(session_id: str) -> list[str]:
        ids: list[str] = []
        for number in range(20):
            message = user(str(number), id=new_ulid(), session_id=session_id)
            entry = await store.append(message)
            assert entry.seq == number + 1
            ids.append(entry.id)
        return ids

    written = await asyncio.gather(*(write(item) for item in sessions))
    for session_id, ids in zip(sessions, written, strict=True):
        assert [m.id for m in await store.messages(session_id)] == ids
    assert await store.check() == []


async def test_cancelled_append_is_stored_or_not_and_nothing_hangs(store: Store) -> None:
    await store.create_session(S)
    tasks = [asyncio.create_task(store.append(user(str(n), id=new_ulid()))) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    done = [item.id for item in results if isinstance(item, MessageEntry)]
    stored = [m.id for m in await store.messages(S)]
    assert set(done) <= set(stored)
    assert [item for item in stored if item in done] == done
    await store.append(user("next", id=new_ulid()))
    assert await store.check() == []


async def test_closed_store_is_a_typed_error(url: str) -> None:
    store = open_store(url)
    await store.create_session(S)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.append(user("hi"))
    with pytest.raises(StoreError, match="closed"):
        await store.messages(S)
