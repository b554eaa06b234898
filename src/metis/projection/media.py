"""Media on its way to a target: its type, whether the target accepts it, and names of documents."""

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
"""Blocks that show something to a model."""

INVALID_BASE64 = "its data is not valid base64"
DOCUMENT_TEXT = "(See the document.)"
"""The text beside a document, where the target needs one and there is none (T96)."""

_MediaBlock = TypeVar("_MediaBlock", bound=Media | ArtifactBlock)
_AnyBlock = TypeVar("_AnyBlock", bound=ContentBlock)

_URL_SAFE_TO_STANDARD = str.maketrans("-_", "+/")
_QUANTUM = 4
_ENDINGS = (*(f"{letter}=" for letter in "AEIMQUYcgkosw048"), *(f"{letter}==" for letter in "AQgw"))
"""How padded base64 ends if the bits beyond the last byte are zero."""
_TEXT_TYPES = re.compile(r"application/(?:(?:.+\+)?(?:json|xml|yaml)|x-yaml|toml|javascript|sql)")
"""Media types beside `text/…` whose bytes are text."""
_DATA_URL = re.compile(r"data:([^;,]+);base64,", re.IGNORECASE)
_SNIFFED_CHARACTERS = 16
_MAGIC_BYTES: Mapping[bytes, str] = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
_FORBIDDEN_IN_NAMES = re.compile(r"[^A-Za-z0-9\s()\[\]-]+")
_SPACES = re.compile(r"\s+")
_MAX_NAME_LENGTH = 200


def is_base64(data: str) -> bool:
    """Whether data is base64 that every provider reads: padded, without spaces, not empty.

    >>> is_base64("aWY="), is_base64("aWY"), is_base64("a W="), is_base64("aWZ=")
    (True, False, False, False)
    """
    if not data or len(data) % _QUANTUM:
        return False
    try:
        pybase64.b64decode(data, validate=True)
    except ValueError:
        return False
    # Strict decoders refuse set bits beyond the last byte; Python's does not.
    return data[-1] != "=" or data.endswith(_ENDINGS)


def normalise_base64(block: _MediaBlock) -> _MediaBlock:
    """Return media with standard base64; as it was if it has that, or cannot be read."""
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
    """Return a document whose bytes are text with that text; others as they are (G-010)."""
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
    """Return media in standard base64, and images with the type that their bytes have."""
    if isinstance(block, ImageBlock):
        return cast("_MediaBlock", _normalise_image(block))
    return normalise_base64(block)


def _normalise_image(image: ImageBlock) -> ImageBlock:
    # Anthropic and Gemini refuse an image whose bytes are not of the stated type (T89, T94).
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
    """Return the media type that the first bytes of an image show; None if they show none."""
    try:
        head = base64.b64decode(data[:_SNIFFED_CHARACTERS])
    except (binascii.Error, ValueError):
        return None
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    magic = _MAGIC_BYTES.items()
    return next((media_type for start, media_type in magic if head.startswith(start)), None)


def media_refusal(block: Media, target: Target) -> str | None:
    """Return why a target does not accept media; None if it does."""
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
    # Only the host of a cloud can read its buckets, such as s3: or gs: (T93).
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
    """Return the history with a distinct name for each document, and text beside it (T95, T96)."""
    if not recorder.target.needs_document_names or not contain_documents(messages):
        return list(messages)
    names = _DocumentNames(recorder)
    return [_with_named_documents(message, names, recorder) for message in messages]


def contain_documents(messages: Sequence[Message]) -> bool:
    """Whether messages, or results in them, have documents."""
    return any(_documents_of(block) for message in messages for block in message.content)


def _documents_of(block: ContentBlock) -> list[DocumentBlock]:
    parts = block.content if isinstance(block, ToolResultBlock) else (block,)
    return [part for part in parts if isinstance(part, DocumentBlock)]


def _with_named_documents(
    message: Message, names: "_DocumentNames", recorder: LossRecorder
) -> Message:
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
    same = are_identical([block for _, block in content], message.content)
    return message if same else with_blocks(message, content)


def _is_document_without_text(message: Message) -> bool:
    content = message.content
    has_document = any(isinstance(block, DocumentBlock) for block in content)
    return has_document and not any(isinstance(b, TextBlock) and b.text.strip() for b in content)


class _DocumentNames:
    """The names of the documents of one history, in order.

    Bedrock refuses a name twice, and names with other characters than it lists. A later message
    changes no name that was given before, so that the cached prefix remains valid (T95).
    """

    def __init__(self, recorder: LossRecorder) -> None:
        self._recorder = recorder
        self._used: set[str] = set()
        self._count = 0

    def reserve(self, message: Message) -> None:
        for block in message.content:
            for document in _documents_of(block):
                self._count += 1
                self._used.add(document.name or "")

    def rename(self, block: _AnyBlock, message: Message, path: str) -> _AnyBlock:
        if isinstance(block, DocumentBlock):
            return self._rename_document(block, message, path)
        if isinstance(block, ToolResultBlock) and _documents_of(block):
            content = tuple(
                self.rename(part, message, f"{path}.content[{index}]")
                for index, part in enumerate(block.content)
            )
            same = are_identical(content, block.content)
            return block if same else replace(block, content=content)
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
        return next(one for one in numbered if one not in self._used)


def document_name(name: str) -> str:
    """Return a name in letters, digits, single spaces, hyphens and brackets; may be empty.

    >>> document_name("Straßenplan  v1.2.pdf"), document_name("???")
    ('Stra-enplan v1-2-pdf', '')
    """
    decomposed = unicodedata.normalize("NFKD", name)
    bare = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    plain = _SPACES.sub(" ", _FORBIDDEN_IN_NAMES.sub("-", bare)).strip(" -")
    plain = plain[:_MAX_NAME_LENGTH].rstrip()
    return plain if any(letter.isalnum() for letter in plain) else ""
