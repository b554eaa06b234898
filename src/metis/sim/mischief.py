"""Mischief: what becomes of answers when the simulator misbehaves."""

from msgspec.structs import replace

from metis.canonical.blocks import (
    InvalidInput,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.errors import ProviderError, ServerError
from metis.canonical.metadata import StopReason
from metis.sim.answer import Answer
from metis.sim.behave import Behave
from metis.sim.reply import Reply, cut_after
from metis.sim.seal import Seal
from metis.wire.call import CanonicalRequest, ToolChoice
from metis.wire.failure import class_of_status

REFUSED = Answer(
    content=(TextBlock("The metis simulator was asked to refuse, so it does."),),
    stop_reason=StopReason.REFUSAL,
)
"""The answer of a model that will not."""

_MALFORMED = '{"broken": tru'
_PAUSE_MS = 50.0


def failure(behave: Behave) -> ProviderError:
    """The error of a request that was to fail."""
    return class_of_status(behave.status)(
        f"the metis simulator was asked to answer with {behave.status}",
        status=behave.status,
        retry_after_s=behave.value,
    )


def broken() -> ProviderError:
    """The error inside of an answer that had begun well."""
    return ServerError("the metis simulator was asked to fail in the middle")


def must_call(request: CanonicalRequest) -> CanonicalRequest:
    """The same request, but a tool has to be called."""
    if request.options.tool_choice is not None or not request.tools:
        return request
    return replace(request, options=replace(request.options, tool_choice=ToolChoice("required")))


def malformed(answer: Answer) -> Answer:
    """The same with arguments that are no JSON."""
    invalid = InvalidInput(raw=_MALFORMED, error="malformed on purpose")
    content = (
        ToolUseBlock(one.id, one.name, {}, invalid) if isinstance(one, ToolUseBlock) else one
        for one in answer.content
    )
    return replace(answer, content=tuple(content))


def redacted(answer: Answer, seal: Seal) -> Answer:
    """The same with thoughts that only the simulator can read."""
    content = (
        RedactedThinkingBlock(seal.sign(one.text), issuer=one.issuer)
        if isinstance(one, ThinkingBlock)
        else one
        for one in answer.content
    )
    return replace(answer, content=tuple(content))


def slowed(reply: Reply, behave: Behave) -> Reply:
    """The same with a pause after each piece."""
    return replace(reply, pause_s=(behave.value or _PAUSE_MS) / 1000)


def cut(reply: Reply, behave: Behave) -> Reply:
    """The same up to a number of bytes, half of it if none is told; then the line is dead."""
    size = len(reply.body) // 2 if behave.value is None else int(behave.value)
    return replace(reply, pieces=tuple(cut_after(reply.pieces, size)), is_cut=True)
