"""Golden files: the canonical form of what was played, one answer a line."""

from msgspec.structs import replace

from build import ulid
from metis.canonical import encode
from scenario import Played


def golden(played: Played) -> bytes:
    """The answers in the canonical form, under ids that are the same every time."""
    answers = [replace(answer, id=ulid(n)) for n, answer in enumerate(played.answers)]
    return b"".join(encode(answer) + b"\n" for answer in answers)
