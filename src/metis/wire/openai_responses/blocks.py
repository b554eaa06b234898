"""Content parts and reasoning items of OpenAI Responses, to and from canonical blocks."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

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
from metis.wire.openai_responses.types import Part

PROTOCOL = "openai_responses"
"""The name under which messages remember how they were spelled here."""

ANY_FILE = "application/octet-stream"
"""The media type of a file that is only known by its id."""
PDF = "application/pdf"
"""What a document at a URL is taken for."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_SOUND_TYPES = {"mp3": "audio/mpeg"}
_SOUND_FORMATS = {kind: name for name, kind in _SOUND_TYPES.items()}
_LARGEST = 2**63
_KEYS_OF_TEXT = 2
_KNOWN = frozenset(Part.__struct_fields__)

# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode
read_json = msgspec.json.Decoder().decode
_make_text = raw_constructor(TextBlock)


def opaque_block(wire: Any, issuer: str) -> OpaqueBlock:
    """An item or a part that has no canonical meaning, as it came."""
    return OpaqueBlock(issuer, Raw(write_json(wire)), maybe_text(maybe_object(wire).get("type")))


def part_of(wire: Any) -> Part | None:
    """The known part in a JSON object, which may have more keys; None if there is none."""
    known = {key: value for key, value in maybe_object(wire).items() if key in _KNOWN}
    try:
        return msgspec.convert(known, Part)
    except ValueError:
        return None


def decode_part(part: Part, issuer: str) -> ContentBlock | None:
    """Our block for a part; None if it has no canonical meaning."""
    if type(part.text) is str:
        is_text = part.type in ("input_text", "output_text", "text")
        return _decode_text(part, part.text) if is_text else None
    decode = _DECODERS.get(part.type)
    return None if decode is None else decode(part, issuer)


def decode_parts(
    parts: Sequence[Any], issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]]:
    """The blocks of a list of parts, and by index those parts that say more than their block."""
    blocks: list[ContentBlock] = []
    odd: dict[str, Any] = {}
    for index, wire in enumerate(parts):
        words = _plain_text_of(wire)
        if words is not None:
            blocks.append(_make_text(words))
            continue
        part = part_of(wire)
        block = None if part is None else decode_part(part, issuer)
        if block is None:
            block = opaque_block(wire, issuer)
        elif encode_part(block) != wire:
            odd[str(index)] = wire
        blocks.append(block)
    return tuple(blocks), odd


def _plain_text_of(wire: Any) -> str | None:
    """The words of a part that is nothing but text, as most are."""
    own = maybe_object(wire)
    words = own.get("text")
    is_text = len(own) == _KEYS_OF_TEXT and own.get("type") == "input_text"
    return words if is_text and type(words) is str else None


def encode_parts(
    blocks: Sequence[ContentBlock], odd: Mapping[str, Any], issuer: str = PROTOCOL
) -> list[Any]:
    """The parts for blocks; remembered ones are used while they say the same."""
    parts: list[Any] = []
    for index, block in enumerate(blocks):
        came = odd.get(str(index)) if odd else None
        known = None if came is None else part_of(came)
        if known is not None and decode_part(known, _issuer_of(block, issuer)) == block:
            parts.append(came)
            continue
        part = encode_part(block)
        if part is not None:
            parts.append(part)
    return parts


def _issuer_of(block: ContentBlock, otherwise: str) -> str:
    source = getattr(block, "source", None)
    return getattr(source, "issuer", None) or otherwise


def encode_part(block: ContentBlock) -> Wire | Raw | None:
    """The part of a question for our block; None if it has no place there."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block)


def _decode_text(part: Part, text: str) -> TextBlock:
    if not part.annotations:
        return _make_text(text)
    return TextBlock(text, tuple(decode_citation(note) for note in part.annotations))


def decode_citation(wire: Wire) -> Citation:
    """Our citation for an annotation."""
    return Citation(
        kind=maybe_text(wire.get("type")) or "unknown",
        url=maybe_text(wire.get("url")),
        title=maybe_text(wire.get("title") or wire.get("filename")),
        start=_index_of(wire.get("start_index")),
        end=_index_of(wire.get("end_index")),
        raw=wire,
    )


def _index_of(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < _LARGEST else None


def _decode_refusal(part: Part, _: str) -> ContentBlock | None:
    return _make_text(part.refusal) if type(part.refusal) is str else None


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
        return DocumentBlock(MediaSource("file_id", part.file_id, issuer), ANY_FILE, name)
    return None


def _decode_file_data(data: str, media_type: str, name: str | None) -> ContentBlock:
    """What a file holds is told by its type."""
    match media_type.partition("/")[0]:
        case "image":
            return ImageBlock(ImageSource("base64", data), media_type)
        case "audio":
            return AudioBlock(MediaSource("base64", data), media_type)
        case "video":
            return VideoBlock(MediaSource("base64", data), media_type)
        case _:
            text = _text_in_file(data, media_type)
            if text is not None:
                return DocumentBlock(MediaSource("text", text), "text/plain", name)
            return DocumentBlock(MediaSource("base64", data), media_type, name)


def _text_in_file(data: str, media_type: str) -> str | None:
    """The text of a file that is one; all providers take text, few its many types."""
    if not media_type.startswith("text/") and media_type != "application/json":
        return None
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None


def _decode_audio(part: Part, _: str) -> ContentBlock | None:
    match part.input_audio:
        case {"data": str(data), "format": str(name)}:
            media_type = _SOUND_TYPES.get(name, f"audio/{name}")
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
    url = data_url(block.source, block.media_type)
    # Some servers want the key (T100).
    return None if url is None else {"type": "input_image", "detail": "auto", "image_url": url}


def data_url(source: MediaSource | ImageSource, media_type: str) -> str | None:
    """The URL that stands for a source; None if the target could not open it."""
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
            name = block.name or f"document.{block.media_type.partition('/')[2]}"
            data = data_url(source, block.media_type)
            return {"type": "input_file", "file_data": data, "filename": name}
        case "file_ref":
            return None


def _encode_audio(block: AudioBlock) -> Wire | None:
    if block.source.kind != "base64":
        return None
    kind = block.media_type
    name = _SOUND_FORMATS.get(kind) or kind.removeprefix("audio/").removeprefix("x-")
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


AnyThinking = ThinkingBlock | RedactedThinkingBlock
Extra = dict[str, Any]

_ENVELOPE = "metis1:"
_BETWEEN = "\n\n"


class _Envelope(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A thought of another provider, on its way through a client."""

    issuer: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None


_open = msgspec.json.Decoder(_Envelope).decode
_write = msgspec.json.Encoder().encode


def decode_reasoning_item(wire: Wire, issuer: str) -> tuple[AnyThinking, Extra] | None:
    """A thought, and what it says beyond the block; None if it cannot be told what it says."""
    sealed, own = wire.get("encrypted_content"), wire.get("id")
    if not isinstance(sealed, str | None) or not isinstance(own, str | None):
        return None
    text = readable_text(wire)
    if text is None:
        return None
    envelope = _open_envelope(sealed)
    if envelope is not None:
        block = _from_envelope(envelope, text)
    elif sealed and not text:
        block = RedactedThinkingBlock(sealed, own, issuer=issuer)
    else:
        block = ThinkingBlock(text, sealed or None, own, issuer=issuer)
    plain = encode_plain_thinking(block)
    if plain == wire:
        return block, {}
    if own is None or envelope is not None:
        return block, {"wire": wire}
    changed = {key: value for key, value in wire.items() if plain.get(key, UNSET) != value}
    return block, {"keys": changed, "absent": [key for key in plain if key not in wire]}


def readable_text(wire: Wire) -> str | None:
    """What can be read of a reasoning item; None if its parts are not such as we know."""
    content, summary = _texts(wire.get("content")), _texts(wire.get("summary"))
    if content is None or summary is None:
        return None
    return "".join(content) or _BETWEEN.join(summary)


def _texts(parts: Any) -> list[str] | None:
    if not isinstance(parts, list | None):
        return None
    texts = [maybe_object(part).get("text") for part in maybe_list(parts)]
    return [text for text in texts if isinstance(text, str)] if _are_texts(texts) else None


def _are_texts(texts: list[Any]) -> bool:
    return all(isinstance(text, str) for text in texts)


def encode_reasoning_item(block: AnyThinking, extra: Mapping[str, Any]) -> Wire:
    """The reasoning item for a thought; what was kept of it is used while it says the same."""
    whole: Wire | None = extra.get("wire")
    if whole is not None:
        found = decode_reasoning_item(whole, block.issuer or "")
        return whole if found is not None and found[0] == block else encode_plain_thinking(block)
    wire = encode_plain_thinking(block)
    if not extra:
        return wire
    kept = {k: v for k, v in wire.items() if k not in extra.get("absent", ())}
    kept |= extra.get("keys", {})
    return (
        kept
        if readable_text(kept) == _thinking_text(block) and _sealed_in(kept) == _sealed_part(block)
        else wire
    )


def encode_plain_thinking(block: AnyThinking) -> Wire:
    """The item for a thought of which nothing more is known; it always has a summary (T66)."""
    text = _thinking_text(block)
    wire: Wire = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}] if text else [],
    }
    if block.id is not None:
        wire["id"] = block.id
    sealed = _sealed_part(block)
    if sealed is not None:
        wire["encrypted_content"] = sealed
    return wire


def encode_foreign_thinking(block: AnyThinking, item_id: str) -> Wire:
    """A thought of another provider for a client to keep: readable, its seal in an envelope."""
    redacted = isinstance(block, RedactedThinkingBlock)
    envelope = _Envelope(
        issuer=block.issuer,
        signature=None if redacted else block.signature,
        data=block.data if redacted else None,
        id=block.id,
        format=block.format,
    )
    wire = encode_plain_thinking(ThinkingBlock(_thinking_text(block), id=item_id))
    if envelope.signature or envelope.data:
        wire["encrypted_content"] = _ENVELOPE + base64.b64encode(_write(envelope)).decode()
    return wire


def _open_envelope(sealed: str | None) -> _Envelope | None:
    if sealed is None or not sealed.startswith(_ENVELOPE):
        return None
    try:
        return _open(base64.b64decode(sealed.removeprefix(_ENVELOPE), validate=True))
    except (binascii.Error, ValueError):
        return None


def _from_envelope(envelope: _Envelope, text: str) -> AnyThinking:
    own, kind, issuer = envelope.id, envelope.format, envelope.issuer
    if envelope.data is not None:
        return RedactedThinkingBlock(envelope.data, own, kind, issuer)
    return ThinkingBlock(text, envelope.signature, own, kind, issuer)


def _thinking_text(block: AnyThinking) -> str:
    return block.text if isinstance(block, ThinkingBlock) else ""


def _sealed_part(block: AnyThinking) -> str | None:
    return block.signature if isinstance(block, ThinkingBlock) else block.data


def _sealed_in(wire: Wire) -> Any:
    return wire.get("encrypted_content") or None
