"""One test for many similar items: it checks all of them and reports every one that fails.

An item of its own in pytest costs about a millisecond in each worker, for its collection and its
report, which is more than most of these checks take.
"""

from collections.abc import Callable, Iterable
from itertools import product
from traceback import extract_tb, format_exception_only
from typing import Any

import pytest

MAX_SHOWN = 50
"""How many failures are shown in full; the names of the others are listed."""


def check_all(check: Callable[..., None], items: Iterable[tuple[Any, ...]]) -> None:
    """Call a check with the values of each item, and fail if it fails for any of them."""
    failures: list[tuple[str, str]] = []
    count = 0
    for count, item in enumerate(items, 1):  # noqa: B007 - the number of items, at the end
        try:
            check(*item)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are checked too
            line = extract_tb(error.__traceback__)[-1].lineno
            text = "".join(format_exception_only(error)).strip()
            failures.append((", ".join(map(str, item)), f"line {line}: {text}"))
    assert count, "there is nothing to check"
    if failures:
        shown = [f"{item}\n{text}" for item, text in failures[:MAX_SHOWN]]
        shown += [item for item, _ in failures[MAX_SHOWN:]]
        head = f"{len(failures)} of {count} fail"
        pytest.fail("\n\n".join([head, *shown]), pytrace=False)


def for_every(*groups: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make one test of a check that gets a value of each group: of all combinations."""

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        return as_test(check, lambda: check_all(check, product(*groups)))

    return decorate


def as_test(check: Callable[..., None], run: Callable[..., None]) -> Callable[..., None]:
    """Return a function as a test with the name, docstring and marks of a check."""
    run.__module__, run.__name__, run.__qualname__ = (
        check.__module__,
        check.__name__,
        check.__name__,
    )
    run.__doc__ = check.__doc__
    run.__dict__.update(check.__dict__)  # the marks
    return run
