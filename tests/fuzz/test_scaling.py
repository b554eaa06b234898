"""The work for a hostile input grows with its length, not with the square of it.

Work is counted as lines of Python that run, which does not depend on the machine. Loops in C are
not seen by that: the slow test compares CPU times, as ratios with a wide margin.
"""

import logging
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from fuzz.hostile_inputs import CASES

BASE = 25
MOST = 12
"""The allowed growth of work for eight times the input; quadratic work grows by 64."""
MOST_DOUBLED = 2.8
"""The allowed growth for twice the input; quadratic work grows by 4."""
ROOM = 3_000
TIMED_BASE = 1_000
MOST_TIME = 24
LEAST_SECONDS = 0.3
"""Work below this amount at eight times the size is not compared."""
QUICK = [name for number, name in enumerate(CASES) if number % 8 == 0 or " stream: " in name]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def count_lines(work: Callable[[], object]) -> int:
    """Return how many lines of Python some work runs."""
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def check_lines(name: str, base: int) -> None:
    case = CASES[name]
    case(base)()  # caches are filled before counting
    counts = [count_lines(case(base * factor)) for factor in (1, 2, 4, 8)]
    # Small inputs may be handled in another way than large ones: then the last step counts.
    is_linear = counts[3] <= MOST * counts[0] + ROOM or counts[3] <= MOST_DOUBLED * counts[2] + ROOM
    assert is_linear, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in QUICK if not name.startswith(("chat", "diff"))])
def test_line_count_grows_linearly(name: str) -> None:
    check_lines(name, BASE)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_line_count_grows_linearly_for_every_parser_and_renderer(name: str) -> None:
    check_lines(name, 160)


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# Times depend on the load of the machine, so that this runs with `make fuzz` and not in CI.
@pytest.mark.fuzz
@pytest.mark.parametrize("name", CASES)
def test_cpu_time_grows_linearly(name: str) -> None:
    case = CASES[name]
    case(TIMED_BASE)()
    long = cpu_seconds(case(8 * TIMED_BASE))
    if long < LEAST_SECONDS:
        return
    short = min(cpu_seconds(case(TIMED_BASE)) for _ in range(3))
    assert long <= MOST_TIME * short, (short, long)
