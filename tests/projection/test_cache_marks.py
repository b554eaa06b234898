"""Cache marks: which blocks get one, lifetimes, limits, and stability over turns."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from build import assistant, call, system, text, thinking, tool, tool_id, user
from metis.canonical import CacheHint, Message, TextBlock
from metis.projection import Target, project

MARKED = Target(adapter="toy", issuers=frozenset({"toy"}), cache_marks=4, accepts_thinking=True)
PLAIN = replace(MARKED, cache_marks=0)


def hinted(message: Message, *hints: CacheHint, origin: str | None = None) -> Message:
    metadata = replace(message.metadata, hints=hints, origin=origin)
    return replace(message, metadata=metadata)


def short(after: int = 0) -> CacheHint:
    return CacheHint(after=after)


def long(after: int = 0) -> CacheHint:
    return CacheHint(after=after, ttl="1h")


def marks(messages: Sequence[Message]) -> list[tuple[int, int, str | None]]:
    return [
        (place, hint.after, hint.ttl)
        for place, message in enumerate(messages)
        for hint in message.metadata.hints
    ]


@pytest.mark.row("T170")
def test_first_mark_and_last_marks_are_kept() -> None:
    turns = [hinted(user(str(number)), short()) for number in range(6)]
    planned = project([hinted(system("s"), short()), *turns], MARKED)
    assert [place for place, _, _ in marks(planned.messages)] == [0, 4, 5, 6]
    assert planned.losses == []
    few = project(turns[:4], MARKED)
    assert len(marks(few.messages)) == 4


@pytest.mark.row("G-018")
def test_last_four_marked_turns_keep_marks() -> None:
    turns = [hinted(user(str(number)), short()) for number in range(5)]
    planned = project(turns, MARKED)
    assert [place for place, _, _ in marks(planned.messages)] == [1, 2, 3, 4]
    assert planned.losses == []
    one = project(turns, replace(MARKED, cache_marks=1))
    assert [place for place, _, _ in marks(one.messages)] == [4]


@pytest.mark.row("T170")
def test_marks_of_a_client_are_kept_and_counted() -> None:
    native = [hinted(user(str(number)), short(), origin="toy") for number in range(3)]
    native = [replace(each, metadata=replace(each.metadata, model=None)) for each in native]
    ours = [hinted(user("a"), short()), hinted(user("b"), short())]
    planned = project([*native, *ours], MARKED)
    assert [place for place, _, _ in marks(planned.messages)] == [0, 1, 2, 4]
    full = project([*native, *native, *ours], MARKED)
    assert [place for place, _, _ in marks(full.messages)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.row("T171")
def test_no_mark_lives_longer_than_one_before_it() -> None:
    given = [hinted(system("s"), long()), hinted(user("a"), short()), hinted(user("b"), long())]
    planned = project(given, MARKED)
    assert marks(planned.messages) == [(0, 0, "1h"), (1, 0, None), (2, 0, None)]
    (loss,) = planned.losses
    assert (loss.block_type, loss.message_id) == ("hint", given[2].id)
    assert "it is 5m" in loss.reason
    day = project([hinted(user("a"), CacheHint(after=0, ttl="24h"))], MARKED)
    assert marks(day.messages) == [(0, 0, "1h")]
    assert len(day.losses) == 1
    after_tools = project(given[:1], replace(MARKED, accepts_long_marks=False))
    assert marks(after_tools.messages) == [(0, 0, None)]
    assert len(after_tools.losses) == 1


@pytest.mark.row("T171")
def test_mark_before_long_client_mark_has_same_ttl() -> None:
    native = hinted(user("b"), long(), origin="toy")
    planned = project([hinted(system("s"), short()), native], MARKED)
    assert marks(planned.messages) == [(0, 0, "1h"), (1, 0, "1h")]


@pytest.mark.row("T172")
def test_a_mark_moves_to_a_block_that_may_carry_it() -> None:
    signed = replace(thinking("hm"), signature="s", issuer="toy")
    given = [
        user("go"),
        hinted(assistant(text("yes"), signed, TextBlock("")), short(2)),
        hinted(assistant(signed), short()),
        hinted(user("on"), short(7)),
    ]
    assert marks(project(given, MARKED).messages) == [(1, 0, None), (3, 0, None)]


@pytest.mark.row("T172", "T176")
def test_mark_stays_at_block_when_earlier_blocks_are_removed() -> None:
    foreign = replace(thinking("hm"), issuer="other")
    given = [user("go"), hinted(assistant(foreign, text("a"), text("b")), short(1))]
    planned = project(given, MARKED).messages
    assert planned[1].content == (text("a"), text("b"))
    assert marks(planned) == [(1, 0, None)]


@pytest.mark.row("T174", "T175")
def test_without_cache_marks_only_an_explicit_ttl_is_a_loss() -> None:
    given = [hinted(system("s"), short()), hinted(user("go"), long())]
    planned = project(given, PLAIN)
    assert marks(planned.messages) == []
    (loss,) = planned.losses
    assert loss.reason == "the target has no cache with a lifetime of 1h"
    assert given[0].metadata.hints == (short(),)


@pytest.mark.row("T176")
def test_marks_that_fit_never_move() -> None:
    tool_call = call("f", tool_id(1))
    given = [
        hinted(system("s"), long()),
        hinted(user("go"), short()),
        assistant(tool_call),
        hinted(tool("ok", answers=tool_call.id), short()),
        assistant(text("done")),
        hinted(user("on"), short()),
    ]
    all_marks = marks(project(given, MARKED).messages)
    assert len(all_marks) == 4
    for count in (2, 4):
        part = marks(project(given[:count], MARKED).messages)
        assert all_marks[: len(part)] == part


@pytest.mark.row("T179")
def test_long_unmarked_stretch_gets_marks() -> None:
    turns = [user(str(number)) if number % 2 else assistant(str(number)) for number in range(1, 51)]
    given = [hinted(system("s"), short()), *turns]
    planned = project(given, MARKED)
    places = [place for place, _, _ in marks(planned.messages)]
    assert places == [0, 10, 30, 50]
    assert [str(loss.change) for loss in planned.losses] == ["synthesised"] * 3
    few = project(given[:21], MARKED)
    assert [place for place, _, _ in marks(few.messages)] == [0]
    one_left = project(given, replace(MARKED, cache_marks=2))
    assert [place for place, _, _ in marks(one_left.messages)] == [0, 50]
    assert marks(project(turns, MARKED).messages) == []


@pytest.mark.row("T179")
def test_marks_are_within_lookback_of_target() -> None:
    thought = thinking("hm", signature="s", issuer="toy")
    blocks = [thought if number % 3 else text(str(number)) for number in range(60)]
    given = [hinted(system("s"), short()), user("go"), assistant(*blocks), user("on")]
    planned = project(given, MARKED)
    positions = marks(planned.messages)
    assert len(positions) == 4
    for place, after, _ in positions[1:]:
        assert not isinstance(planned.messages[place].content[after], type(thought))


@pytest.mark.row("T179")
def test_prefix_too_short_for_cache_is_reported() -> None:
    target = replace(MARKED, min_cached_tokens=1024)
    planned = project([hinted(system("s" * 2000), short()), user("go")], target)
    (loss,) = planned.losses
    assert (loss.block_type, str(loss.change), loss.path) == ("hint", "altered", "$.content[0]")
    assert "1024" in loss.reason
    assert marks(planned.messages) == [(0, 0, None)]
    assert project([hinted(system("s" * 4000), short()), user("go")], target).losses == []
    results = [user("go"), assistant(call("f", tool_id(1), a="x" * 2000))]
    results.append(hinted(tool("y" * 2000, answers=tool_id(1)), short()))
    assert project(results, target).losses == []
