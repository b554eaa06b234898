"""Fast paths of Gemini."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.projection.blocks import SIGNATURE_ON_NEXT


class WireTextPiece(Struct, gc=False, forbid_unknown_fields=True):
    """A piece of text."""

    text: str


class WireTextContent(Struct, gc=False, forbid_unknown_fields=True):
    """What the model says in a chunk."""

    parts: tuple[WireTextPiece]
    role: Literal["model"]


class WireTextCandidate(Struct, gc=False, forbid_unknown_fields=True):
    """The one answer of a chunk."""

    content: WireTextContent
    index: Literal[0] | UnsetType = UNSET


class WireTextChunk(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    """A chunk of a stream that holds nothing but text."""

    candidates: tuple[WireTextCandidate]
    model_version: str
    response_id: str
    usage_metadata: Raw = Raw(b"")


Signature = str | UnsetType


class TextPart(Struct, gc=False, rename="camel"):
    """A text."""

    text: str
    thought_signature: Signature = UNSET


class FunctionCall(Struct, gc=False):
    """What is called, and with what; an id is only told to a provider that gave it (T11)."""

    args: Mapping[str, Any]
    id: str | UnsetType
    name: str


class CallPart(Struct, gc=False, rename="camel"):
    """A call of a tool."""

    function_call: FunctionCall
    thought_signature: Signature = UNSET


class ResponseOutput(Struct, gc=False):
    """What a tool gave."""

    output: str


class FunctionResponse(Struct, gc=False):
    """The result of a call."""

    id: str | UnsetType
    name: str
    response: ResponseOutput


class ResultPart(Struct, gc=False, rename="camel"):
    """The answer to a call."""

    function_response: FunctionResponse


def encode_common_parts(
    content: Sequence[ContentBlock], ids: Mapping[str, str]
) -> list[Any] | None:
    """The parts for texts and calls, signed or not; None if a block is of another kind."""
    parts: list[Any] = []
    signature: Signature = UNSET
    for block in content:
        if type(block) is TextBlock:
            parts.append(TextPart(block.text, signature))
        elif type(block) is ToolUseBlock:
            call = FunctionCall(block.input, ids.get(block.id, UNSET), block.name)
            parts.append(CallPart(call, signature))
        elif type(block) is ThinkingBlock and block.format == SIGNATURE_ON_NEXT and block.signature:
            signature = block.signature
            continue
        else:
            return None
        signature = UNSET
    if signature is not UNSET:
        parts.append(TextPart("", signature))
    return parts


def encode_text_result(
    content: Sequence[ContentBlock], ids: Mapping[str, str], names: Mapping[str, str]
) -> ResultPart | None:
    """The part for a result of one text; None if it holds anything else."""
    result = content[0] if len(content) == 1 else None
    if type(result) is not ToolResultBlock or result.is_error or len(result.content) != 1:
        return None
    only, ours = result.content[0], result.tool_use_id
    if type(only) is not TextBlock:
        return None
    return ResultPart(
        FunctionResponse(ids.get(ours, UNSET), names.get(ours, ""), ResponseOutput(only.text))
    )
