"""Signatures of calls: some targets want one on the calls of an answer, whoever made them."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from metis.canonical.blocks import ThinkingBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.projection.ledger import Ledger
from metis.projection.target import Target, is_native

ON_NEXT = "signature_on_next"
"""The format of a thought without words: the signature of the block that follows it."""


def sign_calls(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The messages, with the target's own placeholder where an answer has no signature (T56, T57).

    One signature speaks for all calls of an answer, so that only the first call gets one.
    """
    target = ledger.target
    return [
        message
        if (first := unsigned_call(message, target)) is None
        else sign_call(message, first, ledger)
        for message in messages
    ]


def unsigned_call(message: Message, target: Target) -> int | None:
    """Where the first call of an answer stands that wants a signature and has none."""
    if not target.call_signature or message.role is not Role.ASSISTANT:
        return None
    first: int | None = None
    for index, block in enumerate(message.content):
        if type(block) is ThinkingBlock and block.signature:
            return None
        if first is None and type(block) is ToolUseBlock:
            first = index
    return None if is_native(message, target) else first


def sign_call(message: Message, first: int, ledger: Ledger) -> Message:
    """The message with the target's placeholder before its first call."""
    target = ledger.target
    reason = "a call of another model; the target's placeholder stands for its signature"
    ledger.synthesised(message, "thinking", f"$.content[{first}]", reason)
    seal = _placeholder(target.call_signature, target.adapter)
    content = (*message.content[:first], seal, *message.content[first:])
    return replace(message, content=content)


@lru_cache(maxsize=100)
def _placeholder(signature: str, issuer: str) -> ThinkingBlock:
    return ThinkingBlock("", signature, format=ON_NEXT, issuer=issuer)
