"""Parts that are written often, as Structs under the provider's names: texts, calls and results."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.projection.signatures import ON_NEXT

Signature = str | UnsetType


class TextPart(Struct, gc=False, rename="camel"):
    """A text."""

    text: str
    thought_signature: Signature = UNSET


class Call(Struct, gc=False):
    """What is called, and with what; an id is only told to a provider that gave it (T11)."""

    args: Mapping[str, Any]
    id: str | UnsetType
    name: str


class CallPart(Struct, gc=False, rename="camel"):
    """A call of a tool."""

    function_call: Call
    thought_signature: Signature = UNSET


class Output(Struct, gc=False):
    """What a tool gave."""

    output: str


class Answer(Struct, gc=False):
    """The result of a call."""

    id: str | UnsetType
    name: str
    response: Output


class ResultPart(Struct, gc=False, rename="camel"):
    """The answer to a call."""

    function_response: Answer


def write_common(content: Sequence[ContentBlock], ids: Mapping[str, str]) -> list[Any] | None:
    """The parts for texts and calls, signed or not; None if a block is of another kind."""
    parts: list[Any] = []
    signature: Signature = UNSET
    for block in content:
        if type(block) is TextBlock:
            parts.append(TextPart(block.text, signature))
        elif type(block) is ToolUseBlock:
            call = Call(block.input, ids.get(block.id, UNSET), block.name)
            parts.append(CallPart(call, signature))
        elif type(block) is ThinkingBlock and block.format == ON_NEXT and block.signature:
            signature = block.signature
            continue
        else:
            return None
        signature = UNSET
    if signature is not UNSET:
        parts.append(TextPart("", signature))
    return parts


def write_result(
    content: Sequence[ContentBlock], ids: Mapping[str, str], names: Mapping[str, str]
) -> ResultPart | None:
    """The part for a result of one text; None if it holds anything else."""
    result = content[0] if len(content) == 1 else None
    if type(result) is not ToolResultBlock or result.is_error or len(result.content) != 1:
        return None
    only, ours = result.content[0], result.tool_use_id
    if type(only) is not TextBlock:
        return None
    return ResultPart(Answer(ids.get(ours, UNSET), names.get(ours, ""), Output(only.text)))
