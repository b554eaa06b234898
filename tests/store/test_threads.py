"""Threads without a database: heads, parents, bookmarks, options, summaries, rewinds."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import NOW, SESSION, assistant, call, system, tool, tool_id, ulid, user
from metis.canonical import Message, MessageMetadata, MessageStatus, Role, validate
from metis.canonical.errors import BookmarkError, CycleError, ThreadError, UnknownHeadError
from metis.store.entries import (
    AnyEntry,
    BookmarkEntry,
    CompactionEntry,
    ErrorEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SidecarEntry,
)
from metis.store.threads import Threads, bookmark_problem, merged_options, view


def entry(message: Message) -> MessageEntry:
    return MessageEntry(
        id=message.id, session_id=SESSION, created_at=message.created_at, message=message
    )


def message_entry(number: int, text: str = "", **about: Any) -> MessageEntry:
    """Return a prompt whose id is derived from a number."""
    return entry(user(text or f"m{number}", id=ulid(number), metadata=MessageMetadata(**about)))


def after(number: int, *parents: int, **about: Any) -> MessageEntry:
    return message_entry(number, parents=tuple(ulid(parent) for parent in parents), **about)


def common(number: int) -> dict[str, Any]:
    return {
        "id": ulid(number),
        "session_id": SESSION,
        "created_at": NOW + timedelta(seconds=number),
    }


def bookmark(number: int, name: str, target: int | None) -> BookmarkEntry:
    at = None if target is None else ulid(target)
    return BookmarkEntry(name=name, message_id=at, **common(number))


def texts(messages: list[Message]) -> list[str]:
    return [getattr(block, "text", block.type) for item in messages for block in item.content]


@pytest.mark.row("G-037")
def test_thread_view_is_ordered_and_has_shared_ancestor_once() -> None:
    entries = [message_entry(1), message_entry(2), after(3, 1), after(4, 2, 3), message_entry(5)]
    assert texts(view(entries).messages) == ["m1", "m2", "m3", "m4", "m5"]
    assert texts(view(entries, ulid(3)).messages) == ["m1", "m3"]
    assert texts(
        view([message_entry(1), message_entry(2), after(3, 1), after(4, 3, 2)]).messages
    ) == [
        "m1",
        "m3",
        "m2",
        "m4",
    ]


def test_a_message_follows_the_tip_unless_it_names_parents() -> None:
    threads = Threads([message_entry(1), message_entry(2), after(3, 1)])
    assert threads.tip == ulid(3)
    assert [item.id for item in threads.path(ulid(2))] == [ulid(1), ulid(2)]


@pytest.mark.row("G-043")
def test_head_that_is_neither_id_nor_bookmark_is_an_error() -> None:
    entries = [message_entry(1), bookmark(8, "start", 1), after(2)]
    assert Threads(entries).resolve(ulid(2)) == ulid(2)
    assert Threads(entries).resolve("start") == ulid(2)
    with pytest.raises(UnknownHeadError, match="'nowhere'"):
        view(entries, "nowhere")


def test_an_empty_journal_has_an_empty_view() -> None:
    assert view([]).messages == []
    assert view([]).head is None


@pytest.mark.parametrize("parent", [9, 3], ids=["unknown", "itself"])
def test_invalid_parents_are_refused(parent: int) -> None:
    with pytest.raises(ThreadError):
        view([message_entry(1), after(3, parent)])


def test_a_cycle_through_another_session_is_refused() -> None:
    far = {
        ulid(90): (message_entry(90).message, (ulid(91),)),
        ulid(91): (message_entry(91).message, (ulid(90),)),
    }
    threads = Threads([after(1, 90)], lookup=far.get)
    with pytest.raises(CycleError):
        threads.view()


def test_thread_continues_into_another_session() -> None:
    far = {
        ulid(90): (message_entry(90).message, (ulid(91),)),
        ulid(91): (message_entry(91).message, ()),
    }
    assert texts(view([after(100, 90)], lookup=far.get).messages) == ["m91", "m90", "m100"]


@pytest.mark.row("G-021", "G-022", "G-023", "G-039", "G-040")
def test_options_are_merged_deeply_along_the_path() -> None:
    first = {"provider_ptr": "nano", "servers": ["filesystem"], "limits": {"a": 1, "b": {"c": 2}}}
    second = {"servers": ["filesystem", "web-search"], "limits": {"b": {"d": 3}}}
    third = {"provider_ptr": "kilo", "search": True, "tool_mode": "auto", "limits": {"a": 9}}
    entries = [
        message_entry(1, options=first),
        message_entry(2, options=second),
        message_entry(3, options=third),
    ]
    assert view(entries).options == {
        "provider_ptr": "kilo",
        "servers": ["filesystem", "web-search"],
        "search": True,
        "tool_mode": "auto",
        "limits": {"a": 9, "b": {"c": 2, "d": 3}},
    }
    assert view(entries, ulid(1)).options == first
    assert merged_options([]) == {}
    assert entries[0].message.metadata.options == first


def test_options_of_another_branch_do_not_apply() -> None:
    entries = [message_entry(1), message_entry(2, options={"a": 1}), after(3, 1, options={"b": 2})]
    assert view(entries).options == {"b": 2}


@pytest.mark.row("G-025", "G-046", "G-047", "GX-04")
def test_a_bookmark_is_unique_and_moves_with_the_thread() -> None:
    threads = Threads(
        [message_entry(1), bookmark(8, "work", 1), message_entry(2), message_entry(3)]
    )
    assert threads.bookmarks == {"work": ulid(3)}
    threads.add(after(4, 1))  # another branch of a turn that had the bookmark
    assert threads.bookmarks == {"work": ulid(4)}
    threads.add(bookmark(9, "work", 2))
    assert threads.bookmarks == {"work": ulid(2)}
    threads.add(after(5, 3))  # it had the bookmark before it was moved
    assert threads.bookmarks == {"work": ulid(2)}
    threads.add(after(6, 2))
    assert threads.bookmarks == {"work": ulid(6)}
    threads.add(bookmark(10, "work", None))
    threads.add(after(7, 6))
    assert threads.bookmarks == {}


def test_bookmark_of_last_parent_is_inherited() -> None:
    entries = [message_entry(1), bookmark(8, "a", 1), after(2, 1), after(3), bookmark(9, "b", 3)]
    threads = Threads([*entries, after(4, 2, 3)])
    assert threads.bookmarks["b"] == ulid(4)


@pytest.mark.row("G-044", "G-045")
@pytest.mark.parametrize("name", ["", "  ", "a\nb", ulid(1), "03DXL6W8Q53VJHS6I91Q9R7M3"])
def test_bookmark_name_is_printable_and_not_an_id(name: str) -> None:
    assert bookmark_problem(name) is not None
    with pytest.raises(BookmarkError):
        Threads([message_entry(1), bookmark(8, name, 1)])
    assert bookmark_problem("réunion du 3 mai ✔") is None


def exchange() -> list[AnyEntry]:
    request = tool_id(1)
    return [
        entry(system("be kind", id=ulid(1))),
        entry(user("first", id=ulid(2))),
        entry(assistant(call("bash", request), id=ulid(3))),
        entry(tool("done", answers=request, id=ulid(4))),
        entry(assistant("ok", id=ulid(5))),
        entry(user("second", id=ulid(6))),
    ]


def summary(number: int, first_kept: int | None, **fields: Any) -> CompactionEntry:
    stored = None if first_kept is None else ulid(first_kept)
    return CompactionEntry(summary="long ago", first_kept_id=stored, **fields, **common(number))


@pytest.mark.row("KX-09")
def test_summary_replaces_messages_before_kept_part() -> None:
    shown = view([*exchange(), summary(7, 5), message_entry(8)]).messages
    assert texts(shown) == ["be kind", "long ago", "ok", "second", "m8"]
    assert shown[1].role == Role.USER
    assert shown[1].id == ulid(7)
    assert validate(shown[1]) == []


@pytest.mark.row("KX-09")
def test_the_kept_part_never_starts_with_a_tool_result() -> None:
    shown = view([*exchange(), summary(7, 4)]).messages
    assert [message.role for message in shown] == [
        Role.SYSTEM,
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
        Role.USER,
    ]


def test_a_summary_may_keep_nothing_and_the_newest_one_counts() -> None:
    entries = [*exchange(), summary(7, None), message_entry(8), summary(9, 8)]
    assert texts(view(entries).messages) == ["be kind", "long ago", "m8"]
    assert view(entries).messages[1].id == ulid(9)
    assert texts(view([*exchange(), summary(7, None)]).messages) == ["be kind", "long ago"]


def test_view_of_head_before_summary_is_unchanged() -> None:
    entries = [*exchange(), summary(7, 6), message_entry(8)]
    assert texts(view(entries, ulid(5)).messages)[:2] == ["be kind", "first"]
    beside = [*exchange(), summary(7, 5, head_id=ulid(5))]
    assert "long ago" in texts(view(beside).messages)
    assert "long ago" not in texts(view(beside, ulid(4)).messages)


@pytest.mark.row("KX-10")
def test_rewind_shortens_the_view_and_not_the_journal() -> None:
    entries = [
        message_entry(1),
        message_entry(2),
        message_entry(3),
        RewindEntry(to_id=ulid(1), **common(4)),
        message_entry(5),
    ]
    assert texts(view(entries[:4]).messages) == ["m1"]
    assert texts(view(entries).messages) == ["m1", "m5"]
    assert texts(view(entries, ulid(3)).messages) == ["m1", "m2", "m3"]


def test_rewind_can_leave_a_note_for_the_model() -> None:
    back = RewindEntry(to_id=ulid(1), note="two turns were taken back", **common(4))
    shown = view(
        [message_entry(1), message_entry(2), message_entry(3), back, message_entry(5)]
    ).messages
    assert texts(shown) == ["m1", "two turns were taken back", "m5"]
    assert shown[1].role == Role.DEVELOPER
    start = view([message_entry(1), RewindEntry(**common(4)), message_entry(5)]).messages
    assert texts(start) == ["m5"]


def test_rewind_moves_the_bookmark() -> None:
    entries = [message_entry(1), bookmark(8, "work", 1), message_entry(2), message_entry(3)]
    threads = Threads([*entries, RewindEntry(to_id=ulid(1), **common(4))])
    assert threads.bookmarks == {"work": ulid(1)}
    threads.add(message_entry(5))
    assert threads.bookmarks == {"work": ulid(5)}
    missing = Threads([*entries, RewindEntry(**common(4))])
    assert missing.bookmarks == {}


@pytest.mark.row("KX-10")
def test_retraction_removes_message_and_its_successors() -> None:
    entries = [
        message_entry(1),
        message_entry(2),
        message_entry(3),
        RetractionEntry(message_id=ulid(2), **common(4)),
    ]
    assert texts(view(entries).messages) == ["m1"]
    assert texts(view([*entries, message_entry(5)]).messages) == ["m1", "m5"]
    assert texts(view(entries, ulid(3)).messages) == ["m1"]
    side = [
        message_entry(1),
        message_entry(2),
        after(3, 1),
        RetractionEntry(message_id=ulid(2), **common(4)),
    ]
    assert texts(view(side).messages) == ["m1", "m3"]


@pytest.mark.row("KX-11")
def test_non_message_entries_are_not_in_the_view() -> None:
    error = ErrorEntry(text="overloaded", **common(2))
    sidecar = SidecarEntry(kind="away_summary", data={"text": "secret"}, **common(3))
    shown = view([message_entry(1), error, sidecar, message_entry(4)]).messages
    assert texts(shown) == ["m1", "m4"]
    assert all(type(message) is Message for message in shown)


def test_partial_message_is_hidden_until_completed() -> None:
    partial = message_entry(2, status=MessageStatus.PARTIAL)
    assert texts(view([message_entry(1), partial]).messages) == ["m1"]
    done = entry(user("whole", id=ulid(2)))
    assert texts(view([message_entry(1), partial, message_entry(3), done]).messages) == [
        "m1",
        "whole",
        "m3",
    ]


@given(st.lists(st.lists(st.integers(0, 30), max_size=3, unique=True), max_size=25))
def test_view_has_parents_before_children_and_each_entry_once(links: list[list[int]]) -> None:
    entries: list[AnyEntry] = [message_entry(1)]
    for position, expected in enumerate(links):
        parents = [1 + item % (position + 1) for item in expected]
        entries.append(after(position + 2, *dict.fromkeys(parents)))
    path = [message.id for message in Threads(entries).path()]
    assert len(set(path)) == len(path)
    positions = {message_id: position for position, message_id in enumerate(path)}
    for item in entries:
        if isinstance(item, MessageEntry) and item.id in positions:
            named = item.message.metadata.parents
            assert all(positions[parent] < positions[item.id] for parent in named)


def test_long_journal_with_many_rewinds_is_viewed_completely() -> None:
    """Deep threads need no recursion, and the cost per entry is constant."""
    first = message_entry(1).message
    entries: list[AnyEntry] = []
    for number in range(1, 20_001):
        entries.append(entry(replace(first, id=ulid(number))))
        if number % 100 == 0:
            entries.append(bookmark(100_000 + number, "work", number - 50))
            entries.append(RetractionEntry(message_id=ulid(number), **common(200_000 + number)))
    shown = view(entries)
    assert len(shown.messages) == 20_000 - 200
    assert shown.head == ulid(19_999)
