"""Citations of Bedrock Converse, to and from ours: what a text rests on stands beside it."""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import Citation, TextBlock
from metis.wire.bedrock_converse.media import texts_of
from metis.wire.shape import Wire, maybe_count, maybe_list, maybe_object, maybe_text

CITATION_KINDS = frozenset(
    {"web", "documentChar", "documentPage", "documentChunk", "searchResultLocation", "source"}
)
"""The kinds of places that are cited; `source` is one that is named and nothing more."""
_PLACES = CITATION_KINDS - {"source"}


def decode_cited(wire: Wire) -> TextBlock | None:
    """The text with what it cites."""
    content = wire.get("content", [])
    if not isinstance(content, list):
        return None
    notes = maybe_list(wire.get("citations"))
    return TextBlock("".join(texts_of(content)), tuple(map(decode_citation, notes)))


def decode_citation(wire: Any) -> Citation:
    """Our citation for one of the protocol."""
    own = maybe_object(wire)
    location = maybe_object(own.get("location"))
    kind = next((key for key in location if key in _PLACES), "source")
    place = maybe_object(location.get(kind))
    return Citation(
        kind=kind,
        cited_text="".join(texts_of(own.get("sourceContent"))) or None,
        url=maybe_text(place.get("url")),
        title=maybe_text(own.get("title")),
        start=maybe_count(place.get("start")),
        end=maybe_count(place.get("end")),
        raw=own,
    )


def encode_cited(block: TextBlock) -> Wire:
    """The part for a text that cites something."""
    own = [citation.raw for citation in block.citations if citation.raw is not None]
    if not own:
        return {"text": block.text}
    return {"citationsContent": {"citations": own, "content": [{"text": block.text}]}}


def cite(citation: Citation) -> Mapping[str, Any] | None:
    """The citation of another provider in the words of this one; None if it names nothing."""
    wire: Wire = {}
    if citation.title:
        wire["title"] = citation.title
    if citation.cited_text:
        wire["sourceContent"] = [{"text": citation.cited_text}]
    if citation.url:
        wire["location"] = {"web": {"url": citation.url}}
    return wire or None
