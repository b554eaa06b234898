"""Media on its way to a target: its type, whether the target takes it, and names of documents."""

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
from metis.projection.content import IndexedBlock, with_blocks
from metis.projection.images import size_if_larger
from metis.projection.loss import LossRecorder
from metis.projection.target import Target, is_native

Media = ImageBlock | DocumentBlock | AudioBlock | VideoBlock
"""What a model is shown."""

_M = TypeVar("_M", bound=Media | ArtifactBlock)

_TO_PLAIN = str.maketrans("-_", "+/")
_QUANTUM = 4
_LAST = (*(f"{letter}=" for letter in "AEIMQUYcgkosw048"), *(f"{letter}==" for letter in "AQgw"))
"""How padded base64 ends."""
INVALID_BASE64 = "its data is no base64"
"""Why media cannot be sent that nobody could read."""

_TEXTUAL = re.compile(r"application/(?:(?:.+\+)?(?:json|xml|yaml)|x-yaml|toml|javascript|sql)")
"""Other types whose bytes are text."""
_DATA_URL = re.compile(r"data:([^;,]+);base64,", re.IGNORECASE)
_HEAD = 16
_MAGIC: Mapping[bytes, str] = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def is_base64(data: str) -> bool:
    """Whether data is base64 as every provider reads it: padded, in one piece, not empty.

    >>> is_base64("aWY="), is_base64("aWY"), is_base64("a W="), is_base64("aWZ=")
    (True, False, False, False)
    """
    if not data or len(data) % _QUANTUM:
        return False
    try:
        pybase64.b64decode(data, validate=True)
    except ValueError:
        return False
    # The last letter says nothing beyond the last byte; strict readers look.
    return data[-1] != "=" or data.endswith(_LAST)


def normalise_base64(block: _M) -> _M:
    """The same media with its bytes in plain base64; as it was if they are, or are none at all."""
    source = block.source
    if source.kind != "base64" or is_base64(source.data):
        return block
    bare = "".join(source.data.split()).translate(_TO_PLAIN).rstrip("=")
    plain = bare + "=" * (-len(bare) % _QUANTUM)
    try:
        plain = base64.b64encode(base64.b64decode(plain, validate=True)).decode()
    except ValueError:
        return block
    return replace(block, source=replace(source, data=plain)) if plain else block


def as_text_document(block: DocumentBlock) -> DocumentBlock:
    """A document whose bytes are text, as that text; as it is if they are not (G-010)."""
    source, kind = block.source, block.media_type.partition(";")[0].strip().lower()
    if source.kind != "base64" or not (kind.startswith("text/") or _TEXTUAL.fullmatch(kind)):
        return block
    try:
        text = base64.b64decode(source.data, validate=True).decode()
    except ValueError:
        return block
    return replace(block, source=MediaSource("text", text)) if text.strip() else block


def normalise_media(block: _M) -> _M:
    """Media whose bytes are in plain base64, and whose type is theirs where they tell it."""
    if isinstance(block, ImageBlock):
        return cast("_M", normalise_image(block))
    return normalise_base64(block)


def normalise_image(image: ImageBlock) -> ImageBlock:
    """The image with plain base64 and the media type that its bytes have (T89, T94)."""
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
    kind = sniff_media_type(image.source.data)
    return image if kind in (None, image.media_type) else replace(image, media_type=kind)


def sniff_media_type(data: str) -> str | None:
    """The media type that the first bytes of an image speak of; None if they say nothing."""
    try:
        head = base64.b64decode(data[:_HEAD])
    except (binascii.Error, ValueError):
        return None
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def media_refusal(block: Media, target: Target) -> str | None:
    """Why a picture, a document or a recording cannot be sent; None if it can."""
    source = block.source
    if block.type not in target.user_blocks:
        return f"the model takes no {block.type}"
    if source.kind == "file_ref":
        return "the file was not read before sending"
    if isinstance(source, MediaSource) and source.kind == "file_id":
        if source.issuer not in target.issuers:
            return f"the file lies at {source.issuer or 'another provider'}"
        return None if block.type in target.file_blocks else f"{block.type} is not taken by id"
    if source.kind == "url":
        return _address_refusal(block, target)
    return _content_refusal(block, target)


def _address_refusal(block: Media, target: Target) -> str | None:
    scheme = block.source.data.partition(":")[0].lower()
    if block.type not in target.url_blocks:
        return f"{block.type} is not taken by URL"
    # A bucket of a cloud can be read by its own host only (T93).
    return None if scheme in target.url_schemes else f"a {scheme!r} address cannot be read there"


def _content_refusal(block: Media, target: Target) -> str | None:
    limit = target.max_image_chars
    if isinstance(block, ImageBlock) and limit is not None and len(block.source.data) > limit:
        # What counts is the text that is sent, a third longer than the file (T91).
        return f"an image of {len(block.source.data)} characters is more than {limit}"
    if isinstance(block, ImageBlock) and (size := size_if_larger(block, target.max_image_side)):
        return f"an image of {size[0]} x {size[1]} pixels has sides over {target.max_image_side}"
    kinds = _KINDS.get(type(block))
    taken = getattr(target, kinds) if kinds and block.source.kind != "text" else None
    if taken is not None and block.media_type not in taken and block.media_type != ANY_IMAGE_TYPE:
        return f"{block.media_type} is not taken"
    is_unreadable = block.source.kind == "base64" and not is_base64(block.source.data)
    return INVALID_BASE64 if is_unreadable else None


_KINDS: Mapping[type, str] = {
    ImageBlock: "image_media_types",
    AudioBlock: "audio_media_types",
    DocumentBlock: "document_media_types",
}


DOCUMENT_TEXT = "(See the document.)"
"""What a user says beside a document, where the target wants words and there are none (T96)."""

_FORBIDDEN = re.compile(r"[^A-Za-z0-9\s()\[\]-]+")
_BLANKS = re.compile(r"\s+")
_LONGEST = 200
_B = TypeVar("_B", bound=ContentBlock)


def name_documents(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The conversation with every document under a name of its own, and beside some words.

    What comes later changes no name that was given before (T95).
    """
    if not ledger.target.needs_document_names or not contain_documents(messages):
        return list(messages)
    names = _Names(ledger)
    return [_settled(message, names, ledger) for message in messages]


def contain_documents(messages: Sequence[Message]) -> bool:
    """Whether a document stands in messages, or in results among them."""
    return any(_documents(block) for message in messages for block in message.content)


def _documents(block: ContentBlock) -> list[DocumentBlock]:
    parts = block.content if isinstance(block, ToolResultBlock) else (block,)
    return [part for part in parts if isinstance(part, DocumentBlock)]


def _settled(message: Message, names: "_Names", ledger: LossRecorder) -> Message:
    if is_native(message, ledger.target):
        names.take(message)
        return message
    placed = [
        (index, names.named(block, message, f"$.content[{index}]"))
        for index, block in enumerate(message.content)
    ]
    if message.role is Role.USER and _is_wordless(message):
        reason = "the target wants words beside a document"
        ledger.record_synthesised(message, "text", "$.content", reason)
        placed.insert(0, (-1, TextBlock(DOCUMENT_TEXT)))
    return message if _are_same(placed, message) else with_blocks(message, placed)


def _are_same(placed: Sequence[IndexedBlock], message: Message) -> bool:
    content = message.content
    return len(placed) == len(content) and all(content[index] is block for index, block in placed)


def _is_wordless(message: Message) -> bool:
    """Whether a document is shown and nothing is said."""
    content = message.content
    is_shown = any(isinstance(block, DocumentBlock) for block in content)
    return is_shown and not any(isinstance(b, TextBlock) and b.text.strip() for b in content)


class _Names:
    """The names of the documents of one conversation, in their order."""

    def __init__(self, ledger: LossRecorder) -> None:
        self._ledger = ledger
        self._taken: set[str] = set()
        self._count = 0

    def take(self, message: Message) -> None:
        """Keep the names that a client of the target gave."""
        for block in message.content:
            for document in _documents(block):
                self._count += 1
                self._taken.add(document.name or "")

    def named(self, block: _B, message: Message, path: str) -> _B:
        """The same under a name that is taken, if it is a document or a result that holds some."""
        if isinstance(block, DocumentBlock):
            return self._document(block, message, path)
        if isinstance(block, ToolResultBlock) and _documents(block):
            inner = tuple(
                self.named(part, message, f"{path}.content[{index}]")
                for index, part in enumerate(block.content)
            )
            is_same = all(one is other for one, other in zip(inner, block.content, strict=True))
            return block if is_same else replace(block, content=inner)
        return block

    def _document(self, block: DocumentBlock, message: Message, path: str) -> DocumentBlock:
        self._count += 1
        name = self._free(document_name(block.name or "") or f"document-{self._count}")
        self._taken.add(name)
        if name == block.name:
            return block
        if block.name is None:
            reason = f"a document has a name here; this one is {name!r}"
            self._ledger.record_synthesised(message, "document", f"{path}.name", reason)
        else:
            self._ledger.record_altered(message, "document", f"{path}.name", f"it is {name!r} here")
        return replace(block, name=name)

    def _free(self, name: str) -> str:
        """The name, or the first with a number behind it that no document before has."""
        if name not in self._taken:
            return name
        endings = (f" ({number})" for number in count(2))
        numbered = (name[: _LONGEST - len(ending)].rstrip() + ending for ending in endings)
        return next(one for one in numbered if one not in self._taken)


def document_name(name: str) -> str:
    """A name in letters, digits, single blanks, hyphens and brackets; empty if nothing is left.

    >>> plain_name("Straßenplan  v1.2.pdf"), plain_name("???")
    ('Stra-enplan v1-2-pdf', '')
    """
    letters = unicodedata.normalize("NFKD", name)
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    plain = _BLANKS.sub(" ", _FORBIDDEN.sub("-", bare)).strip(" -")[:_LONGEST].rstrip()
    return plain if any(letter.isalnum() for letter in plain) else ""
