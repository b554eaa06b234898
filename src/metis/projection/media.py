"""Projection of media: base64 and media types, acceptance by the target, names of documents."""

import base64
import binascii
import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TypeVar, cast

import pybase64
from msgspec.structs import replace

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    TextBlock,
    ToolResultBlock,
    VideoBlock,
)
from metis.canonical.message import Message, Role
from metis.projection.content import are_identical, with_blocks
from metis.projection.images import size_if_larger
from metis.projection.loss import LossRecorder
from metis.projection.target import Target, is_native

Media = ImageBlock | DocumentBlock | AudioBlock | VideoBlock
"""The blocks with media for a model."""

INVALID_BASE64 = "its data is not valid base64"
DOCUMENT_TEXT = "(See the document.)"
"""The synthesised text of a message with a document, for targets that need one (T96)."""

_MediaBlock = TypeVar("_MediaBlock", bound=Media | ArtifactBlock)
_AnyBlock = TypeVar("_AnyBlock", bound=ContentBlock)

_URL_SAFE_TO_STANDARD = str.maketrans("-_", "+/")
_QUANTUM = 4
_ENDINGS = (*(f"{letter}=" for letter in "AEIMQUYcgkosw048"), *(f"{letter}==" for letter in "AQgw"))
"""The endings of padded base64 in which the bits beyond the last byte are zero."""
_TEXT_TYPES = re.compile(r"application/(?:(?:.+\+)?(?:json|xml|yaml)|x-yaml|toml|javascript|sql)")
"""Media types besides `text/…` whose bytes are text."""
_DATA_URL = re.compile(r"data:([^;,]+);base64,", re.IGNORECASE)
_SNIFFED_CHARACTERS = 16
_MAGIC_BYTES: Mapping[bytes, str] = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
# Bedrock accepts document names of up to 200 letters, digits, spaces, hyphens and brackets.
_FORBIDDEN_IN_NAMES = re.compile(r"[^A-Za-z0-9\s()\[\]-]+")
_SPACES = re.compile(r"\s+")
_MAX_NAME_LENGTH = 200


def is_base64(data: str) -> bool:
    """Whether data is base64 that every provider accepts: padded, without spaces, not empty.

    >>> is_base64("aWY="), is_base64("aWY"), is_base64("a W="), is_base64("aWZ=")
    (True, False, False, False)
    """
    if not data or len(data) % _QUANTUM:
        return False
    try:
        pybase64.b64decode(data, validate=True)
    except ValueError:
        return False
    # Unlike Python's, strict decoders reject set bits beyond the last byte.
    return data[-1] != "=" or data.endswith(_ENDINGS)


def normalise_base64(block: _MediaBlock) -> _MediaBlock:
    """Return media with standard base64; unchanged if it is standard or cannot be decoded."""
    source = block.source
    if source.kind != "base64" or is_base64(source.data):
        return block
    bare = "".join(source.data.split()).translate(_URL_SAFE_TO_STANDARD).rstrip("=")
    padded = bare + "=" * (-len(bare) % _QUANTUM)
    try:
        data = base64.b64encode(base64.b64decode(padded, validate=True)).decode()
    except ValueError:
        return block
    return replace(block, source=replace(source, data=data)) if data else block


def as_text_document(block: DocumentBlock) -> DocumentBlock:
    """Return a document with base64 text as a text document; others unchanged (G-010)."""
    source, media_type = block.source, block.media_type.partition(";")[0].strip().lower()
    is_text = media_type.startswith("text/") or _TEXT_TYPES.fullmatch(media_type) is not None
    if source.kind != "base64" or not is_text:
        return block
    try:
        text = base64.b64decode(source.data, validate=True).decode()
    except ValueError:
        return block
    return replace(block, source=MediaSource("text", text)) if text.strip() else block


def normalise_media(block: _MediaBlock) -> _MediaBlock:
    """Return media with standard base64, and images with the media type of their bytes."""
    if isinstance(block, ImageBlock):
        return cast("_MediaBlock", _normalise_image(block))
    return normalise_base64(block)


def _normalise_image(image: ImageBlock) -> ImageBlock:
    """Return an image without a data URL prefix, and with the media type of its bytes."""
    # Anthropic and Gemini reject an image whose bytes do not have the stated type (T89, T94).
    if image.source.kind != "base64":
        return image
    prefix = _DATA_URL.match(image.source.data)
    if prefix is not None:
        image = replace(
            image,
            source=ImageSource("base64", image.source.data[prefix.end() :]),
            media_type=prefix[1].lower(),
        )
    image = normalise_base64(image)
    media_type = sniff_media_type(image.source.data)
    if media_type in (None, image.media_type):
        return image
    return replace(image, media_type=media_type)


def sniff_media_type(data: str) -> str | None:
    """Return the media type of an image according to its first bytes; None if unknown."""
    try:
        head = base64.b64decode(data[:_SNIFFED_CHARACTERS])
    except (binascii.Error, ValueError):
        return None
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    magic = _MAGIC_BYTES.items()
    return next((media_type for start, media_type in magic if head.startswith(start)), None)


def media_refusal(block: Media, target: Target) -> str | None:
    """Return the reason why a target does not accept media; None if it accepts them."""
    source = block.source
    if block.type not in target.user_blocks:
        return f"{block.type} is not supported by the model"
    if source.kind == "file_ref":
        return "the file was not read before sending"
    if isinstance(source, MediaSource) and source.kind == "file_id":
        if source.issuer not in target.issuers:
            return f"the file was uploaded to {source.issuer or 'another provider'}"
        return None if block.type in target.file_blocks else f"{block.type} is not accepted by id"
    if source.kind == "url":
        return _url_refusal(block, target)
    return _data_refusal(block, target)


def _url_refusal(block: Media, target: Target) -> str | None:
    scheme = block.source.data.partition(":")[0].lower()
    if block.type not in target.url_blocks:
        return f"{block.type} is not accepted by URL"
    # Only a cloud's own host can read its buckets, such as s3: or gs: (T93).
    return None if scheme in target.url_schemes else f"a {scheme!r} URL cannot be read there"


def _data_refusal(block: Media, target: Target) -> str | None:
    limit = target.max_image_chars
    if isinstance(block, ImageBlock) and limit is not None and len(block.source.data) > limit:
        # Anthropic counts the base64 text, which is a third longer than the file (T91).
        return f"an image of {len(block.source.data)} characters is more than {limit}"
    if isinstance(block, ImageBlock) and (size := size_if_larger(block, target.max_image_side)):
        return f"an image of {size[0]} x {size[1]} pixels has sides over {target.max_image_side}"
    field = _MEDIA_TYPE_FIELDS.get(type(block))
    accepted = getattr(target, field) if field and block.source.kind != "text" else None
    if accepted is not None and block.media_type not in (*accepted, ANY_IMAGE_TYPE):
        return f"{block.media_type} is not accepted"
    is_invalid = block.source.kind == "base64" and not is_base64(block.source.data)
    return INVALID_BASE64 if is_invalid else None


_MEDIA_TYPE_FIELDS: Mapping[type, str] = {
    ImageBlock: "image_media_types",
    AudioBlock: "audio_media_types",
    DocumentBlock: "document_media_types",
}


def name_documents(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the history with unique document names, and text in their messages (T95, T96)."""
    if not recorder.target.needs_document_names or not contain_documents(messages):
        return list(messages)
    names = _DocumentNames(recorder)
    return [_with_named_documents(message, names, recorder) for message in messages]


def contain_documents(messages: Sequence[Message]) -> bool:
    """Whether messages, or tool results in them, contain documents."""
    return any(_documents_of(block) for message in messages for block in message.content)


def _documents_of(block: ContentBlock) -> list[DocumentBlock]:
    parts = block.content if isinstance(block, ToolResultBlock) else (block,)
    return [part for part in parts if isinstance(part, DocumentBlock)]


def _with_named_documents(
    message: Message, names: "_DocumentNames", recorder: LossRecorder
) -> Message:
    """Return a message with unique document names, and text if it has only documents."""
    if is_native(message, recorder.target):
        names.reserve(message)
        return message
    content = [
        (index, names.rename(block, message, f"$.content[{index}]"))
        for index, block in enumerate(message.content)
    ]
    if message.role is Role.USER and _is_document_without_text(message):
        reason = "the target needs text beside a document"
        recorder.record_synthesised(message, "text", "$.content", reason)
        content.insert(0, (-1, TextBlock(DOCUMENT_TEXT)))
    is_unchanged = are_identical([block for _, block in content], message.content)
    return message if is_unchanged else with_blocks(message, content)


def _is_document_without_text(message: Message) -> bool:
    content = message.content
    has_document = any(isinstance(block, DocumentBlock) for block in content)
    return has_document and not any(isinstance(b, TextBlock) and b.text.strip() for b in content)


class _DocumentNames:
    """Assigns unique names to the documents of one history, in order.

    Bedrock rejects repeated names, and names with characters that it does not list. A name depends
    only on earlier documents, so that the cached prefix remains valid (T95).
    """

    def __init__(self, recorder: LossRecorder) -> None:
        self._recorder = recorder
        self._used: set[str] = set()
        self._count = 0

    def reserve(self, message: Message) -> None:
        """Mark the names in a native message as used."""
        for block in message.content:
            for document in _documents_of(block):
                self._count += 1
                self._used.add(document.name or "")

    def rename(self, block: _AnyBlock, message: Message, path: str) -> _AnyBlock:
        """Return a block with unique names for the document or documents in it."""
        if isinstance(block, DocumentBlock):
            return self._rename_document(block, message, path)
        if isinstance(block, ToolResultBlock) and _documents_of(block):
            content = tuple(
                self.rename(part, message, f"{path}.content[{index}]")
                for index, part in enumerate(block.content)
            )
            is_unchanged = are_identical(content, block.content)
            return block if is_unchanged else replace(block, content=content)
        return block

    def _rename_document(self, block: DocumentBlock, message: Message, path: str) -> DocumentBlock:
        self._count += 1
        name = self._unused(document_name(block.name or "") or f"document-{self._count}")
        self._used.add(name)
        if name == block.name:
            return block
        if block.name is None:
            reason = f"a document needs a name; sent as {name!r}"
            self._recorder.record_synthesised(message, "document", f"{path}.name", reason)
        else:
            reason = f"sent as {name!r}"
            self._recorder.record_altered(message, "document", f"{path}.name", reason)
        return replace(block, name=name)

    def _unused(self, name: str) -> str:
        if name not in self._used:
            return name
        endings = (f" ({number})" for number in count(2))
        numbered = (name[: _MAX_NAME_LENGTH - len(ending)].rstrip() + ending for ending in endings)
        return next(candidate for candidate in numbered if candidate not in self._used)


def document_name(name: str) -> str:
    """Return a name of letters, digits, single spaces, hyphens and brackets; may be empty.

    >>> document_name("Straßenplan  v1.2.pdf"), document_name("???")
    ('Stra-enplan v1-2-pdf', '')
    """
    decomposed = unicodedata.normalize("NFKD", name)
    bare = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    plain = _SPACES.sub(" ", _FORBIDDEN_IN_NAMES.sub("-", bare)).strip(" -")
    plain = plain[:_MAX_NAME_LENGTH].rstrip()
    return plain if any(letter.isalnum() for letter in plain) else ""
