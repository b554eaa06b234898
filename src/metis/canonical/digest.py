"""Digests of messages and content, the same in every process and after every save."""

import hashlib
from collections.abc import Iterable
from typing import Any, Self

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock, comparable_blocks
from metis.canonical.value import Value, comparable_bytes


def digest(value: Value) -> str:
    """Return the SHA-256, in hex, of the bytes that equality compares."""
    return hashlib.sha256(comparable_bytes(value)).hexdigest()


def content_digest(role: str, content: Iterable[ContentBlock]) -> str:
    """Return the SHA-256, in hex, of role and blocks, with tool ids replaced by their ordinals."""
    # Tool ids differ between two runs of the same conversation; their order does not.
    ordinals: dict[str, str] = {}
    blocks = tuple(_with_ordinals(block, ordinals) for block in content)
    return hashlib.sha256(comparable_bytes(_Content(content=blocks, role=role))).hexdigest()


class _Content(Value, frozen=True, kw_only=True):
    """The part of a message that a content digest covers."""

    content: tuple[Any, ...]
    role: str

    def comparable(self) -> Self:
        """Return the content with opaque JSON in normal form, for comparing."""
        return replace(self, content=comparable_blocks(self.content))


def _with_ordinals(block: ContentBlock, ordinals: dict[str, str]) -> ContentBlock:
    match block:
        case ToolUseBlock():
            return replace(block, id=_ordinal(block.id, ordinals))
        case ToolResultBlock():
            call = _ordinal(block.tool_use_id, ordinals)
            content = tuple(_with_ordinals(inner, ordinals) for inner in block.content)
            return replace(block, tool_use_id=call, content=content)
        case _:
            return block


def _ordinal(tool_use_id: str, ordinals: dict[str, str]) -> str:
    return ordinals.setdefault(tool_use_id, f"#{len(ordinals)}")
