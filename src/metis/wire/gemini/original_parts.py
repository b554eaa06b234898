"""Original parts of Gemini: the stored data that reproduces the parts of a message, even if edited.

A signature must be sent back on the part that carried it. If that part is a call, the order of the
blocks identifies it. For other blocks a checksum (mark) is stored, by which the block is found in a
message that was edited since.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast
from zlib import crc32

import msgspec
from msgspec import Raw

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.wire.gemini.key_names import PROTOCOL, style_of, with_style
from metis.wire.gemini.parts import PartDecoder, PartEncoder
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.original_form import aligned, write_sorted

_read = msgspec.json.Decoder().decode


def original_form_of_parts(parts: list[Any], encoded: list[Any]) -> dict[str, Any]:
    """Return the original form that reproduces `parts`; empty if `encoded` equals them."""
    if _are_equal(encoded, parts):
        return {}
    style = style_of(parts)
    if style and _are_equal(with_style(encoded, style), parts):
        return {"style": style}
    return {"parts": parts}


def signature_carriers(content: Sequence[ContentBlock]) -> list[int]:
    """Return the marks of blocks other than calls that carry signatures, in order."""
    marks = [
        0 if type(carrier) is ToolUseBlock else _mark(carrier)
        for block, carrier in pairwise(content)
        if _is_on_next(block)
    ]
    return [mark for mark in marks if mark]


def with_signatures_at_carriers(
    content: tuple[ContentBlock, ...], carriers: Sequence[int]
) -> tuple[ContentBlock, ...]:
    """Return content with each signature directly before its carrier.

    An edit may have inserted blocks between a signature and its carrier.
    """
    marks = {*carriers}
    blocks: list[ContentBlock] = []
    # A signature whose carrier has not been reached.
    moved: ContentBlock | None = None
    for block, following in zip(content, (*content[1:], None), strict=True):
        if _is_on_next(block):
            is_before_call = type(following) is ToolUseBlock
            if following is not None and not is_before_call and _mark(following) not in marks:
                blocks += () if moved is None else (moved,)
                moved = block
                continue
        elif moved is not None and _mark(block) in marks and not _is_on_next(blocks[-1]):
            blocks.append(moved)
            moved = None
        blocks.append(block)
    return tuple(blocks) if moved is None else (*blocks, moved)


def _is_on_next(block: ContentBlock) -> bool:
    """Whether a block is the signature of the block after it."""
    return type(block) is ThinkingBlock and block.format == SIGNATURE_ON_NEXT


def _mark(block: ContentBlock) -> int:
    """Return a checksum of a block, never 0."""
    text = block.text.encode(errors="surrogatepass") if type(block) is TextBlock else None
    return crc32(write_sorted(block) if text is None else text) or 1


class _WireCallIds:
    """A `CallIdSource` that uses wire ids unchanged, to compare parts with parts."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def id_of_call(self, name: str, wire_id: str | None) -> str:
        """Return the wire id of a call; an empty string if it has none."""
        self.names[wire_id or ""] = name
        return wire_id or ""

    id_of_result = id_of_call


def original_parts(original: list[Any], parts: list[Any], *, is_model: bool) -> list[Any]:
    """Return the encoded parts of an edited message; unchanged ones in their original form."""
    stored: dict[int, object] = {}
    for index, part in enumerate(original):
        ids = _WireCallIds()
        blocks: list[ContentBlock] = []
        PartDecoder(PROTOCOL, ids, is_model=is_model).decode([part], blocks)
        plain = PartEncoder(lambda call: call or None, ids.names).encode(tuple(blocks))
        if len(plain) == 1:
            stored[index] = write_sorted(plain[0])
    new_indexes = aligned(stored, [write_sorted(part) for part in parts])
    by_new_index = {new: original[old] for old, new in new_indexes.items()}
    return [by_new_index.get(index, part) for index, part in enumerate(parts)]


def _are_equal(encoded: Any, wire: Any) -> bool:
    """Whether two JSON values are equal; unlike in Python, `1`, `1.0` and `true` differ."""
    # A list instead of calls: a provider may nest values deeper than Python calls functions.
    pending: list[tuple[Any, Any]] = [(encoded, wire)]
    while pending:
        first, second = pending.pop()
        if isinstance(first, Raw):
            first = _read(first)
        if isinstance(first, list) and isinstance(second, list):
            items, others = cast("list[Any]", first), cast("list[Any]", second)
            if len(items) != len(others):
                return False
            pending += zip(items, others, strict=True)
        elif isinstance(first, dict) and isinstance(second, dict):
            one, other = cast("Wire", first), cast("Wire", second)
            if one.keys() != other.keys():
                return False
            pending += ((one[key], other[key]) for key in one)
        elif type(cast("object", first)) is not type(cast("object", second)) or first != second:
            return False
    return True


def joined_candidate(pieces: Sequence[Wire]) -> Wire:
    """Merge the pieces of a candidate from the chunks of a stream; adjacent texts are joined."""
    candidate: Wire = {}
    content: Wire = {}
    parts: list[tuple[Any, list[str]]] = []
    for piece in pieces:
        candidate |= {key: value for key, value in piece.items() if key != "content"}
        piece_content = maybe_object(piece.get("content"))
        content |= {key: value for key, value in piece_content.items() if key != "parts"}
        for part in maybe_list(piece_content.get("parts")):
            wire = maybe_object(part)
            text = wire.get("text")
            form = {key: value for key, value in wire.items() if key != "text"}
            if not isinstance(text, str):
                parts.append((part, []))
            elif parts and parts[-1][1] and parts[-1][0] == form:
                parts[-1][1].append(text)
            else:
                parts.append((form, [text]))
    joined = [{**form, "text": "".join(texts)} if texts else form for form, texts in parts]
    if content or joined:
        candidate["content"] = {**content, "parts": joined}
    return candidate
