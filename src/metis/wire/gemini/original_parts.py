"""Original parts of Gemini: what is stored to write a message back as it came, also when edited.

A signature belongs to the part that carried it. Between calls that follows from the order; of other
blocks marks are stored, by which they are found in a message that has changed since.
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
    """Return what must be stored to encode parts as they were, compared with how they would be."""
    if _are_equal(encoded, parts):
        return {}
    style = style_of(parts)
    if style and _are_equal(with_style(encoded, style), parts):
        return {"style": style}
    return {"parts": parts}


def seal_carriers(content: Sequence[ContentBlock]) -> list[int]:
    """Return marks of the blocks that carry signatures, in order; nothing if only calls do."""
    marks = [
        0 if type(after) is ToolUseBlock else _mark(after)
        for before, after in pairwise(content)
        if _is_on_next(before)
    ]
    return [mark for mark in marks if mark]


def with_seals_at_carriers(
    content: tuple[ContentBlock, ...], carriers: Sequence[int]
) -> tuple[ContentBlock, ...]:
    """Return content with each signature right before its block, if others came between."""
    marks = {*carriers}
    blocks: list[ContentBlock] = []
    waiting: ContentBlock | None = None
    for block, after in zip(content, (*content[1:], None), strict=True):
        if _is_on_next(block):
            is_before_call = type(after) is ToolUseBlock
            if after is not None and not is_before_call and _mark(after) not in marks:
                blocks += () if waiting is None else (waiting,)
                waiting = block
                continue
        elif waiting is not None and _mark(block) in marks and not _is_on_next(blocks[-1]):
            blocks.append(waiting)
            waiting = None
        blocks.append(block)
    return tuple(blocks) if waiting is None else (*blocks, waiting)


def _is_on_next(block: ContentBlock) -> bool:
    return type(block) is ThinkingBlock and block.format == SIGNATURE_ON_NEXT


def _mark(block: ContentBlock) -> int:
    text = block.text.encode(errors="surrogatepass") if type(block) is TextBlock else None
    return crc32(write_sorted(block) if text is None else text) or 1


class _WireCallIds:
    """Gives calls and results the ids that they have on the wire."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def id_of_call(self, name: str, wire_id: str | None) -> str:
        """Return the id of a call; an empty one if it has none."""
        self.names[wire_id or ""] = name
        return wire_id or ""

    id_of_result = id_of_call


def original_parts(original: list[Any], parts: list[Any], *, is_model: bool) -> list[Any]:
    """Return the parts of a message that has changed, those that are as they were as they came."""
    before: dict[int, object] = {}
    for index, part in enumerate(original):
        ids = _WireCallIds()
        blocks: list[ContentBlock] = []
        PartDecoder(PROTOCOL, ids, is_model=is_model).decode([part], blocks)
        plain = PartEncoder(lambda call: call or None, ids.names).encode(tuple(blocks))
        if len(plain) == 1:
            before[index] = write_sorted(plain[0])
    places = aligned(before, [write_sorted(part) for part in parts])
    originals_now = {now: original[index] for index, now in places.items()}
    return [originals_now.get(index, part) for index, part in enumerate(parts)]


def _are_equal(encoded: Any, wire: Any) -> bool:
    """Whether two JSON values are the same; `1`, `1.0` and `true` are not."""
    if isinstance(encoded, Raw):
        encoded = _read(encoded)
    if isinstance(encoded, list) and isinstance(wire, list):
        first, second = cast("list[Any]", encoded), cast("list[Any]", wire)
        return len(first) == len(second) and all(map(_are_equal, first, second))
    if isinstance(encoded, dict) and isinstance(wire, dict):
        one, other = cast("Wire", encoded), cast("Wire", wire)
        return one.keys() == other.keys() and all(_are_equal(one[k], other[k]) for k in one)
    return type(cast("object", encoded)) is type(cast("object", wire)) and encoded == wire


def joined_candidate(pieces: Sequence[Wire]) -> Wire:
    """Return a candidate of the pieces that a stream had of it, with pieces of a text joined."""
    whole: Wire = {}
    content: Wire = {}
    parts: list[tuple[Any, list[str]]] = []
    for piece in pieces:
        whole |= {key: value for key, value in piece.items() if key != "content"}
        new = maybe_object(piece.get("content"))
        content |= {key: value for key, value in new.items() if key != "parts"}
        for part in maybe_list(new.get("parts")):
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
    return {**whole, "content": {**content, "parts": joined}} if content or joined else whole
