"""Golden files: the canonical form of replayed responses, one per line."""

import re

from msgspec.structs import replace

from build import tool_id, ulid
from metis.canonical import Message, decode, encode
from scenario import Played

_TOOL_IDS = re.compile(rb"tu_[0-9A-Z]{26}")


def golden(played: Played) -> bytes:
    """Return the responses in canonical form, with ids that are equal in every run."""
    answers = [replace(answer, id=ulid(n)) for n, answer in enumerate(played.answers)]
    return b"".join(_line(answer) + b"\n" for answer in answers)


def _line(answer: Message) -> bytes:
    line = encode(answer)
    if answer.metadata.response_id is not None:
        return line
    # The tool calls of a response without an id get new ids each time it is decoded.
    known = sorted(set(_TOOL_IDS.findall(line)), key=line.index)
    for number, found in enumerate(known):
        line = line.replace(found, tool_id(number).encode())
    return encode(decode(line))
