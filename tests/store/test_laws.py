"""What every store promises; each test runs on SQLite and on PostgreSQL."""

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
from metis import store
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
    """A turn with everything: instructions, a picture, thoughts, a call, its result, an answer."""
    return numbered(
        system("be brief"),
        developer("the user is in a hurry"),
        user("what is in it?", image()),
        assistant(thinking("hm", signature="c2ln"), text("look"), call("read", tool_id(7), a=1)),
        tool("42", answers=tool_id(7)),
        assistant("it says 42"),
    )


async def filled(keep: Store, messages: Sequence[Message] | None = None) -> list[Message]:
    await keep.create_session(S, workspace_path="/work", active_model=MODEL)
    stored = list(messages or conversation())
    for message in stored:
        await keep.append(message)
    return stored


@pytest.mark.row("M-006", "M-010", "M-012", "M-023", "K-019", "K-048", "K-073", "K-088", "K-093")
async def test_what_was_appended_comes_back_in_order(keep: Store) -> None:
    stored = await filled(keep)
    assert await keep.messages(S) == stored
    assert [encode(each) for each in await keep.messages(S)] == [encode(each) for each in stored]
    assert [each.digest() for each in await keep.messages(S)] == [m.digest() for m in stored]
    assert await keep.messages(S, newest=2) == stored[-2:]
    assert await keep.message(S, stored[3].id) == stored[3]
    assert await keep.check() == []


async def test_every_block_and_unknown_parts_come_back_byte_for_byte(keep: Store) -> None:
    blocks = [EVERY_BLOCK[tag] for tag in ("text", "image", "document", "audio", "video")]
    strange = UnknownBlock(b'{"type":"hologram", "n": 1.50}')
    newer = replace(
        user(*blocks, strange, id=ulid(201)),
        extra=Extra({"mood": Raw(b'"calm"')}),
        metadata=MessageMetadata(extra=Extra({"later": Raw(b"[1, 2]")})),
    )
    stored = [user("hi", id=ulid(200)), newer]
    await filled(keep, stored)
    assert [encode(each) for each in await keep.messages(S)] == [encode(each) for each in stored]
    assert await keep.message(S, newer.id) == newer
    lines = await keep.export(S)
    await keep.delete(S)
    await keep.import_lines(lines)
    assert [encode(each) for each in await keep.messages(S)] == [encode(each) for each in stored]


@pytest.mark.row("M-027")
async def test_a_message_for_an_unknown_session_is_refused(keep: Store) -> None:
    with pytest.raises(UnknownSessionError) as found:
        await keep.append(user("hi"))
    assert found.value.session_id == S
    with pytest.raises(UnknownSessionError):
        await keep.messages(S)
    with pytest.raises(UnknownSessionError):
        await keep.history(S)


@pytest.mark.row("M-122")
async def test_an_invalid_message_is_refused_and_leaves_nothing(keep: Store) -> None:
    await keep.create_session(S)
    with pytest.raises(InvalidMessageError) as found:
        await keep.append(user())
    assert found.value.problems[0].rule == "M-123"
    assert await keep.messages(S) == []


@pytest.mark.row("M-138", "M-139", "M-140", "M-141")
async def test_calls_and_results_must_fit_to_the_session(keep: Store) -> None:
    await filled(keep)
    await keep.create_session("sess_other")
    wrong = {
        "M-138": tool("?", answers=tool_id(99), id=ulid(300)),
        "M-139": tool("?", answers=tool_id(7), id=ulid(300), session_id="sess_other"),
        "M-140": tool("?", answers=tool_id(7), id=ulid(300)),
        "M-141": assistant(call("read", tool_id(7)), id=ulid(300)),
        "M-164": user("again", id=ulid(100), session_id="sess_other"),
        "M-165": user("too late", id=ulid(99)),
    }
    before = await keep.history(S)
    for rule, message in wrong.items():
        with pytest.raises(InvalidMessageError) as found:
            await keep.append(message)
        assert [problem.rule for problem in found.value.problems] == [rule]
    assert await keep.history(S) == before
    assert await keep.messages("sess_other") == []


async def test_one_bad_message_among_many_fails_alone(keep: Store) -> None:
    await keep.create_session(S)
    ids = [new_ulid() for _ in range(9)]
    bad = tool("?", answers=tool_id(99), id=ids[4])
    messages = [user(str(n), id=each) if each != bad.id else bad for n, each in enumerate(ids)]
    results = await asyncio.gather(
        *(keep.append(message) for message in messages), return_exceptions=True
    )
    assert [isinstance(each, InvalidMessageError) for each in results] == [
        message is bad for message in messages
    ]
    assert await keep.messages(S) == [message for message in messages if message is not bad]


@pytest.mark.parametrize("count", [15, 16, 17, 64, 65, 97, 150])
async def test_a_row_that_is_there_already_fails_alone_in_a_group(keep: Store, count: int) -> None:
    await keep.create_session("sess_other")
    await keep.create_session(S)
    ids = [new_ulid() for _ in range(count)]
    taken = count // 2
    await keep.append(user("mine", id=ids[taken], session_id="sess_other"))
    messages = [user(str(n), id=each) for n, each in enumerate(ids)]
    results = await asyncio.gather(
        *(keep.append(message) for message in messages), return_exceptions=True
    )
    wrong = results[taken]
    assert isinstance(wrong, InvalidMessageError)
    assert [problem.rule for problem in wrong.problems] == ["M-164"]
    there = messages[:taken] + messages[taken + 1 :]
    assert [each.id for each in results if isinstance(each, MessageEntry)] == [m.id for m in there]
    assert await keep.messages(S) == there
    assert await keep.check() == []


@pytest.mark.parametrize("count", [16, 64, 81, 200])
async def test_a_group_with_calls_and_answers_comes_back_whole(keep: Store, count: int) -> None:
    await keep.create_session(S)
    asked = [assistant(call("read", tool_id(n)), id=new_ulid()) for n in range(count)]
    told = [tool(str(n), answers=tool_id(n), id=new_ulid()) for n in range(count)]
    for group in (asked, told):
        await asyncio.gather(*(keep.append(message) for message in group))
    assert await keep.messages(S) == asked + told
    calls = await keep.tool_calls(S)
    assert [(each.message_id, each.result_message_id) for each in calls] == [
        (one.id, other.id) for one, other in zip(asked, told, strict=True)
    ]
    assert await keep.check() == []


async def test_append_all_is_all_or_nothing(keep: Store) -> None:
    await keep.create_session(S)
    good, bad = user("a", id=ulid(1)), tool("?", answers=tool_id(99), id=ulid(2))
    with pytest.raises(InvalidMessageError):
        await keep.append_all([good, bad])
    assert await keep.messages(S) == []
    entries = await keep.append_all([good, user("b", id=ulid(2))])
    assert [entry.seq for entry in entries] == [1, 2]


@pytest.mark.row("M-165")
async def test_a_writer_who_was_overtaken_gets_a_new_id(keep: Store) -> None:
    await filled(keep, [user("first", id=ulid(50))])
    late = user("late", id=ulid(49))
    entry = await keep.append(late, renew_ids=True)
    assert entry.message.id > ulid(50)
    assert [m.id for m in await keep.messages(S)] == [ulid(50), entry.id]
    assert entry.message.content == late.content


@pytest.mark.row(
    *("M-262", "M-263", "M-264", "M-265", "M-266", "M-267", "M-268", "M-269", "M-270", "M-169"),
)
async def test_tool_calls_follow_their_messages(keep: Store) -> None:
    await keep.create_session(S)
    calls = [call(name, tool_id(n)) for n, name in enumerate("abcd", 1)]
    raw = {"anthropic": {"ids": {tool_id(1): "toolu_1"}}}
    asked = assistant(*calls, id=ulid(1), metadata=provenance(provider_raw=raw))
    await keep.append(asked)
    pending = await keep.tool_calls(S, status="pending")
    assert [(each.id, each.name, each.message_id) for each in pending] == [
        (each.id, each.name, asked.id) for each in calls
    ]
    assert pending[0].provider_id == "toolu_1"
    assert pending[0].provider == "anthropic"
    assert (pending[0].result_message_id, pending[0].completed_at) == (None, None)
    assert await keep.provider_ids(S, "anthropic") == {tool_id(1): "toolu_1"}
    assert await keep.tool_use_id(S, "anthropic", "toolu_1") == tool_id(1)
    assert await keep.tool_use_id(S, "anthropic", "toolu_2") is None
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
        await keep.append(replace(answer, id=ulid(number), created_at=later))
    found = {each.id: each for each in await keep.tool_calls(S)}
    statuses = [found[tool_id(n)].status for n in (1, 2, 3, 4)]
    assert statuses == ["succeeded", "failed", "cancelled", "pending"]
    assert found[tool_id(1)].result_message_id == ulid(2)
    assert found[tool_id(1)].created_at == NOW
    assert found[tool_id(1)].completed_at == later


def failed_result(tool_use_id: str) -> Any:
    from build import result  # noqa: PLC0415 - named like a local word elsewhere

    return result("bad", answers=tool_use_id, is_error=True)


async def test_a_message_that_is_being_written_gets_its_end(keep: Store) -> None:
    await keep.create_session(S)
    partial = assistant(
        "so f", id=ulid(1), metadata=provenance(status=MessageStatus.PARTIAL, usage=None)
    )
    await keep.append(partial)
    assert await keep.messages(S) == [partial]
    final = assistant("so far", call("read", tool_id(1)), id=ulid(1))
    await keep.save(final)
    assert await keep.messages(S) == [final]
    assert [each.id for each in await keep.tool_calls(S, status="pending")] == [tool_id(1)]
    with pytest.raises(StoreError, match="finished"):
        await keep.save(assistant("other", id=ulid(1)))
    await keep.save(final)
    with pytest.raises(UnknownMessageError):
        await keep.save(assistant("nowhere", id=ulid(9)))
    assert await keep.check() == []


@pytest.mark.row("K-004", "K-006", "K-007", "K-008", "K-087", "K-022")
async def test_history_holds_messages_and_what_is_none(keep: Store) -> None:
    stored = await filled(keep)
    head: dict[str, Any] = {"session_id": S, "created_at": NOW}
    entries = [
        ErrorEntry(id=new_ulid(), text="overloaded", status=529, **head),
        TaskMetadataEntry(id=new_ulid(), data={"cost": "0.1"}, **head),
        SwapEntry(id=new_ulid(), from_model=MODEL, to_model="openai:gpt-5", **head),
        CompactionEntry(id=new_ulid(), summary="so far", first_kept_id=stored[2].id, **head),
        RewindEntry(id=new_ulid(), to_id=stored[1].id, **head),
        RetractionEntry(id=new_ulid(), message_id=stored[0].id, **head),
    ]
    placed = [await keep.record(entry) for entry in entries]
    history = await keep.history(S)
    assert [entry.seq for entry in history] == list(range(1, 13))
    messages = [entry.message for entry in history if isinstance(entry, MessageEntry)]
    assert messages == stored
    assert history[6:] == placed
    assert await keep.history(S, newest=3) == history[-3:]
    assert await keep.history(S, after=10) == history[10:]
    assert (await keep.session(S)).active_model == "openai:gpt-5"
    assert await keep.messages(S) == stored
    for bad in (
        RewindEntry(id=new_ulid(), to_id=ulid(999), **head),
        RetractionEntry(id=new_ulid(), message_id=ulid(999), **head),
    ):
        with pytest.raises(UnknownMessageError):
            await keep.record(bad)
    with pytest.raises(InvalidValueError, match="appended"):
        await keep.record(history[0])


@pytest.mark.row("G-025", "G-044", "G-045", "G-046", "G-047")
async def test_bookmarks_are_unique_and_move_with_the_thread(keep: Store) -> None:
    stored = await filled(keep, [user("a", id=ulid(1)), user("b", id=ulid(2))])

    async def name(title: str, message_id: str | None) -> None:
        entry = BookmarkEntry(
            id=new_ulid(), session_id=S, created_at=NOW, name=title, message_id=message_id
        )
        await keep.record(entry)

    await name("Grüße 🦉", stored[0].id)
    await name("main", stored[1].id)
    await keep.append(user("c", id=ulid(3)))
    assert await keep.bookmarks(S) == {"Grüße 🦉": ulid(1), "main": ulid(3)}
    branch = MessageMetadata(parents=(ulid(1),))
    await keep.append(user("d", id=ulid(4), metadata=branch))
    assert await keep.bookmarks(S) == {"Grüße 🦉": ulid(4), "main": ulid(3)}
    await name("main", ulid(1))
    assert (await keep.bookmarks(S))["main"] == ulid(1)
    await name("main", None)
    assert list(await keep.bookmarks(S)) == ["Grüße 🦉"]
    for bad in ("", "a\nb", new_ulid(), "a" * 25):
        with pytest.raises(InvalidValueError):
            await name(bad, ulid(1))
    with pytest.raises(UnknownMessageError):
        await name("lost", ulid(999))


@pytest.mark.row("G-026")
async def test_a_parent_must_be_there_so_that_no_ring_can_close(keep: Store) -> None:
    await filled(keep, [user("a", id=ulid(1)), user("b", id=ulid(2))])
    await keep.append(user("c", id=ulid(3), metadata=MessageMetadata(parents=(ulid(1), ulid(2)))))
    for parent in (ulid(4), ulid(9)):
        with pytest.raises(InvalidMessageError, match=r"parents\[0\]"):
            await keep.append(user("d", id=ulid(4), metadata=MessageMetadata(parents=(parent,))))


async def test_a_fork_has_new_ids_and_remembers_the_old(keep: Store) -> None:
    stored = await filled(keep)
    fork = await keep.fork(S, at=stored[4].id)
    copies = await keep.messages(fork.id)
    assert [m.content_digest() for m in copies] == [m.content_digest() for m in stored[:5]]
    assert not {m.id for m in copies} & {m.id for m in stored}
    record = (await keep.history(fork.id))[0]
    assert isinstance(record, ForkEntry)
    assert record.source_session_id == S
    assert record.source_message_id == stored[4].id
    assert list(record.message_ids.values()) == [m.id for m in copies]
    (answered,) = await keep.tool_calls(fork.id)
    assert answered.id == record.tool_use_ids[tool_id(7)]
    assert answered.status == "succeeded"
    await keep.append(replace(user("on", id=new_ulid()), session_id=fork.id))
    assert len(await keep.messages(S)) == 6
    assert await keep.check() == []
    with pytest.raises(UnknownMessageError):
        await keep.fork(S, at=ulid(999))


async def test_nobody_goes_on_writing_the_copy_of_a_partial_message(keep: Store) -> None:
    partial = assistant("so f", id=ulid(1), metadata=provenance(status=MessageStatus.PARTIAL))
    await filled(keep, [partial])
    fork = await keep.fork(S)
    (copy,) = await keep.messages(fork.id)
    assert copy.metadata.status == MessageStatus.ERROR
    assert await keep.messages(S) == [partial]
    await keep.save(assistant("so far", id=ulid(1)))
    assert await keep.check() == []


async def test_what_a_newer_version_wrote_is_not_swept(keep: Store) -> None:
    raw = {"anthropic": {"x": "y" * 500}}
    newer = replace(
        assistant("a", id=ulid(1), metadata=provenance(provider_raw=raw)),
        extra=Extra({"mood": Raw(b'"calm"')}),
    )
    await filled(keep, [newer])
    found = await keep.sweep(Policy(raw_bytes=10), is_dry_run=False)
    assert found.evictions == ()
    assert [encode(m) for m in await keep.messages(S)] == [encode(newer)]


async def test_export_and_import_lose_nothing(keep: Store) -> None:
    stored = await filled(keep)
    await keep.set_routing_policy(S, {"rules": [{"name": "cheap"}]})
    await keep.record(
        BookmarkEntry(
            id=new_ulid(), session_id=S, created_at=NOW, name="main", message_id=stored[5].id
        )
    )
    await keep.append(user("more", id=ulid(200)))
    lines = await keep.export(S)
    record, history = await keep.session(S), await keep.history(S)
    calls, bookmarks = await keep.tool_calls(S), await keep.bookmarks(S)
    with pytest.raises(DuplicateSessionError):
        await keep.import_lines(lines)
    await keep.delete(S)
    with pytest.raises(UnknownSessionError):
        await keep.session(S)
    await keep.import_lines(lines)
    assert await keep.session(S) == record
    assert await keep.history(S) == history
    assert await keep.tool_calls(S) == calls
    assert await keep.bookmarks(S) == bookmarks == {"main": ulid(200)}
    assert await keep.export(S) == lines
    twin = await keep.import_lines(lines, new_ids=True)
    assert len(await keep.messages(twin.id)) == 7
    assert await keep.check() == []


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"{}"],
        [b'{"type":"session"}'],
        [b"nonsense"],
    ],
)
async def test_what_is_no_export_is_refused(keep: Store, lines: list[bytes]) -> None:
    with pytest.raises(DecodeError, match="line 1"):
        await keep.import_lines(lines)
    assert await keep.sessions() == []


async def test_a_broken_line_is_named_and_nothing_is_imported(keep: Store) -> None:
    await filled(keep)
    lines = await keep.export(S)
    await keep.delete(S)
    with pytest.raises(DecodeError, match="line 3"):
        await keep.import_lines([*lines[:2], lines[2][:-9], *lines[3:]])
    with pytest.raises(InvalidMessageError):
        await keep.import_lines([lines[0], *lines[5:]])
    assert await keep.sessions() == []


@pytest.mark.row("M-251")
async def test_a_session_keeps_its_policy(keep: Store) -> None:
    record = await keep.create_session(workspace_path="/w", routing_policy={"default": MODEL})
    assert (await keep.session(record.id)).routing_policy == {"default": MODEL}
    await keep.set_routing_policy(record.id, None)
    assert (await keep.session(record.id)).routing_policy is None
    with pytest.raises(UnknownSessionError):
        await keep.set_routing_policy("sess_none", {})
    with pytest.raises(DuplicateSessionError):
        await keep.create_session(record.id)
    assert [each.id for each in await keep.sessions()] == [record.id]


async def test_what_a_crash_left_open_is_closed(url: str, caplog: pytest.LogCaptureFixture) -> None:
    partial = assistant("so f", id=ulid(2), metadata=provenance(status=MessageStatus.PARTIAL))
    calls = assistant(call("a", tool_id(1)), call("b", tool_id(2)), id=ulid(1))
    dead = store.open(url)
    await filled(dead, [calls, partial])
    dead._database.close()  # pyright: ignore[reportPrivateUsage] - as in a crash: without a word
    with caplog.at_level(logging.WARNING, logger="metis.store"):
        async with store.open(url) as keep:
            messages = await keep.messages(S)
            history = await keep.history(S)
            assert [type(entry) for entry in keep.recoveries] == [RecoveryEntry]
            assert await keep.tool_calls(S, status="pending") == []
            cancelled = await keep.tool_calls(S, status="cancelled")
            assert await keep.check() == []
    assert messages[1].metadata.status == MessageStatus.ERROR
    assert messages[1].metadata.stop_reason == StopReason.ERROR
    assert messages[1].content == partial.content
    assert [m.metadata.parent_tool_use_id for m in messages[2:]] == [tool_id(1), tool_id(2)]
    outcomes = [m.metadata.outcome for m in messages[2:]]
    assert [each and each.status for each in outcomes] == [OutcomeStatus.ABORTED] * 2
    assert [each.id for each in cancelled] == [tool_id(1), tool_id(2)]
    recovery = history[-1]
    assert isinstance(recovery, RecoveryEntry)
    assert recovery.failed_messages == (partial.id,)
    assert recovery.aborted_calls == (tool_id(1), tool_id(2))
    assert S in caplog.text
    async with store.open(url) as again:
        assert again.recoveries == []
        assert await again.messages(S) == messages


async def test_what_another_store_is_doing_is_not_closed(url: str) -> None:
    async with store.open(url) as busy:
        await filled(busy, [assistant(call("a", tool_id(1)), id=ulid(1))])
        async with store.open(url) as second:
            assert second.recoveries == []
            assert len(await second.tool_calls(S, status="pending")) == 1
        await busy.append(tool("done", answers=tool_id(1), id=ulid(2)))
    async with store.open(url) as later:
        assert later.recoveries == []


async def test_a_store_that_was_closed_in_the_middle_of_a_call_is_closed_later(url: str) -> None:
    async with store.open(url) as first:
        await filled(first, [assistant(call("a", tool_id(1)), id=ulid(1))])
    async with store.open(url) as second:
        assert second.recoveries[0].aborted_calls == (tool_id(1),)


async def test_an_open_call_is_found_where_too_many_sessions_were_written_to_look_through(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metis.store.store.MAX_TRACKED_SESSIONS", 1)
    async with store.open(url) as first:
        for number in range(1, 4):
            await first.create_session(f"sess_{number}")
            await first.append(user("hi", id=ulid(number), session_id=f"sess_{number}"))
        asked = assistant(call("a", tool_id(1)), id=ulid(9), session_id="sess_3")
        await first.append(asked)
    async with store.open(url) as second:
        assert [each.aborted_calls for each in second.recoveries] == [(tool_id(1),)]


async def test_search_ranks_what_is_more_about_the_words(keep: Store) -> None:
    await keep.create_session(S)
    await keep.append(user("owl owl owl", id=ulid(1), session_id=S))
    await keep.append(user("an owl " + "and other birds " * 20, id=ulid(2), session_id=S))
    assert [hit.message_id for hit in await keep.search("owl")] == [ulid(1), ulid(2)]


async def test_search_for_what_nearly_every_message_holds(keep: Store) -> None:
    """Of very many hits the newest are ranked, and a session's own are all found."""
    await keep.create_session(S)
    await keep.create_session("sess_other")
    await keep.append(user("a bird flies", id=ulid(1), session_id="sess_other"))
    birds = [user("a bird", id=ulid(number), session_id=S) for number in range(2, 700)]
    await keep.append_all(birds)
    hits = await keep.search("bird", limit=3)
    assert [hit.message_id for hit in hits] == [ulid(699), ulid(698), ulid(697)]
    hits = await keep.search("bird", session_id="sess_other")
    assert [hit.message_id for hit in hits] == [ulid(1)]
    assert len(await keep.search("bird", limit=1000)) == 699


@pytest.mark.row("M-274")
async def test_search_finds_text_and_tool_content(keep: Store) -> None:
    stored = await filled(keep)
    assert [hit.message_id for hit in await keep.search("brief")] == [stored[0].id]
    assert [hit.message_id for hit in await keep.search("42")] == [stored[5].id, stored[4].id] or {
        hit.message_id for hit in await keep.search("42")
    } == {stored[4].id, stored[5].id}
    assert [hit.message_id for hit in await keep.search("READ look")] == [stored[3].id]
    assert await keep.search("nowhere") == []
    assert await keep.search("  ") == []
    assert await keep.search('"brief OR (') == []
    partial = assistant("owl", id=ulid(300), metadata=provenance(status=MessageStatus.PARTIAL))
    await keep.append(partial)
    assert await keep.search("owl") == []
    await keep.save(assistant("owls fly", id=ulid(300)))
    hits = await keep.search("fly", session_id=S)
    assert [hit.message_id for hit in hits] == [partial.id]
    assert "[fly]" in hits[0].snippet
    assert await keep.search("fly", session_id="sess_other") == []
    assert await keep.rebuild_search() == 7
    assert len(await keep.search("fly")) == 1
    await keep.delete(S)
    assert await keep.search("fly") == []
    await keep.create_session("sess_new")
    await keep.append(user("they fly again", id=ulid(301), session_id="sess_new"))
    assert [hit.message_id for hit in await keep.search("fly")] == [ulid(301)]
    await keep.purge()
    assert [hit.message_id for hit in await keep.search("fly")] == [ulid(301)]


async def test_a_sweep_says_first_and_does_then(
    keep: Store, caplog: pytest.LogCaptureFixture
) -> None:
    raw = {"anthropic": {"keys": {"x": "y" * 500}}}
    big = assistant("a", id=ulid(1), metadata=provenance(provider_raw=raw))
    small = assistant("b", id=ulid(2), metadata=provenance(provider_raw={"anthropic": {"n": 1}}))
    await filled(keep, [big, small])
    await keep.create_session("sess_old")
    event = EventRecord(
        id=ulid(1),
        timestamp_us=1,
        type="turn.started",
        actor="a",
        sensitivity="p",
        payload_json="{}",
    )
    await keep.add_events([event])
    policy = Policy(raw_bytes=100, events_before=NOW)
    found = await keep.sweep(policy)
    assert found.is_dry_run
    assert [each.message_id for each in found.evictions] == [big.id]
    assert found.event_count == 1
    assert [encode(m) for m in await keep.messages(S)] == [encode(big), encode(small)]
    with caplog.at_level(logging.INFO, logger="metis.store"):
        await keep.sweep(policy, is_dry_run=False)
    assert big.id in caplog.text
    messages = await keep.messages(S)
    assert messages == [big, small]
    assert messages[0].metadata.provider_raw is None
    assert messages[1].metadata.provider_raw is not None
    later = NOW + timedelta(days=36500)
    gone = await keep.sweep(Policy(sessions_before=later), is_dry_run=False)
    assert set(gone.sessions) == {S, "sess_old"}
    assert await keep.sessions() == []


async def test_events_and_prices_are_kept(keep: Store) -> None:
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
    await keep.add_events(events)
    assert await keep.events(S) == events
    assert await keep.events(S, after=ulid(1)) == events[2:]
    await keep.save_prices("2026-05-08", {"models": {"a": "1.50"}})
    await keep.save_prices("2026-05-08", {"models": {}})
    assert await keep.prices() == {"2026-05-08": {"models": {"a": "1.50"}}}


async def test_money_and_time_come_back_exactly(keep: Store) -> None:
    spent = usage(cost_usd=Decimal("0.000000000000000001"))
    message = assistant(
        "a",
        id=ulid(1),
        metadata=provenance(usage=spent),
        created_at=NOW.replace(year=1, microsecond=1),
    )
    await filled(keep, [message])
    (again,) = await keep.messages(S)
    assert again.created_at == message.created_at
    assert again.metadata.usage == spent


async def test_many_tasks_write_at_once_and_keep_their_order(keep: Store) -> None:
    sessions = [(await keep.create_session()).id for _ in range(32)]

    async def write(session_id: str) -> list[str]:
        ids: list[str] = []
        for number in range(20):
            message = user(str(number), id=new_ulid(), session_id=session_id)
            entry = await keep.append(message)
            assert entry.seq == number + 1
            ids.append(entry.id)
        return ids

    written = await asyncio.gather(*(write(each) for each in sessions))
    for session_id, ids in zip(sessions, written, strict=True):
        assert [m.id for m in await keep.messages(session_id)] == ids
    assert await keep.check() == []


async def test_a_cancelled_append_is_there_or_not_and_nothing_hangs(keep: Store) -> None:
    await keep.create_session(S)
    tasks = [asyncio.create_task(keep.append(user(str(n), id=new_ulid()))) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    done = [each.id for each in results if isinstance(each, MessageEntry)]
    stored = [m.id for m in await keep.messages(S)]
    assert set(done) <= set(stored)
    assert [each for each in stored if each in done] == done
    await keep.append(user("next", id=new_ulid()))
    assert await keep.check() == []


async def test_a_closed_store_says_so(url: str) -> None:
    keep = store.open(url)
    await keep.create_session(S)
    await keep.close()
    await keep.close()
    with pytest.raises(StoreError, match="closed"):
        await keep.append(user("hi"))
    with pytest.raises(StoreError, match="closed"):
        await keep.messages(S)
