"""ULIDs and tool ids: format, ordering, threads and limits."""

import itertools
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.ids import (
    UlidSource,
    int_to_ulid,
    is_ulid,
    new_session_id,
    new_tool_use_id,
    new_ulid,
    new_ulid_after,
    ulid_to_int,
)

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
numbers = st.integers(0, 2**128 - 1)
clock_steps = st.lists(st.integers(0, 5), min_size=2, max_size=60)


def spelled(moment_ms: int, chance: int) -> str:
    """Return a ULID as its specification defines it: 10 letters of time, 16 of randomness."""

    def letters(value: int, count: int) -> str:
        digits: list[str] = []
        for _ in range(count):
            value, rest = divmod(value, 32)
            digits.insert(0, CROCKFORD[rest])
        return "".join(digits)

    return letters(moment_ms, 10) + letters(chance, 16)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
@pytest.mark.row("M-026", "M-164")
def test_id_has_format_of_ulid_specification(moment_ms: int, chance: int) -> None:
    minted = UlidSource(now_ms=lambda: moment_ms, random_bits=lambda: chance).mint()
    assert minted == spelled(moment_ms, chance)
    assert ulid_to_int(minted) >> 80 == moment_ms
    assert is_ulid(minted)


@given(numbers)
@pytest.mark.row("M-164")
def test_numbers_and_ids_convert_both_ways(number: int) -> None:
    assert ulid_to_int(int_to_ulid(number)) == number
    assert int_to_ulid(number) == spelled(number >> 80, number % 2**80)


@given(numbers, numbers)
@pytest.mark.row("M-026")
def test_ids_sort_like_their_numbers(one: int, two: int) -> None:
    assert (int_to_ulid(one) < int_to_ulid(two)) is (one < two)


@given(clock_steps, st.lists(st.sampled_from([0, 1, 2**80 - 1]), min_size=60, max_size=60))
@pytest.mark.row("M-026", "M-165")
def test_ids_increase_for_any_clock_and_randomness(clock: list[int], chance: list[int]) -> None:
    ticks, dice = iter(clock), iter(chance)
    source = UlidSource(now_ms=lambda: next(ticks) + 10**12, random_bits=lambda: next(dice))
    minted = [source.mint() for _ in clock]
    assert minted == sorted(set(minted))
    assert all(is_ulid(each) for each in minted)


@pytest.mark.row("M-026")
def test_ids_within_one_millisecond_are_incremented() -> None:
    source = UlidSource(now_ms=lambda: 5, random_bits=lambda: 7)
    assert [source.mint() for _ in range(3)] == [spelled(5, 7), spelled(5, 8), spelled(5, 9)]


@given(numbers.filter(lambda number: number < 2**128 - 200), clock_steps)
@pytest.mark.row("M-165")
def test_ids_increase_over_a_restart(last: int, clock: list[int]) -> None:
    ticks = iter(clock)
    source = UlidSource(now_ms=lambda: next(ticks), after=int_to_ulid(last))
    minted = [int_to_ulid(last), *(source.mint() for _ in clock)]
    assert minted == sorted(set(minted))


@pytest.mark.row("M-165")
def test_id_source_can_continue_after_given_id() -> None:
    source = UlidSource(now_ms=lambda: 5, random_bits=lambda: 7)
    source.follow(spelled(9, 1))
    assert source.mint() == spelled(9, 2)
    source.follow(spelled(3, 1))
    assert source.mint() == spelled(9, 3)


@pytest.mark.row("M-026", "M-165")
def test_threads_get_unique_increasing_ids() -> None:
    source = UlidSource()
    start = threading.Barrier(8)
    seen: list[list[str]] = [[] for _ in range(8)]

    def mint(mine: list[str]) -> None:
        start.wait()
        mine.extend(source.mint() for _ in range(500))

    threads = [threading.Thread(target=mint, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in seen)
    assert len(set(itertools.chain(*seen))) == 8 * 500


@pytest.mark.row("M-026", "M-040", "M-164", "M-167")
def test_new_ids_are_valid_and_increase() -> None:
    ulids = [new_ulid() for _ in range(300)]
    tools = [new_tool_use_id() for _ in range(300)]
    sessions = [new_session_id() for _ in range(300)]
    for minted in (ulids, tools, sessions):
        assert minted == sorted(set(minted))
    assert all(re.fullmatch(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", each) for each in ulids)
    assert all(re.fullmatch(r"tu_[0-9A-HJKMNP-TV-Z]{26}", each) for each in tools)
    assert all(re.fullmatch(r"sess_[0-9A-HJKMNP-TV-Z]{26}", each) for each in sessions)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "I" * 26,
        "0" * 25 + "U",
        "0" * 25 + "a",
        "0" * 26 + "\n",
    ],
)
@pytest.mark.row("M-026", "M-164")
def test_invalid_id_is_refused(text: str) -> None:
    assert not is_ulid(text)
    with pytest.raises(ValueError, match="not a ULID"):
        ulid_to_int(text)
    with pytest.raises(ValueError, match="not a ULID"):
        UlidSource(after=text)


@pytest.mark.parametrize("number", [-1, 2**128])
@pytest.mark.row("M-164")
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        int_to_ulid(number)


@pytest.mark.row("M-165")
def test_no_id_after_the_last_one() -> None:
    source = UlidSource(now_ms=lambda: 5, after="7" + "Z" * 25)
    for _ in range(2):
        with pytest.raises(ValueError, match="does not fit"):
            source.mint()


@pytest.mark.row("M-165")
def test_new_id_after_another_is_greater_and_not_adjacent() -> None:
    for other in (new_ulid(), int_to_ulid(1 << 126)):
        following = new_ulid_after(other)
        assert is_ulid(following)
        assert following > other
    far = int_to_ulid(1 << 126)
    assert ulid_to_int(new_ulid_after(far)) != ulid_to_int(far) + 1
