"""What a message says in Chat Completions only: keys that the canonical form has no place for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.wire.openai_chat.calls import encode_call
from metis.wire.openai_chat.parts import PROTOCOL, decode_part, encode_part
from metis.wire.shape import Wire, maybe_object
from metis.wire.spelling import says, spelling_of, unsaid

_TOLD = frozenset({"role", "content", "tool_calls", "function_call", "tool_call_id", "annotations"})
"""Keys that blocks speak for, however they are spelled."""
_CALL = {"function", "id", "type"}
_FUNCTION = {"arguments", "name"}


def unsaid_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    spelling = spelling_of(message, PROTOCOL)
    whole = maybe_object(spelling.get("whole"))
    keys = maybe_object(whole.get("wire")) or maybe_object(spelling.get("keys"))
    for key, value in keys.items():
        if key not in _TOLD and says(key, value):
            yield f"$.{key}"
    yield from _unsaid_parts(message, maybe_object(spelling.get("blocks")))
    calls = maybe_object(spelling.get("calls"))
    for index, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock) and block.id in calls and not _is_usual(calls[block.id]):
            yield from unsaid(calls[block.id], encode_call(block, str), f"$.content[{index}]")


def _is_usual(call: Wire) -> bool:
    """Whether a call of a function says nothing but what our block does."""
    return call.keys() == _CALL and maybe_object(call["function"]).keys() == _FUNCTION


def _unsaid_parts(message: Message, odd: Mapping[str, Any]) -> Iterator[str]:
    for part in odd.values():
        block = decode_part(part)
        path = _path_of(block, message.content, "$.content")
        if path is not None:
            yield from unsaid(part, encode_part(block), path)


def _path_of(block: ContentBlock, content: Sequence[ContentBlock], path: str) -> str | None:
    """Where a block stands in a message, or in the result that it holds."""
    for index, each in enumerate(content):
        if each == block:
            return f"{path}[{index}]"
        if isinstance(each, ToolResultBlock):
            inner = _path_of(block, each.content, f"{path}[{index}].content")
            if inner is not None:
                return inner
    return None
