"""Faults that a caller can request: error statuses, cut streams, malformed arguments and others."""

import re
from typing import Literal, get_args

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
from metis.sim.endpoints import HttpReply
from metis.sim.model_output import ModelOutput
from metis.sim.signing import ThinkingSigner
from metis.wire.call import CanonicalRequest, ToolChoice
from metis.wire.errors import class_of_status

FaultKind = Literal["fail", "cut", "error", "malformed", "slow", "empty", "refuse", "redacted"]
"""The kinds of faults: `fail` is an error status, `error` an error in a 200 response, …"""

REFUSAL = ModelOutput(
    content=(TextBlock("The metis simulator was asked to refuse, so it does."),),
    stop_reason=StopReason.REFUSAL,
)
"""The output of a model that refuses."""

_NAMED: dict[str, FaultKind] = {kind: kind for kind in get_args(FaultKind) if kind != "fail"}
_IN_PROMPT = re.compile(r"\bsim:\s*([a-z0-9. ]+)", re.IGNORECASE)
_FAULT = re.compile(r"(\d{3}|[a-z]+)(?:\s+(\d+(?:\.\d+)?))?(?:\s+x(\d+))?")
_DEFAULT_STATUS = 500
_DEFAULT_PAUSE_MS = 50.0
_MALFORMED_JSON = '{"broken": tru'


class Fault(Struct, frozen=True, kw_only=True):
    """One fault."""

    kind: FaultKind
    status: int = _DEFAULT_STATUS
    """For `fail`: the HTTP status."""
    value: float | None = None
    """The retry-after seconds of a status, the bytes before a cut, or the pause in milliseconds."""
    times: int | None = None
    """How many equal requests get the fault; None is all of them."""


def parse_fault(text: str) -> Fault:
    """Parse a fault: `429 2`, `529 x1`, `cut 100`, `slow 20` and others.

    >>> parse_fault("429 2 x1")
    Fault(kind='fail', status=429, value=2.0, times=1)
    """
    match = _FAULT.match(text.strip().lower())
    if match is None or not (match[1].isdigit() or match[1] in _NAMED):
        kinds = ", ".join(("a status such as 429", *_NAMED))
        raise InvalidValueError(f"unknown fault {text[:60]!r}; there are {kinds}")
    value = None if match[2] is None else float(match[2])
    times = None if match[3] is None else int(match[3])
    if match[1].isdigit():
        return Fault(kind="fail", status=int(match[1]), value=value, times=times)
    return Fault(kind=_NAMED[match[1]], value=value, times=times)


def fault_in_prompt(text: str) -> Fault | None:
    """Return the fault that a prompt requests after `sim:`, or None."""
    match = _IN_PROMPT.search(text)
    try:
        return parse_fault(match[1]) if match else None
    except InvalidValueError:
        return None  # a prompt may be about simulators without addressing this one


def status_error(fault: Fault) -> ProviderError:
    """Return the error of a `fail` fault."""
    return class_of_status(fault.status)(
        f"the metis simulator was asked to reply with status {fault.status}",
        status=fault.status,
        retry_after_s=fault.value,
    )


def mid_stream_error() -> ProviderError:
    """Return the error that ends a response after its beginning was sent."""
    return ServerError("the metis simulator was asked to fail in the middle")


def force_tool_call(request: CanonicalRequest) -> CanonicalRequest:
    """Return a request that requires a tool call, if it has tools and states no choice.

    Malformed arguments need a call.
    """
    if request.options.tool_choice is not None or not request.tools:
        return request
    return replace(request, options=replace(request.options, tool_choice=ToolChoice("required")))


def with_malformed_arguments(output: ModelOutput) -> ModelOutput:
    """Replace the arguments of all tool calls by a text that is not JSON."""
    invalid = InvalidInput(raw=_MALFORMED_JSON, error="malformed on purpose")
    content = [
        replace(block, input={}, invalid=invalid) if isinstance(block, ToolUseBlock) else block
        for block in output.content
    ]
    return replace(output, content=tuple(content))


def with_redacted_thinking(output: ModelOutput, signer: ThinkingSigner) -> ModelOutput:
    """Replace thinking by redacted blocks, which only the simulator can read."""
    content = [
        RedactedThinkingBlock(signer.sign(block.text), issuer=block.issuer)
        if isinstance(block, ThinkingBlock)
        else block
        for block in output.content
    ]
    return replace(output, content=tuple(content))


def with_pauses(reply: HttpReply, fault: Fault) -> HttpReply:
    """Pause after each chunk."""
    return replace(reply, pause_s=(fault.value or _DEFAULT_PAUSE_MS) / 1000)


def cut_off(reply: HttpReply, fault: Fault) -> HttpReply:
    """Close the connection after a number of bytes, by default after half of the body."""
    # By default in the middle, so that a stream has begun when it is interrupted (T131).
    size = len(reply.body) // 2 if fault.value is None else int(fault.value)
    return replace(reply, chunks=(reply.body[:size],), is_cut=True)
