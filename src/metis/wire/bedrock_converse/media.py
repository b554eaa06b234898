"""Media and citations of Bedrock Converse, to and from canonical blocks.

Bytes are base64. Files in S3 are named by an address that only this provider can read.
"""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    TextBlock,
    VideoBlock,
)
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text

Media = ImageBlock | DocumentBlock | AudioBlock | VideoBlock | ArtifactBlock
"""What a model is shown, or has made."""

_IMAGES = {name: f"image/{name}" for name in ("gif", "jpeg", "png", "webp")}
_DOCUMENTS = {
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "html": "text/html",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_FILMS = {
    "flv": "video/x-flv",
    "mkv": "video/x-matroska",
    "mov": "video/quicktime",
    "mp4": "video/mp4",
    "mpeg": "video/mpeg",
    "mpg": "video/mpg",
    "three_gp": "video/3gpp",
    "webm": "video/webm",
    "wmv": "video/x-ms-wmv",
}
_SOUNDS = {
    "aac": "audio/aac",
    "flac": "audio/flac",
    "m4a": "audio/m4a",
    "mka": "audio/x-matroska",
    "mp3": "audio/mpeg",
    "mp4": "audio/mp4",
    "ogg": "audio/ogg",
    "opus": "audio/opus",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
    "webm": "audio/webm",
}
DOCUMENT_TYPES = frozenset(_DOCUMENTS.values())
"""The kinds of documents that are taken."""
AUDIO_TYPES = frozenset({*_SOUNDS.values(), "audio/mp3", "audio/x-wav"})
"""The kinds of sounds that are taken."""

_FORMATS: Mapping[str, str] = {
    media_type: name
    for table in (_IMAGES, _DOCUMENTS, _FILMS, _SOUNDS)
    for name, media_type in table.items()
}
MEDIA_TYPES = frozenset(_FORMATS)
"""All media types that the protocol has a word for."""
_UNNAMED = "document"
"""What a document is called that nobody gave a name; the protocol wants one."""


def _type_of(wire: Wire, formats: Mapping[str, str], beginning: str) -> str | None:
    """The media type that a format stands for; some clients write that itself."""
    word = maybe_text(wire.get("format")) or ""
    return word if word.startswith(beginning) else formats.get(word)


def decode_image(wire: Wire) -> ContentBlock | None:
    """Our block for a picture."""
    kind = _type_of(wire, _IMAGES, "image/")
    match wire.get("source"):
        case {"bytes": str(data)} if kind is not None:
            return ImageBlock(ImageSource("base64", data), kind)
        case {"s3Location": {"uri": str(uri)}} if kind is not None:
            return ImageBlock(ImageSource("url", uri), kind)
        case _:
            return None


def decode_generated_image(wire: Wire, issuer: str) -> ContentBlock | None:
    """Our block for a picture that the model made."""
    shown = decode_image(wire)
    if not isinstance(shown, ImageBlock):
        return None
    kind = "base64" if shown.source.kind == "base64" else "url"
    return ArtifactBlock(MediaSource(kind, shown.source.data, issuer), shown.media_type)


def decode_document(wire: Wire) -> ContentBlock | None:
    """Our block for a document; one that is given as text is text."""
    name, context = maybe_text(wire.get("name")), maybe_text(wire.get("context"))
    source = _document_source(maybe_object(wire.get("source")))
    kind = _DOCUMENTS.get(str(wire.get("format", "txt")))
    if source is None or kind is None:
        return None
    return DocumentBlock(source, kind, name, context)


def _document_source(wire: Wire) -> MediaSource | None:
    match wire:
        case {"bytes": str(data)}:
            return MediaSource("base64", data)
        case {"s3Location": {"uri": str(uri)}}:
            return MediaSource("url", uri)
        case {"text": str(text)}:
            return MediaSource("text", text)
        case {"content": list()}:
            return MediaSource("text", "\n\n".join(texts_of(wire["content"])))
        case _:
            return None


def texts_of(parts: Any) -> list[str]:
    """The texts in a list of parts."""
    found = (maybe_object(part).get("text") for part in maybe_list(parts))
    return [text for text in found if isinstance(text, str)]


def decode_search_result(wire: Wire) -> ContentBlock | None:
    """What was found by a search of the client, as the document that it is."""
    title, source = wire.get("title"), wire.get("source")
    if not isinstance(title, str) or not isinstance(source, str):
        return None
    text = "\n\n".join(texts_of(wire.get("content")))
    return DocumentBlock(MediaSource("text", text), "text/plain", title, source)


def decode_video(wire: Wire) -> ContentBlock | None:
    """Our block for a film."""
    kind, source = _type_of(wire, _FILMS, "video/"), _source(wire)
    return None if kind is None or source is None else VideoBlock(source, kind)


def decode_audio(wire: Wire) -> ContentBlock | None:
    """Our block for a sound."""
    kind, source = _type_of(wire, _SOUNDS, "audio/"), _source(wire)
    return None if kind is None or source is None else AudioBlock(source, kind)


def _source(wire: Wire) -> MediaSource | None:
    match wire.get("source"):
        case {"bytes": str(data)}:
            return MediaSource("base64", data)
        case {"s3Location": {"uri": str(uri)}}:
            return MediaSource("url", uri)
        case _:
            return None


def encode_media(block: Media) -> Wire | None:
    """The part for what a model is shown or has made; None if it cannot be said here."""
    source = block.source
    if source.kind == "base64":
        where: Wire = {"bytes": source.data}
    elif source.kind == "url" and source.data.startswith("s3://"):
        where = {"s3Location": {"uri": source.data}}
    elif source.kind == "text":
        where = {"text": source.data}
    else:
        return None
    if isinstance(block, DocumentBlock):
        return {"document": _document(block, where)}
    key = _key(block)
    if key == "document":
        document = DocumentBlock(MediaSource("base64", source.data), block.media_type)
        return {"document": _document(document, where)}
    return {key: {"format": format_of(block.media_type), "source": where}}


def _key(block: ImageBlock | AudioBlock | VideoBlock | ArtifactBlock) -> str:
    if not isinstance(block, ArtifactBlock):
        return block.type
    kind = block.media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "document"


def _document(block: DocumentBlock, where: Wire) -> Wire:
    wire: Wire = {
        "format": _document_format(block),
        "name": block.name or _UNNAMED,
        "source": where,
    }
    if block.context is not None:
        wire["context"] = block.context
    return wire


def _document_format(block: DocumentBlock) -> str:
    """The protocol's word for a kind of document; text of any other kind is text."""
    is_text = block.source.kind == "text" and block.media_type not in DOCUMENT_TYPES
    return "txt" if is_text else format_of(block.media_type)


def format_of(media_type: str) -> str:
    """The protocol's word for a media type; an unknown one is told by its second half."""
    return _FORMATS.get(media_type) or media_type.rpartition("/")[2].removeprefix("x-")


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


def encode_foreign_citation(citation: Citation) -> Mapping[str, Any] | None:
    """The citation of another provider in the words of this one; None if it names nothing."""
    wire: Wire = {}
    if citation.title:
        wire["title"] = citation.title
    if citation.cited_text:
        wire["sourceContent"] = [{"text": citation.cited_text}]
    if citation.url:
        wire["location"] = {"web": {"url": citation.url}}
    return wire or None
