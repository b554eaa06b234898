"""Reasoning of Chat Completions: one thing under three names, two of which may say the same (T52).

`reasoning_content` and `reasoning` hold clear text. `reasoning_details` is OpenRouter's list of
typed parts, some of them signed or encrypted; it must come back as it was (T55).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metis.canonical.blocks import ContentBlock, RedactedThinkingBlock, ThinkingBlock
from metis.wire.openai_chat.parts import as_text
from metis.wire.shape import Wire, maybe_list, maybe_object

CLEAR = ("reasoning_content", "reasoning")
"""The names under which hosts send clear text."""
DETAILS = "reasoning_details"
"""The name under which OpenRouter sends typed parts."""

Thought = ThinkingBlock | RedactedThinkingBlock


def decode_thoughts(wire: Wire, issuer: str) -> tuple[list[Thought], dict[str, Any]]:
    """The thoughts of a message, and under which names they were told.

    A name stands for the clear text of the thoughts (true), or for a value of its own.
    """
    names: dict[str, Any] = {}
    details = maybe_list(wire.get(DETAILS))
    thoughts = decode_details(details, issuer)
    if thoughts:
        names[DETAILS] = details
    for name in CLEAR:
        text = wire.get(name)
        if not isinstance(text, str) or not text:
            continue
        if not clear_text(thoughts):
            thoughts.insert(0, ThinkingBlock(text, issuer=issuer))
        names[name] = True if clear_text(thoughts) == text else text
    return thoughts, names


def decode_details(details: Sequence[Any], issuer: str) -> list[Thought]:
    """The thoughts that a list of typed parts holds."""
    found = (_decode_detail(maybe_object(detail), issuer) for detail in details)
    return [thought for thought in found if thought is not None]


def _decode_detail(wire: Wire, issuer: str) -> Thought | None:
    own, kind = as_text(wire.get("id")), as_text(wire.get("format"))
    data = wire.get("data")
    if isinstance(data, str):
        return RedactedThinkingBlock(data, own, kind, issuer)
    text, signature = wire.get("text", wire.get("summary")), wire.get("signature")
    if isinstance(text, str) or isinstance(signature, str):
        return ThinkingBlock(as_text(text) or "", as_text(signature), own, kind, issuer)
    return None


def encode_thoughts(content: Sequence[ContentBlock], names: Mapping[str, Any]) -> Wire:
    """The keys that say the thoughts of a message again; none if they are not as they were."""
    thoughts = [block for block in content if isinstance(block, Thought)]
    if not names or not thoughts:
        return {}
    told = [_seal(thought) for thought in decode_details(names.get(DETAILS) or (), "")]
    if not set(told) <= {_seal(thought) for thought in thoughts}:
        return {}
    text = clear_text(thoughts)
    return {name: text if value is True else value for name, value in names.items()}


def clear_text(blocks: Sequence[ContentBlock]) -> str:
    """What can be read of the thoughts among these blocks."""
    return "".join(block.text for block in blocks if isinstance(block, ThinkingBlock))


def _seal(thought: Thought) -> tuple[str, str | None]:
    if isinstance(thought, ThinkingBlock):
        return thought.text, thought.signature
    return thought.data, None
