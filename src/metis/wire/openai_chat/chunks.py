"""Chunks of a stream, typed for the road that most of them take.

A `PlainChunk` holds one piece of text, of clear reasoning or of the arguments of a call that is
known already, and nothing else that counts. Whatever is not so simple does not fit the type, and
is read as plain JSON instead.
"""

from typing import Literal

import msgspec
from msgspec import Struct


class _Function(Struct, gc=False, forbid_unknown_fields=True):
    arguments: str
    name: None = None


class _Call(Struct, gc=False, forbid_unknown_fields=True):
    function: _Function
    index: int
    id: None = None
    type: str | None = None


class PlainDelta(Struct, gc=False, forbid_unknown_fields=True):
    """What a plain chunk adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[_Call] | None = None
    role: str | None = None
    refusal: None = None
    channel: str | None = None
    token_id: int | None = None


class _Choice(Struct, gc=False):
    delta: PlainDelta
    index: Literal[0] = 0
    finish_reason: None = None
    logprobs: None = None
    error: None = None


class PlainChunk(Struct, gc=False):
    """One chunk with one choice that goes on with what it had begun."""

    choices: tuple[_Choice]
    usage: None = None
    error: None = None


read_plain = msgspec.json.Decoder(PlainChunk).decode
"""The chunk in some bytes; raises what msgspec raises if it is not plain."""
