"""Faults that a caller can request: error statuses, cut streams, malformed arguments and others."""

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import (
    InvalidInput,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.errors import InvalidValueError, ProviderError, ServerError
from metis.canonical.metadata import StopReason
from metis.sim.endpoints import HttpReply, truncate_chunks
from metis.sim.model_output import ModelOutput
from metis.sim.signing import ThinkingSigner
from metis.wire.call import CanonicalRequest, ToolChoice
from metis.wire.errors import class_of_status

FaultKind = Literal["fail", "cut", "error", "malformed", "slow", "empty", "refuse", "redacted"]
"""What goes wrong: a status, a stream that breaks off, an error in a 200 stream, …"""

_WORDS: Mapping[str, FaultKind] = {
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


class Fault(Struct, frozen=True, kw_only=True):
    """One way to misbehave."""

    kind: FaultKind
    status: int = _DEFAULT_STATUS
    """For `fail`: the status of the response."""
    value: float | None = None
    """The wait in seconds for a 429 or 529, the bytes before a cut, the milliseconds of a pause."""
    times: int | None = None
    """How often the same request meets this; None is always."""


def parse_fault(words: str) -> Fault:
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
        return Fault(kind="fail", status=int(found[1]), value=value, times=times)
    return Fault(kind=_WORDS[found[1]], value=value, times=times)


def fault_in_prompt(text: str) -> Fault | None:
    """The misbehaviour that a prompt asks for behind `sim:`, if it does."""
    found = _ASKED.search(text)
    if found is None:
        return None
    try:
        return parse_fault(found[1])
    except InvalidValueError:
        return None  # a prompt may speak of simulators without meaning this one


REFUSAL = ModelOutput(
    content=(TextBlock("The metis simulator was asked to refuse, so it does."),),
    stop_reason=StopReason.REFUSAL,
)
"""The answer of a model that will not."""

_MALFORMED = '{"broken": tru'
_PAUSE_MS = 50.0


def status_error(behave: Fault) -> ProviderError:
    """The error of a request that was to fail."""
    return class_of_status(behave.status)(
        f"the metis simulator was asked to answer with {behave.status}",
        status=behave.status,
        retry_after_s=behave.value,
    )


def mid_stream_error() -> ProviderError:
    """The error inside of an answer that had begun well."""
    return ServerError("the metis simulator was asked to fail in the middle")


def force_tool_call(request: CanonicalRequest) -> CanonicalRequest:
    """The same request, but a tool has to be called."""
    if request.options.tool_choice is not None or not request.tools:
        return request
    return replace(request, options=replace(request.options, tool_choice=ToolChoice("required")))


def with_malformed_arguments(answer: ModelOutput) -> ModelOutput:
    """The same with arguments that are no JSON."""
    invalid = InvalidInput(raw=_MALFORMED, error="malformed on purpose")
    content = (
        ToolUseBlock(one.id, one.name, {}, invalid) if isinstance(one, ToolUseBlock) else one
        for one in answer.content
    )
    return replace(answer, content=tuple(content))


def with_redacted_thinking(answer: ModelOutput, seal: ThinkingSigner) -> ModelOutput:
    """The same with thoughts that only the simulator can read."""
    content = (
        RedactedThinkingBlock(seal.sign(one.text), issuer=one.issuer)
        if isinstance(one, ThinkingBlock)
        else one
        for one in answer.content
    )
    return replace(answer, content=tuple(content))


def with_pauses(reply: HttpReply, behave: Fault) -> HttpReply:
    """The same with a pause after each piece."""
    return replace(reply, pause_s=(behave.value or _PAUSE_MS) / 1000)


def cut_off(reply: HttpReply, behave: Fault) -> HttpReply:
    """The same up to a number of bytes, half of it if none is told; then the line is dead."""
    size = len(reply.body) // 2 if behave.value is None else int(behave.value)
    return replace(reply, chunks=tuple(truncate_chunks(reply.chunks, size)), is_cut=True)
