"""Grounding: what an answer rests on, as citations of the text that it supports (T200).

The metadata itself stays with the response as it came. Its offsets count bytes; ours count
characters, and are found by the words that the segment names.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import Citation, ContentBlock, TextBlock
from metis.wire.gemini.names import field
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

GROUNDING = "grounding"
"""The kind of a citation that comes from grounding."""

_SOURCES = ("web", "retrievedContext", "maps")


def cited(content: tuple[ContentBlock, ...], candidate: Wire) -> tuple[ContentBlock, ...]:
    """The blocks with the citations of a candidate on the texts that they support."""
    metadata = maybe_object(field(candidate, "groundingMetadata"))
    supports = maybe_list(field(metadata, "groundingSupports")) if metadata else []
    if not supports:
        return content
    blocks = list(content)
    chunks = [maybe_object(chunk) for chunk in maybe_list(field(metadata, "groundingChunks"))]
    found: dict[int, list[Citation]] = {}
    for support in map(maybe_object, supports):
        words = maybe_text(maybe_object(support.get("segment")).get("text"))
        place = _place(blocks, words) if words else None
        if place is not None and words is not None:
            index, start = place
            own = _citations(support, chunks, words, start)
            found.setdefault(index, []).extend(own)
    for index, citations in found.items():
        block = blocks[index]
        if isinstance(block, TextBlock):
            blocks[index] = replace(block, citations=tuple(citations))
    return tuple(blocks)


def _place(blocks: list[ContentBlock], words: str) -> tuple[int, int] | None:
    """The first text that holds words, and where."""
    for index, block in enumerate(blocks):
        if type(block) is TextBlock:
            start = block.text.find(words)
            if start >= 0:
                return index, start
    return None


def _citations(support: Wire, chunks: list[Wire], words: str, start: int) -> Iterator[Citation]:
    for number in maybe_list(field(support, "groundingChunkIndices")):
        if type(number) is int and 0 <= number < len(chunks):
            source = _source(chunks[number])
            yield Citation(
                kind=GROUNDING,
                cited_text=words,
                url=maybe_text(source.get("uri")),
                title=maybe_text(source.get("title")),
                start=start,
                end=start + len(words),
                raw=chunks[number],
            )


def _source(chunk: Wire) -> dict[str, Any]:
    return next(
        (maybe_object(field(chunk, name)) for name in _SOURCES if field(chunk, name)), Wire()
    )
