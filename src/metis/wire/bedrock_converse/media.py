"""Media and citations of Bedrock Converse, to and from canonical blocks.

Binary data is base64. Files may be referenced by S3 URIs, which other providers cannot read.
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
"""The blocks that contain media."""

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
_VIDEOS = {
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
_AUDIO = {
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
"""The media types of documents that the API accepts."""
AUDIO_TYPES = frozenset({*_AUDIO.values(), "audio/mp3", "audio/x-wav"})
"""The media types of audio that the API accepts."""

_FORMATS: Mapping[str, str] = {
    media_type: name
    for table in (_IMAGES, _DOCUMENTS, _VIDEOS, _AUDIO)
    for name, media_type in table.items()
}
_UNNAMED = "document"
"""The name for a document without a name, because the API requires one."""


def _type_of(wire: Wire, formats: Mapping[str, str], prefix: str) -> str | None:
    """Return the media type of a format; some clients send the media type itself."""
    name = maybe_text(wire.get("format")) or ""
    return name if name.startswith(prefix) else formats.get(name)


def decode_image(wire: Wire) -> ContentBlock | None:
    """Decode an image; None if its format or source is unknown."""
    media_type = _type_of(wire, _IMAGES, "image/")
    match wire.get("source"):
        case {"bytes": str(data)} if media_type is not None:
            return ImageBlock(ImageSource("base64", data), media_type)
        case {"s3Location": {"uri": str(uri)}} if media_type is not None:
            return ImageBlock(ImageSource("url", uri), media_type)
        case _:
            return None


def decode_generated_image(wire: Wire, issuer: str) -> ContentBlock | None:
    """Decode an image that the model generated."""
    image = decode_image(wire)
    if not isinstance(image, ImageBlock):
        return None
    kind = "base64" if image.source.kind == "base64" else "url"
    return ArtifactBlock(MediaSource(kind, image.source.data, issuer), image.media_type)


def decode_document(wire: Wire) -> ContentBlock | None:
    """Decode a document; a source with `text` or `content` becomes a text source."""
    name, context = maybe_text(wire.get("name")), maybe_text(wire.get("context"))
    source = _source(wire) or _text_source(maybe_object(wire.get("source")))
    media_type = _DOCUMENTS.get(str(wire.get("format", "txt")))
    if source is None or media_type is None:
        return None
    return DocumentBlock(source, media_type, name, context)


def _text_source(wire: Wire) -> MediaSource | None:
    match wire:
        case {"text": str(text)}:
            return MediaSource("text", text)
        case {"content": list()}:
            return MediaSource("text", "\n\n".join(_texts_of(wire["content"])))
        case _:
            return None


def _texts_of(parts: Any) -> list[str]:
    """Return the texts in a list of parts."""
    texts = (maybe_object(part).get("text") for part in maybe_list(parts))
    return [text for text in texts if isinstance(text, str)]


def decode_search_result(wire: Wire) -> ContentBlock | None:
    """Decode a search result of the client as a document."""
    title, source = wire.get("title"), wire.get("source")
    if not isinstance(title, str) or not isinstance(source, str):
        return None
    text = "\n\n".join(_texts_of(wire.get("content")))
    return DocumentBlock(MediaSource("text", text), "text/plain", title, source)


def decode_video(wire: Wire) -> ContentBlock | None:
    """Decode a video."""
    media_type, source = _type_of(wire, _VIDEOS, "video/"), _source(wire)
    return None if media_type is None or source is None else VideoBlock(source, media_type)


def decode_audio(wire: Wire) -> ContentBlock | None:
    """Decode audio."""
    media_type, source = _type_of(wire, _AUDIO, "audio/"), _source(wire)
    return None if media_type is None or source is None else AudioBlock(source, media_type)


def _source(wire: Wire) -> MediaSource | None:
    match wire.get("source"):
        case {"bytes": str(data)}:
            return MediaSource("base64", data)
        case {"s3Location": {"uri": str(uri)}}:
            return MediaSource("url", uri)
        case _:
            return None


def encode_media(block: Media) -> Wire | None:
    """Encode media; None if the protocol has no source of this kind, such as a web URL."""
    source = block.source
    if source.kind == "base64":
        wire_source: Wire = {"bytes": source.data}
    # Bedrock reads files from S3 only and rejects web URLs.
    elif source.kind == "url" and source.data.startswith("s3://"):
        wire_source = {"s3Location": {"uri": source.data}}
    elif source.kind == "text":
        wire_source = {"text": source.data}
    else:
        return None
    if isinstance(block, DocumentBlock):
        return {"document": _encode_document(block, wire_source)}
    key = _key_of(block)
    # A generated file other than image, audio or video can be sent as a document.
    if key == "document":
        document = DocumentBlock(MediaSource("base64", source.data), block.media_type)
        return {"document": _encode_document(document, wire_source)}
    return {key: {"format": format_of(block.media_type), "source": wire_source}}


def _key_of(block: ImageBlock | AudioBlock | VideoBlock | ArtifactBlock) -> str:
    if not isinstance(block, ArtifactBlock):
        return block.type
    kind = block.media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "document"


def _encode_document(block: DocumentBlock, source: Wire) -> Wire:
    wire: Wire = {
        "format": _document_format(block),
        "name": block.name or _UNNAMED,
        "source": source,
    }
    if block.context is not None:
        wire["context"] = block.context
    return wire


def _document_format(block: DocumentBlock) -> str:
    """Return the format of a document; `txt` for text of a type that the API does not list."""
    is_text = block.source.kind == "text" and block.media_type not in DOCUMENT_TYPES
    return "txt" if is_text else format_of(block.media_type)


def format_of(media_type: str) -> str:
    """Return the format name for a media type; for an unknown type its subtype."""
    return _FORMATS.get(media_type) or media_type.rpartition("/")[2].removeprefix("x-")


CITATION_KINDS = frozenset(
    {"web", "documentChar", "documentPage", "documentChunk", "searchResultLocation", "source"}
)
"""The kinds of citations; `source` is a citation without a location."""
_LOCATIONS = CITATION_KINDS - {"source"}


def decode_cited(wire: Wire) -> TextBlock | None:
    """Decode a text with its citations."""
    content = wire.get("content", [])
    if not isinstance(content, list):
        return None
    citations = maybe_list(wire.get("citations"))
    return TextBlock("".join(_texts_of(content)), tuple(map(decode_citation, citations)))


def decode_citation(wire: Any) -> Citation:
    """Decode a citation of any kind."""
    citation = maybe_object(wire)
    location = maybe_object(citation.get("location"))
    kind = next((key for key in location if key in _LOCATIONS), "source")
    target = maybe_object(location.get(kind))
    return Citation(
        kind=kind,
        cited_text="".join(_texts_of(citation.get("sourceContent"))) or None,
        url=maybe_text(target.get("url")),
        title=maybe_text(citation.get("title")),
        start=maybe_count(target.get("start")),
        end=maybe_count(target.get("end")),
        raw=citation,
    )


def encode_cited(block: TextBlock) -> Wire:
    """Encode a text with citations."""
    citations = [citation.raw for citation in block.citations if citation.raw is not None]
    if not citations:
        return {"text": block.text}
    return {"citationsContent": {"citations": citations, "content": [{"text": block.text}]}}


def encode_foreign_citation(citation: Citation) -> Mapping[str, Any] | None:
    """Encode a citation of another provider; None if it has no title, text or URL."""
    wire: Wire = {}
    if citation.title:
        wire["title"] = citation.title
    if citation.cited_text:
        wire["sourceContent"] = [{"text": citation.cited_text}]
    if citation.url:
        wire["location"] = {"web": {"url": citation.url}}
    return wire or None
