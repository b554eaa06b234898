"""Golden files: the canonical form of what was played, one answer a line."""

import re

from msgspec.structs import replace

from build import tool_id, ulid
from metis.canonical import Message, decode, encode
from scenario import Played

_TOOL_IDS = re.compile(rb"tu_[0-9A-Z]{26}")


def golden(played: Played) -> bytes:
    """The answers in the canonical form, under ids that are the same every time."""
    answers = [replace(answer, id=ulid(n)) for n, answer in enumerate(played.answers)]
    return b"".join(_line(answer) + b"\n" for answer in answers)


def _line(answer: Message) -> bytes:
    line = encode(answer)
    if answer.metadata.response_id is not None:
        return line
    # An answer without an id of its own gives its calls other ids each time it is read.
    known = sorted(set(_TOOL_IDS.findall(line)), key=line.index)
    for number, found in enumerate(known):
        line = line.replace(found, tool_id(number).encode())
    return encode(decode(line))
