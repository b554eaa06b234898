"""Ids of gpt2099's turns: SCRU128, 128 bits as 25 letters and digits that sort by time."""

import re
from datetime import UTC, datetime, timedelta

from metis.canonical.ids import is_ulid, ulid_to_int

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LENGTH = 25
_TURN_ID = re.compile(r"[0-9A-Za-z]{25}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANDOM_BITS = 80


def is_turn_id(text: str) -> bool:
    """Whether a text has the form of a turn's id; no bookmark may."""
    return _TURN_ID.fullmatch(text) is not None


def turn_id(ulid: str) -> str:
    """The id of a turn for one of our messages: the same 128 bits, so that the order stays."""
    if not is_ulid(ulid):
        return ulid
    number, digits = ulid_to_int(ulid), ""
    for _ in range(_LENGTH):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


def turn_time(text: str) -> datetime | None:
    """When a turn was made, as its id says; None if it says nothing that can be."""
    if not is_turn_id(text):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=int(text, 36) >> _RANDOM_BITS)
    except OverflowError:
        return None
