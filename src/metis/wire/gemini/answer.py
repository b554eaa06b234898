"""Answers of common parts, read in one pass: texts, thoughts and calls, signed or not."""

from typing import NamedTuple

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.value import raw_constructor
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.wire.json_access import Wire
from metis.wire.tool_ids import canonical_tool_id

_KEYS_OF_CALL, _KEYS_WITH_ID = 2, 3
_KEYS_WITH_SIGNATURE = 2
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_thinking = raw_constructor(ThinkingBlock)


class Answer(NamedTuple):
    """What the parts of an answer say."""

    content: tuple[ContentBlock, ...]
    ids: dict[str, str]
    """The provider's ids of the calls by ours, where it gave some."""
    has_calls: bool


def read_common(parts: list[Wire], scope: str, issuer: str) -> Answer | None:
    """What common parts say, each in the form that we write ourselves; None if one is not."""
    try:
        return _read(parts, scope, issuer)
    except (AttributeError, TypeError):  # a part is no object
        return None


def _read(parts: list[Wire], scope: str, issuer: str) -> Answer | None:
    blocks: list[ContentBlock] = []
    ids: dict[str, str] = {}
    counts: dict[str, int] = {}
    for part in parts:
        text, size = part.get("text"), len(part)
        signature = None
        if size == _KEYS_WITH_SIGNATURE:
            signature = part.get("thoughtSignature")
            if signature is None and part.get("thought") is True and type(text) is str:
                blocks.append(_make_thinking(text, None, None, None, issuer))
                continue
            if type(signature) is not str or not signature or text == "":
                return None
            blocks.append(_make_thinking("", signature, None, SIGNATURE_ON_NEXT, issuer))
        elif size != 1:
            return None
        if type(text) is str:
            blocks.append(_make_text(text))
            continue
        call = part.get("functionCall")
        name, arguments, theirs = call.get("name"), call.get("args"), call.get("id")  # pyright: ignore[reportOptionalMemberAccess] - what is no object is an error, and read again
        if type(name) is not str or type(arguments) is not dict or type(theirs or "") is not str:
            return None
        if len(call) != (_KEYS_WITH_ID if theirs else _KEYS_OF_CALL):  # pyright: ignore[reportArgumentType] - it is one
            return None
        key = theirs or f"\0{name}"
        count = counts.get(key, 0)
        counts[key] = count + 1
        ours = canonical_tool_id(scope, key, count)
        if theirs:
            ids[ours] = theirs
        blocks.append(_make_call(ours, name, arguments))
    return Answer(tuple(blocks), ids, bool(counts))
