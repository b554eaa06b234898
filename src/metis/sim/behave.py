"""Behave: ways to misbehave, and the words that ask for them."""

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from metis.canonical.errors import InvalidValueError

Manner = Literal["fail", "cut", "error", "malformed", "slow", "empty", "refuse", "redacted"]
"""What goes wrong: a status, a stream that breaks off, an error in a 200 stream, …"""

_WORDS: Mapping[str, Manner] = {
    "cut": "cut",
    "error": "error",
    "malformed": "malformed",
    "slow": "slow",
    "empty": "empty",
    "refuse": "refuse",
    "redacted": "redacted",
}
_ASKED = re.compile(r"\bsim:\s*([a-z0-9. ]+)", re.IGNORECASE)
_DIRECTION = re.compile(r"(\d{3}|[a-z]+)(?:\s+(\d+(?:\.\d+)?))?(?:\s+x(\d+))?")
_DEFAULT_STATUS = 500


class Behave(Struct, frozen=True, kw_only=True):
    """One way to misbehave."""

    manner: Manner
    status: int = _DEFAULT_STATUS
    """For `fail`: the status of the response."""
    value: float | None = None
    """The wait in seconds for a 429 or 529, the bytes before a cut, the milliseconds of a pause."""
    times: int | None = None
    """How often the same request meets this; None is always."""


def read_behave(words: str) -> Behave:
    """The misbehaviour that some words name: `429 2`, `529 x1`, `cut 100`, `slow 20` and others.

    >>> read_behave("429 2 x1")
    Behave(manner='fail', status=429, value=2.0, times=1)
    """
    found = _DIRECTION.match(words.strip().lower())
    if found is None or not (found[1].isdigit() or found[1] in _WORDS):
        known = ", ".join(("a status such as 429", *_WORDS))
        raise InvalidValueError(f"{words[:60]!r} is no way to misbehave; there are {known}")
    value = None if found[2] is None else float(found[2])
    times = None if found[3] is None else int(found[3])
    if found[1].isdigit():
        return Behave(manner="fail", status=int(found[1]), value=value, times=times)
    return Behave(manner=_WORDS[found[1]], value=value, times=times)


def asked_behave(text: str) -> Behave | None:
    """The misbehaviour that a prompt asks for behind `sim:`, if it does."""
    found = _ASKED.search(text)
    if found is None:
        return None
    try:
        return read_behave(found[1])
    except InvalidValueError:
        return None  # a prompt may speak of simulators without meaning this one
