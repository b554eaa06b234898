"""Parts of Gemini, to and from canonical blocks: text, calls, results and media.

Any part may carry a signature, which must be sent back on the same part. Its canonical form is a
thinking block without text: directly before the block that carries it (`SIGNATURE_ON_NEXT`), or in
place of an empty text part (`ALONE`). As a sealed block it is sent only to its issuer; for other
providers it is a loss.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import msgspec
from msgspec import Raw

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.schema.subset import describe
from metis.canonical.value import raw_constructor
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.wire.gemini.key_names import (
    PROTOCOL,
    plain_base64,
    with_camel_keys,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.seals import is_envelope

Media = ImageBlock | DocumentBlock | AudioBlock | VideoBlock | ArtifactBlock
"""The blocks that contain media."""

_IMAGES: Mapping[str, str] = {
    "gif": "image/gif",
    "heic": "image/heic",
    "heif": "image/heif",
    "png": "image/png",
    "webp": "image/webp",
}
# URIs that only Google can read: buckets, and files of the Files API.
_PROVIDER_FILES = ("gs://", "https://generativelanguage.googleapis.com/", "projects/", "files/")


def _decode_media(part: Wire, issuer: str, *, is_generated: bool) -> ContentBlock | None:
    """Decode a part with media; None if the part has another form.

    With `is_generated`, the model has generated the media.
    """
    match part:
        case {"inlineData": {"mimeType": str(media_type), "data": str(data)}}:
            # Other providers reject base64 of a text file, so that it becomes a text document.
            text = None if is_generated else _plain_text(media_type, data)
            if text is not None:
                return DocumentBlock(MediaSource("text", text), media_type)
            source = MediaSource("base64", plain_base64(data))
        case {"fileData": {"mimeType": str(media_type), "fileUri": str(uri)}}:
            is_file = uri.startswith(_PROVIDER_FILES)
            source = MediaSource("file_id", uri, issuer) if is_file else MediaSource("url", uri)
        case _:
            return None
    return ArtifactBlock(source, media_type) if is_generated else _media_block(source, media_type)


def _media_block(source: MediaSource, media_type: str) -> ContentBlock | None:
    match media_type.partition("/")[0], source.kind:
        case "image", "base64" | "url" as kind:
            return ImageBlock(ImageSource(kind, source.data), media_type)
        case "image", _:
            return None  # images have no source kind for a provider's file: an opaque block
        case "audio", _:
            return AudioBlock(source, media_type)
        case "video", _:
            return VideoBlock(source, media_type)
        case _:
            return DocumentBlock(source, media_type)


def _plain_text(media_type: str, data: str) -> str | None:
    """Return the text of a base64 text file (G-010); None for other types and invalid data."""
    if not media_type.startswith(("text/", "application/json")):
        return None
    try:
        return base64.b64decode(plain_base64(data), validate=True).decode()
    except ValueError:
        return None


def _encode_media(block: Media) -> Wire | None:
    """Encode a block with media; None for a reference to a local file, which has no data."""
    source, media_type = block.source, block.media_type
    match source.kind:
        case "base64":
            return {"inlineData": {"mimeType": media_type, "data": source.data}}
        case "url" | "file_id":
            if media_type == ANY_IMAGE_TYPE:
                media_type = _image_type_of(source.data)
            return {"fileData": {"mimeType": media_type, "fileUri": source.data}}
        # Gemini has no part for text documents, so that the text becomes a text part.
        case "text":
            return {"text": source.data}
        case "file_ref":
            return None


def _image_type_of(url: str) -> str:
    """Guess the media type of an image from its URL, because Gemini rejects `image/*`."""
    return _IMAGES.get(url.partition("?")[0].rpartition(".")[2].lower(), "image/jpeg")


_write_sorted = msgspec.json.Encoder(order="deterministic").encode
_make_text = raw_constructor(TextBlock)
_TEXT_KEYS = ("output", "result")
# A single text is encoded as a string, several as a list.
_MIN_TEXTS = 2


def decode_result_text(response: Any) -> tuple[tuple[ContentBlock, ...], bool]:
    """Decode the `response` object of a result into texts, and whether it is an error.

    Gemini documents two keys, `output` and `error`; any other object becomes JSON text.
    """
    wire: Wire = response
    if type(wire) is dict and len(wire) == 1:
        ((key, value),) = wire.items()
        if key == "error":
            return (_make_text(value if type(value) is str else _text(value)),), True
        if key in _TEXT_KEYS and type(value) is str:
            return (_make_text(value),), False
        if key == "output" and _are_texts(value):
            return tuple(_make_text(text) for text in value), False
    if not response:
        return (), False
    return (_make_text(_text(response)),), False


def _are_texts(value: Any) -> bool:
    return (
        type(value) is list
        and len(cast("list[Any]", value)) >= _MIN_TEXTS
        and all(type(text) is str for text in cast("list[Any]", value))
    )


def _text(value: Any) -> str:
    # Keys are sorted, so that the text does not change when the object is stored and loaded.
    return _write_sorted(value).decode()


def encode_result_object(result: ToolResultBlock) -> Wire:
    """Encode the texts of a result as a `response` object."""
    texts = [text for block in result.content if (text := _text_of(block)) is not None]
    # Gemini has no flag for a failed call, but documents this key.
    if result.is_error:
        return {"error": "\n".join(texts)}
    if len(texts) == 1:
        return {"output": texts[0]}
    return {"output": texts} if texts else {}


def _text_of(block: ContentBlock) -> str | None:
    """Return the text of a text block or a text document; None for other blocks."""
    if type(block) is TextBlock:
        return block.text
    if isinstance(block, DocumentBlock) and block.source.kind == "text":
        return block.source.data
    return None


def has_same_text(response: Any, result: ToolResultBlock) -> bool:
    """Whether a stored `response` object has the same texts as a result."""
    blocks, is_error = decode_result_text(response)
    texts, expected = (
        [block.text for block in content if isinstance(block, TextBlock)]
        for content in (blocks, result.content)
    )
    return is_error == result.is_error and texts == expected


def _decode_result_media(wire: Wire, issuer: str) -> tuple[ContentBlock, ...]:
    return tuple(
        _decode_media(maybe_object(part), issuer, is_generated=False)
        or OpaqueBlock(issuer, msgspec.Raw(_write_sorted(part)), PROTOCOL)
        for part in maybe_list(wire.get("parts"))
    )


def _encode_result_media(result: ToolResultBlock) -> list[Any]:
    parts: list[Any] = []
    for block in result.content:
        if isinstance(block, OpaqueBlock):
            parts.append(block.raw)
        elif isinstance(block, Media) and block.source.kind != "text":
            part = _encode_media(block)
            if part is not None:
                parts.append(part)
    return parts


ALONE = "signature_alone"
"""The format of a signature that an empty text part carried."""
WIRE_ID_PREFIX = "call_"
"""The prefix of wire ids that are derived from tool_use_ids."""

_CALL_KEYS, _CALL_KEYS_WITH_ID = 2, 3
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode

_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_thinking = raw_constructor(ThinkingBlock)


class CallIdSource(Protocol):
    """Assigns tool_use_ids to calls and results, whose wire ids may be missing."""

    def id_of_call(self, name: str, wire_id: str | None) -> str:
        """Return the tool_use_id of a call."""
        ...

    def id_of_result(self, name: str, wire_id: str | None) -> str:
        """Return the tool_use_id of the call that a result belongs to."""
        ...


class PartDecoder:
    """Decodes the parts of messages of the model (`is_model`) or of the user."""

    def __init__(self, issuer: str, ids: CallIdSource, *, is_model: bool) -> None:
        self._issuer = issuer
        self._ids = ids
        self._is_model = is_model

    def decode(self, parts: list[Any], blocks: list[ContentBlock]) -> bool:
        """Append the blocks of parts; return whether all parts are as metis would encode them."""
        is_plain = True
        for part in parts:
            wire: Wire = part
            if type(wire) is not dict:
                blocks.append(self._opaque(part))
                is_plain = False
                continue
            text = wire.get("text")
            if type(text) is str and len(wire) == 1:
                blocks.append(_make_text(text))
            elif not self._decode_plain_call(wire, blocks):
                is_plain = False
                self._decode_any(wire, blocks)
        return is_plain

    def _decode_plain_call(self, part: Wire, blocks: list[ContentBlock]) -> bool:
        """Append a call that is as metis would encode it; return False for any other part."""
        wire: Wire = part.get("functionCall", ())
        if type(wire) is not dict or not self._is_model:
            return False
        name, wire_id = wire.get("name"), wire.get("id")
        arguments: Wire = wire.get("args", ())
        if type(name) is not str or type(arguments) is not dict:
            return False
        if len(wire) != (_CALL_KEYS_WITH_ID if wire_id else _CALL_KEYS):
            return False
        signature = part.get("thoughtSignature")
        if len(part) != (2 if signature else 1) or type(signature) not in (str, type(None)):
            return False
        if wire_id is not None and type(wire_id) is not str:
            return False
        if signature:
            blocks.append(_make_thinking("", signature, None, SIGNATURE_ON_NEXT, self._issuer))
        tool_use_id = self._ids.id_of_call(name, wire_id)
        blocks.append(_make_call(tool_use_id, name, arguments))
        return True

    def _decode_any(self, wire: Wire, blocks: list[ContentBlock]) -> None:
        """Append the block of a part in any form, after a block for its signature if it has one."""
        part = with_camel_keys(wire)
        signature = part.get("thoughtSignature")
        signature = signature if isinstance(signature, str) and self._is_model else None
        # The last chunk of a Gemini stream often has a signature on an empty text.
        if signature and part.get("text") == "" and part.get("thought") is not True:
            blocks.append(_make_thinking("", signature, None, ALONE, self._issuer))
            return
        block = self._decode(part, signature)
        if block is None:
            blocks.append(self._opaque(wire))
            return
        if signature and type(block) is not ThinkingBlock:
            blocks.append(_make_thinking("", signature, None, SIGNATURE_ON_NEXT, self._issuer))
        blocks.append(block)

    def _decode(self, part: Wire, signature: str | None) -> ContentBlock | None:
        text = part.get("text")
        if isinstance(text, str):
            if part.get("thought") is True and self._is_model:
                return _make_thinking(text, signature, None, None, self._issuer)
            return _make_text(text)
        if "functionCall" in part:
            return self._decode_call(maybe_object(part["functionCall"])) if self._is_model else None
        if "functionResponse" in part:
            return self._decode_result(maybe_object(part["functionResponse"]))
        return _decode_media(part, self._issuer, is_generated=self._is_model)

    def _decode_call(self, call: Wire) -> ContentBlock | None:
        name, arguments = call.get("name"), call.get("args")
        if not isinstance(name, str):
            return None
        tool_use_id = self._ids.id_of_call(name, maybe_text(call.get("id")) or None)
        if isinstance(arguments, dict | None):
            return _make_call(tool_use_id, name, cast("Wire", arguments or {}))
        # Arguments that are not an object are stored as invalid, so that the call is not run.
        fault = InvalidInput(_write(arguments).decode(), f"not an object but {describe(arguments)}")
        return ToolUseBlock(tool_use_id, name, {}, fault)

    def _decode_result(self, result: Wire) -> ContentBlock | None:
        name = result.get("name")
        if self._is_model or not isinstance(name, str):
            return None
        tool_use_id = self._ids.id_of_result(name, maybe_text(result.get("id")) or None)
        texts, is_error = decode_result_text(result.get("response"))
        media = _decode_result_media(result, self._issuer) if "parts" in result else ()
        return _make_result(tool_use_id, (*texts, *media), is_error=is_error)

    def _opaque(self, part: Any) -> OpaqueBlock:
        kind = next((key for key in maybe_object(part) if key != "thoughtSignature"), None)
        return OpaqueBlock(self._issuer, Raw(_write(part)), kind)


def is_result(part: Any) -> bool:
    """Whether a part is the result of a call."""
    wire = maybe_object(part)
    result = wire.get("functionResponse") or wire.get("function_response")
    return isinstance(maybe_object(result).get("name"), str)


class PartEncoder:
    """Encodes blocks as parts, with the wire ids and tool names of calls."""

    def __init__(self, wire_id: Callable[[str], str | None], tool_names: Mapping[str, str]) -> None:
        self._wire_id = wire_id
        self._tool_names = tool_names

    def encode(self, content: tuple[ContentBlock, ...]) -> list[Any]:
        """Encode blocks that were projected for this protocol."""
        parts: list[Any] = []
        signature: str | None = None
        belongs_to_call = False
        for index, block in enumerate(content):
            if type(block) is ThinkingBlock and block.format == SIGNATURE_ON_NEXT:
                signature = block.signature
                belongs_to_call = _precedes_call(content[index + 1 :])
                continue
            if signature is not None and belongs_to_call and type(block) is TextBlock:
                # An edit inserted the text. Gemini rejects a call without its signature, so that
                # the signature is not used for the text.
                parts.append({"text": block.text})
                continue
            part = {"text": block.text} if type(block) is TextBlock else self._encode(block)
            if part is None:
                continue
            if type(block) is ThinkingBlock and block.text and is_envelope(block.signature):
                # Two parts as in a stream, where the envelope is sent after the text.
                parts.append({"text": block.text, "thought": True})
                part = {"text": "", "thought": True, "thoughtSignature": block.signature}
            if signature is not None and isinstance(part, dict):
                part["thoughtSignature"] = signature
                signature = None
            parts.append(part)
        # The block that carried the signature was removed; the signature itself is still sent.
        if signature is not None:
            parts.append({"text": "", "thoughtSignature": signature})
        return parts

    def _encode(self, block: ContentBlock) -> Wire | Raw | None:  # noqa: PLR0911 - one line per type
        match block:
            case ToolUseBlock():
                return {"functionCall": self._with_id(block.id, block.name, "args", block.input)}
            case ToolResultBlock():
                return {"functionResponse": self._encode_result(block)}
            case ThinkingBlock():
                return _encode_thinking(block)
            case RedactedThinkingBlock():
                # An envelope with redacted thinking of another provider; Gemini has no such part.
                return {"text": "", "thoughtSignature": block.data}
            case OpaqueBlock():
                return block.raw
            case _ if isinstance(block, Media):
                return _encode_media(block)
            case _:
                return None

    def _with_id(self, tool_use_id: str, name: str, key: str, value: Any) -> Wire:
        """Encode a call or a result, without an id if Gemini sent none: it rejects others (T11)."""
        wire_id = self._wire_id(tool_use_id)
        if wire_id is None:
            return {key: value, "name": name}
        return {key: value, "id": wire_id, "name": name}

    def _encode_result(self, result: ToolResultBlock) -> Wire:
        call = result.tool_use_id
        name = self._tool_names.get(call, "")
        wire = self._with_id(call, name, "response", encode_result_object(result))
        media = _encode_result_media(result)
        if media:
            wire["parts"] = media
        return wire


def _precedes_call(following: tuple[ContentBlock, ...]) -> bool:
    """Whether the first block other than a text is a call."""
    for block in following:
        if type(block) is not TextBlock:
            return type(block) is ToolUseBlock
    return False


def _encode_thinking(block: ThinkingBlock) -> Wire | None:
    if block.format == ALONE:
        return {"text": "", "thoughtSignature": block.signature}
    if not block.text and not block.signature:
        return None  # has no content to send
    wire: Wire = {"text": block.text, "thought": True}
    if block.signature:
        wire["thoughtSignature"] = block.signature
    return wire
