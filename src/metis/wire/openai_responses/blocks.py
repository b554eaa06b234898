"""Content parts and reasoning items of OpenAI Responses, to and from canonical blocks.

A decoded part is *exact* if encoding it gives the JSON that it was decoded from. The JSON of other
parts is stored in the original form of the message; a part of unknown type becomes an opaque block.

The text of a thinking block is the content of its reasoning item or, without content, the summary;
the signature is the sealed part. An item without readable text becomes redacted thinking. Clients
of this protocol receive the seals of other providers in an envelope in place of the sealed part;
adapters write and read the envelopes (T71).
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from metis.canonical.blocks import (
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
from metis.wire.openai_values import (
    ANY_FILE,
    PDF,
    decode_audio,
    decode_image_url,
    decode_index,
    encode_audio,
    file_name,
    media_url,
    parse_data_url,
)
from metis.wire.original_form import aligned, write_sorted

PROTOCOL = "openai_responses"
"""The name under which messages store their original form in this protocol."""

AnyThinking = ThinkingBlock | RedactedThinkingBlock
OriginalForm = dict[str, Any]

_PARAGRAPH = "\n\n"

# Keys are sorted, so that the bytes do not change when a history is stored and loaded. Otherwise
# the prompt cache misses without an error (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode
read_json = msgspec.json.Decoder().decode
_new_text = raw_constructor(TextBlock)


def opaque_block(wire: Any, issuer: str) -> OpaqueBlock:
    """Return an opaque block with the JSON of an item or part that has no canonical meaning."""
    return OpaqueBlock(issuer, Raw(write_json(wire)), maybe_text(maybe_object(wire).get("type")))


def decode_part(wire: Any, issuer: str) -> ContentBlock | None:
    """Decode a part; None if it has no canonical meaning."""
    part = maybe_object(wire)
    decode = _DECODERS.get(maybe_text(part.get("type")) or "")
    return None if decode is None else decode(part, issuer)


def decode_parts(
    parts: Sequence[Any], issuer: str
) -> tuple[tuple[ContentBlock, ...], dict[str, Any]]:
    """Decode a list of parts into blocks and, by index, the parts that are not exact."""
    blocks: list[ContentBlock] = []
    original_parts: dict[str, Any] = {}
    for index, part in enumerate(parts):
        block = decode_part(part, issuer)
        if block is None:
            block = opaque_block(part, issuer)
        elif encode_part(block) != part:
            original_parts[str(index)] = part
        blocks.append(block)
    return tuple(blocks), original_parts


def encode_parts(
    blocks: Sequence[ContentBlock], original_parts: Mapping[str, Any], issuer: str = PROTOCOL
) -> list[Any]:
    """Encode blocks as parts; an original part is used if it still decodes to the same block."""
    by_new_index: dict[int, Any] = {}
    if original_parts:
        issuer = next(filter(None, map(_issuer_of, blocks)), issuer)
        stored = {
            int(index): write_sorted(decode_part(part, issuer))
            for index, part in original_parts.items()
        }
        new_indexes = aligned(stored, [write_sorted(block) for block in blocks])
        by_new_index = {new: original_parts[str(old)] for old, new in new_indexes.items()}
    parts = (by_new_index.get(index) or encode_part(block) for index, block in enumerate(blocks))
    return [part for part in parts if part is not None]


def _issuer_of(block: ContentBlock) -> str | None:
    source = getattr(block, "source", None)
    return getattr(source, "issuer", None)


def encode_part(block: ContentBlock) -> Wire | Raw | None:
    """Encode a block as a part of an input message; None if the protocol has no part for it."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block)


def _decode_text(part: Wire, _: str) -> ContentBlock | None:
    text, annotations = part.get("text"), part.get("annotations")
    notes = maybe_list(annotations)
    if type(text) is not str or (annotations and not notes):
        return None
    if not notes:
        return _new_text(text)
    if not all(isinstance(note, dict) for note in notes):
        return None
    return TextBlock(text, tuple(map(_decode_citation, notes)))


def _decode_citation(wire: Wire) -> Citation:
    return Citation(
        kind=maybe_text(wire.get("type")) or "unknown",
        url=maybe_text(wire.get("url")),
        title=maybe_text(wire.get("title") or wire.get("filename")),
        start=decode_index(wire.get("start_index")),
        end=decode_index(wire.get("end_index")),
        raw=wire,
    )


def _decode_refusal(part: Wire, _: str) -> ContentBlock | None:
    text = part.get("refusal")
    return _new_text(text) if type(text) is str else None


def _decode_image(part: Wire, _: str) -> ContentBlock | None:
    url = part.get("image_url")
    return decode_image_url(url) if isinstance(url, str) else None


def _decode_file(part: Wire, issuer: str) -> ContentBlock | None:
    """Decode a file part: inline data, a URL or the id of an uploaded file."""
    name = maybe_text(part.get("filename"))
    match part:
        case {"file_data": str(data)}:
            inline = parse_data_url(data)
            if inline is None:
                return DocumentBlock(MediaSource("base64", data), PDF, name)
            return _decode_file_data(*inline, name)
        case {"file_url": str(url)}:
            return DocumentBlock(MediaSource("url", url), PDF, name)
        case {"file_id": str(file_id)}:
            # Only the provider that stores a file can open it by its id.
            return DocumentBlock(MediaSource("file_id", file_id, issuer), ANY_FILE, name)
        case _:
            return None


def _decode_file_data(data: str, media_type: str, name: str | None) -> ContentBlock:
    """Return a block of the type that fits the media type of a file."""
    match media_type.partition("/")[0]:
        case "image":
            return ImageBlock(ImageSource("base64", data), media_type)
        case "audio":
            return AudioBlock(MediaSource("base64", data), media_type)
        case "video":
            return VideoBlock(MediaSource("base64", data), media_type)
        case _:
            # All providers accept text, but few accept the media types of text files.
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


def _decode_audio(part: Wire, _: str) -> ContentBlock | None:
    return decode_audio(part)


_DECODERS: Mapping[str, Callable[[Wire, str], ContentBlock | None]] = {
    "input_text": _decode_text,
    "output_text": _decode_text,
    "text": _decode_text,
    "refusal": _decode_refusal,
    "input_image": _decode_image,
    "input_file": _decode_file,
    "input_audio": _decode_audio,
}


def _encode_text(block: TextBlock) -> Wire:
    return {"type": "input_text", "text": block.text}


def _encode_image(block: ImageBlock) -> Wire | None:
    url = media_url(block.source, block.media_type)
    # `detail` is optional for OpenAI, but other servers of the protocol require it (T100).
    return None if url is None else {"type": "input_image", "detail": "auto", "image_url": url}


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
            data = media_url(source, block.media_type)
            return {"type": "input_file", "file_data": data, "filename": file_name(block)}
        case "file_ref":
            return None


def _encode_opaque(block: OpaqueBlock) -> Raw:
    return block.raw


_ENCODERS: Mapping[type, Callable[[Any], Wire | Raw | None]] = {
    TextBlock: _encode_text,
    ImageBlock: _encode_image,
    DocumentBlock: _encode_document,
    AudioBlock: encode_audio,
    OpaqueBlock: _encode_opaque,
}


def decode_reasoning_item(wire: Wire, issuer: str) -> tuple[AnyThinking, OriginalForm] | None:
    """Decode a reasoning item into a block and its original form; None if it is malformed."""
    # Items of servers other than OpenAI may lack the id, the sealed part, or both.
    sealed, item_id = wire.get("encrypted_content"), wire.get("id")
    if not isinstance(sealed, str | None) or not isinstance(item_id, str | None):
        return None
    text = _readable_text(wire)
    if text is None:
        return None
    if sealed and not text:
        block = RedactedThinkingBlock(sealed, item_id, issuer=issuer)
    else:
        block = ThinkingBlock(text, sealed or None, item_id, issuer=issuer)
    plain = encode_plain_thinking(block)
    if plain == wire:
        return block, {}
    if item_id is None:
        # Without an id the keys cannot be merged by item, so that the whole item is stored.
        return block, {"wire": wire}
    changed = {key: value for key, value in wire.items() if plain.get(key, UNSET) != value}
    return block, {"keys": changed, "absent": [key for key in plain if key not in wire]}


def _readable_text(wire: Wire) -> str | None:
    """Return the text of a reasoning item; None if one of its parts has no text."""
    content, summary = _texts(wire.get("content")), _texts(wire.get("summary"))
    if content is None or summary is None:
        return None
    # Servers of gpt-oss send the full reasoning as content; OpenAI sends only summaries.
    return "".join(content) or _PARAGRAPH.join(summary)


def _texts(parts: Any) -> list[str] | None:
    if not isinstance(parts, list | None):
        return None
    values = [maybe_object(part).get("text") for part in maybe_list(parts)]
    texts = [value for value in values if isinstance(value, str)]
    return texts if len(texts) == len(values) else None


def encode_reasoning_item(block: AnyThinking, form: Mapping[str, Any]) -> Wire:
    """Encode thinking as a reasoning item; its original form is used if it is unchanged."""
    original: Wire | None = form.get("wire")
    if original is not None:
        decoded = decode_reasoning_item(original, block.issuer or "")
        is_unchanged = decoded is not None and decoded[0] == block
        return original if is_unchanged else encode_plain_thinking(block)
    plain = encode_plain_thinking(block)
    if not form:
        return plain
    wire = {key: value for key, value in plain.items() if key not in form.get("absent", ())}
    wire |= form.get("keys", {})
    sealed = wire.get("encrypted_content") or None
    is_unchanged = _readable_text(wire) == _text_of(block) and sealed == _sealed_part(block)
    return wire if is_unchanged else plain


def encode_plain_thinking(block: AnyThinking) -> Wire:
    """Encode thinking without an original form as a reasoning item."""
    text = _text_of(block)
    wire: Wire = {
        "type": "reasoning",
        # OpenAI rejects an item without the key: 400, `missing required field summary` (T66).
        "summary": [{"type": "summary_text", "text": text}] if text else [],
    }
    if block.id is not None:
        wire["id"] = block.id
    sealed = _sealed_part(block)
    if sealed is not None:
        wire["encrypted_content"] = sealed
    return wire


def encode_foreign_thinking(block: AnyThinking, item_id: str) -> Wire:
    """Encode another provider's thinking for a client; its seal must already be an envelope."""
    return encode_plain_thinking(replace(block, id=item_id))


def _text_of(block: AnyThinking) -> str:
    return block.text if isinstance(block, ThinkingBlock) else ""


def _sealed_part(block: AnyThinking) -> str | None:
    return block.signature if isinstance(block, ThinkingBlock) else block.data
