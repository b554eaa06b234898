"""Content parts and reasoning items of OpenAI Responses, to and from canonical blocks.

A decoded part is *exact* if encoding it gives the JSON that was read. A part that is not exact
is stored in its original form, and one without a canonical meaning becomes an opaque block.

Of a reasoning item the readable text is its content, or else its summary; the sealed part is the
signature. An item without readable text is redacted thinking. A client of this protocol can keep
the thinking of another provider for us: it travels in an envelope in place of the sealed part, and
is opened when it comes back (T71).
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    AudioBlock,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    VideoBlock,
)
from metis.canonical.value import raw_constructor
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

PROTOCOL = "openai_responses"
"""The name under which messages store their original form in this protocol."""

ANY_FILE = "application/octet-stream"
"""The media type of a file that is only known by its id."""
PDF = "application/pdf"
"""The media type that a document at a URL is assumed to have."""

AnyThinking = ThinkingBlock | RedactedThinkingBlock
OriginalForm = dict[str, Any]

_Text = str | UnsetType
_OptionalText = str | None | UnsetType
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
# The API names the file format, not the media type; it takes `wav` and `mp3` only (T99).
_AUDIO_TYPES = {"mp3": "audio/mpeg"}
_AUDIO_FORMATS = {media_type: name for name, media_type in _AUDIO_TYPES.items()}
_MAX_INDEX = 2**63
_TEXT_KEY_COUNT = 2
_ENVELOPE_PREFIX = "metis1:"
_PARAGRAPH = "\n\n"

# Sorted keys: a history gives the same bytes before and after it was stored. Otherwise the prompt
# cache misses without an error (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode
read_json = msgspec.json.Decoder().decode
_new_text = raw_constructor(TextBlock)


class Part(Struct, gc=False, forbid_unknown_fields=True):
    """A part of a message, of thinking or of a tool output."""

    type: str
    text: _Text = UNSET
    annotations: list[dict[str, Any]] | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    refusal: _Text = UNSET
    image_url: _OptionalText = UNSET
    detail: _OptionalText = UNSET
    file_id: _OptionalText = UNSET
    file_data: _OptionalText = UNSET
    file_url: _OptionalText = UNSET
    filename: _OptionalText = UNSET
    input_audio: dict[str, Any] | UnsetType = UNSET


_PART_KEYS = frozenset(Part.__struct_fields__)


def opaque_block(wire: Any, issuer: str) -> OpaqueBlock:
    """Return a block that carries an item or a part without a canonical meaning as it was sent."""
    return OpaqueBlock(issuer, Raw(write_json(wire)), maybe_text(maybe_object(wire).get("type")))


def read_part(wire: Any) -> Part | None:
    """Return a part by its known keys; it may have others. None if their types do not fit."""
    keys = {key: value for key, value in maybe_object(wire).items() if key in _PART_KEYS}
    try:
        return msgspec.convert(keys, Part)
    except ValueError:
        return None


def decode_part(part: Part, issuer: str) -> ContentBlock | None:
    """Decode a part; None if it has no canonical meaning."""
    if type(part.text) is str:
        is_text = part.type in ("input_text", "output_text", "text")
        return _decode_text(part, part.text) if is_text else None
    decode = _DECODERS.get(part.type)
    return None if decode is None else decode(part, issuer)


def decode_parts(
    parts: Sequence[Any], issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]]:
    """Decode a list of parts; also return, by index, the parts that are not exact."""
    blocks: list[ContentBlock] = []
    original_parts: dict[str, Any] = {}
    for index, wire in enumerate(parts):
        text = _plain_text_of(wire)
        if text is not None:
            blocks.append(_new_text(text))
            continue
        part = read_part(wire)
        block = None if part is None else decode_part(part, issuer)
        if block is None:
            block = opaque_block(wire, issuer)
        elif encode_part(block) != wire:
            original_parts[str(index)] = wire
        blocks.append(block)
    return tuple(blocks), original_parts


def _plain_text_of(wire: Any) -> str | None:
    """Return the text of a part that has nothing else: most have not, and need no Struct."""
    part = maybe_object(wire)
    text = part.get("text")
    is_text = len(part) == _TEXT_KEY_COUNT and part.get("type") == "input_text"
    return text if is_text and type(text) is str else None


def encode_parts(
    blocks: Sequence[ContentBlock], original_parts: Mapping[str, Any], issuer: str = PROTOCOL
) -> list[Any]:
    """Encode blocks as parts; an original part is used while it decodes to the same block."""
    parts: list[Any] = []
    for index, block in enumerate(blocks):
        original = original_parts.get(str(index)) if original_parts else None
        part = None if original is None else read_part(original)
        if part is not None and decode_part(part, _issuer_of(block, issuer)) == block:
            parts.append(original)
            continue
        encoded = encode_part(block)
        if encoded is not None:
            parts.append(encoded)
    return parts


def _issuer_of(block: ContentBlock, default: str) -> str:
    source = getattr(block, "source", None)
    return getattr(source, "issuer", None) or default


def encode_part(block: ContentBlock) -> Wire | Raw | None:
    """Encode a block as a part of an input message; None if the protocol has no part for it."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block)


def _decode_text(part: Part, text: str) -> TextBlock:
    if not part.annotations:
        return _new_text(text)
    return TextBlock(text, tuple(map(_decode_citation, part.annotations)))


def _decode_citation(wire: Wire) -> Citation:
    return Citation(
        kind=maybe_text(wire.get("type")) or "unknown",
        url=maybe_text(wire.get("url")),
        title=maybe_text(wire.get("title") or wire.get("filename")),
        start=_decode_index(wire.get("start_index")),
        end=_decode_index(wire.get("end_index")),
        raw=wire,
    )


def _decode_index(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < _MAX_INDEX else None


def _decode_refusal(part: Part, _: str) -> ContentBlock | None:
    return _new_text(part.refusal) if type(part.refusal) is str else None


def _decode_image(part: Part, _: str) -> ContentBlock | None:
    if not isinstance(part.image_url, str):
        return None
    inline = _DATA_URL.fullmatch(part.image_url)
    if inline is None:
        return ImageBlock(ImageSource("url", part.image_url), ANY_IMAGE_TYPE)
    return ImageBlock(ImageSource("base64", inline[2]), inline[1])


def _decode_file(part: Part, issuer: str) -> ContentBlock | None:
    name = part.filename if isinstance(part.filename, str) else None
    if isinstance(part.file_data, str):
        inline = _DATA_URL.fullmatch(part.file_data)
        if inline is None:
            return DocumentBlock(MediaSource("base64", part.file_data), PDF, name)
        return _decode_file_data(inline[2], inline[1], name)
    if isinstance(part.file_url, str):
        return DocumentBlock(MediaSource("url", part.file_url), PDF, name)
    if isinstance(part.file_id, str):
        # Only the provider that stores a file can open it by its id.
        return DocumentBlock(MediaSource("file_id", part.file_id, issuer), ANY_FILE, name)
    return None


def _decode_file_data(data: str, media_type: str, name: str | None) -> ContentBlock:
    """Return the block that fits the media type of a file."""
    match media_type.partition("/")[0]:
        case "image":
            return ImageBlock(ImageSource("base64", data), media_type)
        case "audio":
            return AudioBlock(MediaSource("base64", data), media_type)
        case "video":
            return VideoBlock(MediaSource("base64", data), media_type)
        case _:
            # All providers accept a text, few of them the many media types of text files.
            text = _text_in_file(data, media_type)
            if text is not None:
                return DocumentBlock(MediaSource("text", text), "text/plain", name)
            return DocumentBlock(MediaSource("base64", data), media_type, name)


def _text_in_file(data: str, media_type: str) -> str | None:
    if not media_type.startswith("text/") and media_type != "application/json":
        return None
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None


def _decode_audio(part: Part, _: str) -> ContentBlock | None:
    match part.input_audio:
        case {"data": str(data), "format": str(name)}:
            media_type = _AUDIO_TYPES.get(name, f"audio/{name}")
            return AudioBlock(MediaSource("base64", data), media_type)
        case _:
            return None


_DECODERS: Mapping[str, Callable[[Part, str], ContentBlock | None]] = {
    "refusal": _decode_refusal,
    "input_image": _decode_image,
    "input_file": _decode_file,
    "input_audio": _decode_audio,
}


def _encode_text(block: TextBlock) -> Wire:
    return {"type": "input_text", "text": block.text}


def _encode_image(block: ImageBlock) -> Wire | None:
    url = media_url(block.source, block.media_type)
    # OpenAI lets `detail` be left out; some other servers of the protocol want the key (T100).
    return None if url is None else {"type": "input_image", "detail": "auto", "image_url": url}


def media_url(source: MediaSource | ImageSource, media_type: str) -> str | None:
    """Return the URL for a source; None if the provider could not open it."""
    if source.kind == "base64":
        return f"data:{media_type};base64,{source.data}"
    return source.data if source.kind == "url" else None


def _encode_document(block: DocumentBlock) -> Wire | None:
    source = block.source
    match source.kind:
        case "text":
            return {"type": "input_text", "text": source.data}
        case "file_id":
            return {"type": "input_file", "file_id": source.data}
        case "url":
            return {"type": "input_file", "file_url": source.data}
        case "base64":
            # As in Chat Completions, OpenAI refuses `file_data` without a name.
            name = block.name or f"document.{block.media_type.partition('/')[2]}"
            data = media_url(source, block.media_type)
            return {"type": "input_file", "file_data": data, "filename": name}
        case "file_ref":
            return None


def _encode_audio(block: AudioBlock) -> Wire | None:
    if block.source.kind != "base64":
        return None
    kind = block.media_type
    name = _AUDIO_FORMATS.get(kind) or kind.removeprefix("audio/").removeprefix("x-")
    return {"type": "input_audio", "input_audio": {"data": block.source.data, "format": name}}


def _encode_opaque(block: OpaqueBlock) -> Raw:
    return block.raw


_ENCODERS: Mapping[type, Callable[[Any], Wire | Raw | None]] = {
    TextBlock: _encode_text,
    ImageBlock: _encode_image,
    DocumentBlock: _encode_document,
    AudioBlock: _encode_audio,
    OpaqueBlock: _encode_opaque,
}


class _Envelope(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The sealed part of another provider's thinking, which a client keeps for us."""

    issuer: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None


_read_envelope = msgspec.json.Decoder(_Envelope).decode
_write_envelope = msgspec.json.Encoder().encode


def decode_reasoning_item(wire: Wire, issuer: str) -> tuple[AnyThinking, OriginalForm] | None:
    """Decode a reasoning item to a block and its original form; None if its form is unknown."""
    sealed, item_id = wire.get("encrypted_content"), wire.get("id")
    if not isinstance(sealed, str | None) or not isinstance(item_id, str | None):
        return None
    text = _readable_text(wire)
    if text is None:
        return None
    envelope = _open_envelope(sealed)
    if envelope is not None:
        block = _thinking_of(envelope, text)
    elif sealed and not text:
        block = RedactedThinkingBlock(sealed, item_id, issuer=issuer)
    else:
        block = ThinkingBlock(text, sealed or None, item_id, issuer=issuer)
    plain = encode_plain_thinking(block)
    if plain == wire:
        return block, {}
    if item_id is None or envelope is not None:
        # The block has no id, or that of another provider: the item is stored as it is.
        return block, {"wire": wire}
    changed = {key: value for key, value in wire.items() if plain.get(key, UNSET) != value}
    return block, {"keys": changed, "absent": [key for key in plain if key not in wire]}


def _readable_text(wire: Wire) -> str | None:
    """Return the text of a reasoning item; None if its parts are of unknown form."""
    content, summary = _texts(wire.get("content")), _texts(wire.get("summary"))
    if content is None or summary is None:
        return None
    # gpt-oss servers send the reasoning itself as content; OpenAI sends summaries only.
    return "".join(content) or _PARAGRAPH.join(summary)


def _texts(parts: Any) -> list[str] | None:
    if not isinstance(parts, list | None):
        return None
    values = [maybe_object(part).get("text") for part in maybe_list(parts)]
    texts = [value for value in values if isinstance(value, str)]
    return texts if len(texts) == len(values) else None


def encode_reasoning_item(block: AnyThinking, form: Mapping[str, Any]) -> Wire:
    """Encode thinking as a reasoning item; its original form is used while it means the same."""
    original: Wire | None = form.get("wire")
    if original is not None:
        decoded = decode_reasoning_item(original, block.issuer or "")
        is_same = decoded is not None and decoded[0] == block
        return original if is_same else encode_plain_thinking(block)
    plain = encode_plain_thinking(block)
    if not form:
        return plain
    wire = {key: value for key, value in plain.items() if key not in form.get("absent", ())}
    wire |= form.get("keys", {})
    sealed = wire.get("encrypted_content") or None
    is_same = _readable_text(wire) == _text_of(block) and sealed == _sealed_part(block)
    return wire if is_same else plain


def encode_plain_thinking(block: AnyThinking) -> Wire:
    """Encode thinking without an original form as a reasoning item."""
    text = _text_of(block)
    wire: Wire = {
        "type": "reasoning",
        # OpenAI answers 400 `missing required field summary` without the key (T66).
        "summary": [{"type": "summary_text", "text": text}] if text else [],
    }
    if block.id is not None:
        wire["id"] = block.id
    sealed = _sealed_part(block)
    if sealed is not None:
        wire["encrypted_content"] = sealed
    return wire


def encode_foreign_thinking(block: AnyThinking, item_id: str) -> Wire:
    """Encode another provider's thinking for a client: its text, and an envelope with the rest."""
    is_redacted = isinstance(block, RedactedThinkingBlock)
    envelope = _Envelope(
        issuer=block.issuer,
        signature=None if is_redacted else block.signature,
        data=block.data if is_redacted else None,
        id=block.id,
        format=block.format,
    )
    wire = encode_plain_thinking(ThinkingBlock(_text_of(block), id=item_id))
    if envelope.signature or envelope.data:
        data = base64.b64encode(_write_envelope(envelope)).decode()
        wire["encrypted_content"] = _ENVELOPE_PREFIX + data
    return wire


def _open_envelope(sealed: str | None) -> _Envelope | None:
    if sealed is None or not sealed.startswith(_ENVELOPE_PREFIX):
        return None
    try:
        data = base64.b64decode(sealed.removeprefix(_ENVELOPE_PREFIX), validate=True)
        return _read_envelope(data)
    except (binascii.Error, ValueError):
        return None


def _thinking_of(envelope: _Envelope, text: str) -> AnyThinking:
    rest = envelope.id, envelope.format, envelope.issuer
    if envelope.data is not None:
        return RedactedThinkingBlock(envelope.data, *rest)
    return ThinkingBlock(text, envelope.signature, *rest)


def _text_of(block: AnyThinking) -> str:
    return block.text if isinstance(block, ThinkingBlock) else ""


def _sealed_part(block: AnyThinking) -> str | None:
    return block.signature if isinstance(block, ThinkingBlock) else block.data
