"""Parts of Gemini, to and from canonical blocks: text, calls, results and media.

A signature may stand on any part and has to go back on that very part. The canonical form is a
thinking block without text right before the block that carries it (`ON_NEXT`), or one that stands
for an empty text part (`ALONE`); so other providers report it as lost, and only its issuer
receives it.
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
    MediaSource,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.value import raw_constructor
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.wire.gemini.key_names import (
    PROTOCOL,
    plain_base64,
    style_of,
    with_camel_keys,
    with_style,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object

Media = ImageBlock | DocumentBlock | AudioBlock | VideoBlock | ArtifactBlock
"""The blocks that hold media."""

_IMAGES: Mapping[str, str] = {
    "gif": "image/gif",
    "heic": "image/heic",
    "heif": "image/heif",
    "png": "image/png",
    "webp": "image/webp",
}
_OWN_FILES = ("gs://", "https://generativelanguage.googleapis.com/", "projects/", "files/")


def decode_media(part: Wire, issuer: str, *, is_made: bool) -> ContentBlock | None:
    """Our block for a part with media; None if it is none of those that we know.

    `is_made` says that a model made them.
    """
    match part:
        case {"inlineData": {"mimeType": str(kind), "data": str(data)}}:
            text = None if is_made else _plain_text(kind, data)
            if text is not None:
                return DocumentBlock(MediaSource("text", text), kind)
            return _block("base64", plain_base64(data), kind, None, is_made=is_made)
        case {"fileData": {"mimeType": str(kind), "fileUri": str(uri)}}:
            if uri.startswith(_OWN_FILES):
                return _block("file_id", uri, kind, issuer, is_made=is_made)
            return _block("url", uri, kind, None, is_made=is_made)
        case _:
            return None


def _plain_text(kind: str, data: str) -> str | None:
    """The words of a file that is text, which other providers take as such (G-010)."""
    if not kind.startswith(("text/", "application/json")):
        return None
    try:
        return base64.b64decode(plain_base64(data), validate=True).decode()
    except ValueError:
        return None


def _block(
    where: str, data: str, kind: str, issuer: str | None, *, is_made: bool
) -> ContentBlock | None:
    family = kind.partition("/")[0]
    if family == "image" and not is_made:
        # An image that exists as a file of one provider only is opaque to everybody else.
        if where == "file_id":
            return None
        return ImageBlock(ImageSource("base64" if where == "base64" else "url", data), kind)
    source = MediaSource(
        "base64" if where == "base64" else "url" if where == "url" else "file_id", data, issuer
    )
    if is_made:
        return ArtifactBlock(source, kind)
    if family == "audio":
        return AudioBlock(source, kind)
    return VideoBlock(source, kind) if family == "video" else DocumentBlock(source, kind)


def encode_media(block: Media) -> Wire | None:
    """The part for a block with media; None if its bytes are not at hand."""
    source, kind = block.source, block.media_type
    match source.kind:
        case "base64":
            return {"inlineData": {"mimeType": kind, "data": source.data}}
        case "url" | "file_id":
            if kind == ANY_IMAGE_TYPE:
                kind = _kind_of(source.data)
            return {"fileData": {"mimeType": kind, "fileUri": source.data}}
        case "text":
            return {"text": source.data}
        case "file_ref":
            return None


def _kind_of(url: str) -> str:
    """The kind of an image by the end of its URL; the protocol wants one kind, not any."""
    return _IMAGES.get(url.partition("?")[0].rpartition(".")[2].lower(), "image/jpeg")


_write_sorted = msgspec.json.Encoder(order="deterministic").encode
_make_text = raw_constructor(TextBlock)
_SAID = ("output", "result")
_MANY = 2


def decode_result_text(response: Any) -> tuple[tuple[ContentBlock, ...], bool]:
    """What a response object says, and whether it is an error."""
    if type(response) is dict and len(cast("Wire", response)) == 1:
        ((key, value),) = cast("Wire", response).items()
        if key == "error":
            return (_make_text(value if type(value) is str else _text(value)),), True
        if key in _SAID and type(value) is str:
            return (_make_text(value),), False
        if key == "output" and _are_texts(value):
            return tuple(_make_text(text) for text in value), False
    if not response:
        return (), False
    return (_make_text(_text(response)),), False


def _are_texts(value: Any) -> bool:
    return (
        type(value) is list
        and len(cast("list[Any]", value)) >= _MANY
        and all(type(text) is str for text in cast("list[Any]", value))
    )


def _text(value: Any) -> str:
    # Sorted, so that the text is the same before and after the object was stored.
    return _write_sorted(value).decode()


def encode_result_object(result: ToolResultBlock) -> Wire:
    """The response object for a result."""
    texts = [text for block in result.content if (text := _text_of(block)) is not None]
    if result.is_error:
        return {"error": "\n".join(texts)}
    if len(texts) == 1:
        return {"output": texts[0]}
    return {"output": texts} if texts else {}


def _text_of(block: ContentBlock) -> str | None:
    """The words of a text, or of a document that is plain text; media of results have none."""
    if type(block) is TextBlock:
        return block.text
    if isinstance(block, DocumentBlock) and block.source.kind == "text":
        return block.source.data
    return None


def has_same_text(response: Any, result: ToolResultBlock) -> bool:
    """Whether a response object still says what a result says."""
    texts, is_error = decode_result_text(response)
    said = tuple(block for block in result.content if type(block) is TextBlock)
    return is_error == result.is_error and _words(texts) == _words(said)


def _words(blocks: tuple[ContentBlock, ...]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, TextBlock)]


def decode_result_media(wire: Wire, issuer: str) -> tuple[ContentBlock, ...]:
    """The media of a result."""
    return tuple(
        decode_media(maybe_object(part), issuer, is_made=False)
        or OpaqueBlock(issuer, msgspec.Raw(_write_sorted(part)), PROTOCOL)
        for part in maybe_list(wire.get("parts"))
    )


def encode_result_media(result: ToolResultBlock) -> list[Any]:
    """The parts for the media of a result."""
    parts: list[Any] = []
    for block in result.content:
        if isinstance(block, OpaqueBlock):
            parts.append(block.raw)
        elif isinstance(block, Media) and block.source.kind != "text":
            part = encode_media(block)
            if part is not None:
                parts.append(part)
    return parts


ALONE = "signature_alone"
"""The format of a signature that came on an empty text part."""

_KEYS_OF_CALL = 2
_KEYS_WITH_ID = 3
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode

_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_thinking = raw_constructor(ThinkingBlock)


class CallIdSource(Protocol):
    """Gives calls and results their ids; the provider's own may be missing."""

    def id_of_call(self, name: str, wire_id: str | None) -> str:
        """Our id for a call."""
        ...

    def id_of_result(self, name: str, wire_id: str | None) -> str:
        """Our id of the call that a result answers."""
        ...


class PartDecoder:
    """Reads the parts of one message."""

    def __init__(self, issuer: str, names: CallIdSource, *, is_model: bool) -> None:
        self._issuer = issuer
        self._names = names
        self._is_model = is_model

    def decode(self, parts: list[Any], blocks: list[ContentBlock]) -> bool:
        """Add the blocks of parts; whether each was in the form that we write ourselves."""
        is_usual = True
        for part in parts:
            if type(part) is not dict:
                blocks.append(self._opaque(part))
                is_usual = False
                continue
            own = cast("Wire", part)
            text = own.get("text")
            if type(text) is str and len(own) == 1:
                blocks.append(_make_text(text))
            elif not self._read_usual_call(own, blocks):
                is_usual = False
                self._read_any(own, blocks)
        return is_usual

    def _read_usual_call(self, part: Wire, blocks: list[ContentBlock]) -> bool:
        """Read a call of the common form; False if it is something else."""
        call = part.get("functionCall")
        if type(call) is not dict or not self._is_model:
            return False
        own = cast("Wire", call)
        name, arguments, theirs = own.get("name"), own.get("args"), own.get("id")
        if type(name) is not str or type(arguments) is not dict:
            return False
        if len(own) != (_KEYS_WITH_ID if theirs else _KEYS_OF_CALL):
            return False
        signature = part.get("thoughtSignature")
        if len(part) != (2 if signature else 1) or type(signature) not in (str, type(None)):
            return False
        if theirs is not None and type(theirs) is not str:
            return False
        if signature:
            blocks.append(_make_thinking("", signature, None, SIGNATURE_ON_NEXT, self._issuer))
        ours = self._names.id_of_call(name, theirs)
        blocks.append(_make_call(ours, name, cast("Wire", arguments)))
        return True

    def _read_any(self, wire: Wire, blocks: list[ContentBlock]) -> None:
        part = with_camel_keys(wire)
        signature = part.get("thoughtSignature")
        signature = signature if isinstance(signature, str) and self._is_model else None
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
            return self._call(maybe_object(part["functionCall"])) if self._is_model else None
        if "functionResponse" in part:
            return self._result(maybe_object(part["functionResponse"]))
        return decode_media(part, self._issuer, is_made=self._is_model)

    def _call(self, call: Wire) -> ContentBlock | None:
        name, arguments = call.get("name"), call.get("args")
        if not isinstance(name, str) or not isinstance(arguments, dict | None):
            return None
        theirs = call.get("id")
        ours = self._names.id_of_call(name, theirs if isinstance(theirs, str) and theirs else None)
        return _make_call(ours, name, cast("Wire", arguments or {}))

    def _result(self, answer: Wire) -> ContentBlock | None:
        name, response, theirs = answer.get("name"), answer.get("response"), answer.get("id")
        if self._is_model or not isinstance(name, str):
            return None
        ours = self._names.id_of_result(
            name, theirs if isinstance(theirs, str) and theirs else None
        )
        said, is_error = decode_result_text(response)
        media = decode_result_media(answer, self._issuer) if "parts" in answer else ()
        return _make_result(ours, (*said, *media), is_error=is_error)

    def _opaque(self, part: Any) -> OpaqueBlock:
        kind = next((key for key in maybe_object(part) if key != "thoughtSignature"), None)
        return OpaqueBlock(self._issuer, Raw(_write(part)), kind)


def is_result(part: Any) -> bool:
    """Whether a part answers a call."""
    if type(part) is not dict:
        return False
    own = cast("Wire", part)
    answer = own.get("functionResponse") or own.get("function_response")
    return isinstance(maybe_object(answer).get("name"), str)


class PartEncoder:
    """Writes blocks as parts; knows the ids that the provider gave, and the names of the calls."""

    def __init__(self, wire_id: Callable[[str], str | None], names: Mapping[str, str]) -> None:
        self._wire_id = wire_id
        self._names = names

    def encode(self, content: tuple[ContentBlock, ...]) -> list[Any]:
        """The parts for blocks that were projected for this protocol."""
        parts: list[Any] = []
        signature: str | None = None
        for block in content:
            kind = type(block)
            if kind is ThinkingBlock and cast("ThinkingBlock", block).format == SIGNATURE_ON_NEXT:
                signature = cast("ThinkingBlock", block).signature
                continue
            part = {"text": block.text} if type(block) is TextBlock else self._encode(block)
            if part is None:
                continue
            if signature is not None and isinstance(part, dict):
                part["thoughtSignature"] = signature
                signature = None
            parts.append(part)
        if signature is not None:
            parts.append({"text": "", "thoughtSignature": signature})
        return parts

    def _encode(self, block: ContentBlock) -> Wire | Raw | None:
        match block:
            case ToolUseBlock():
                return {"functionCall": self._with_id(block.id, block.name, "args", block.input)}
            case ToolResultBlock():
                return {"functionResponse": self._result(block)}
            case ThinkingBlock():
                return _thought(block)
            case OpaqueBlock():
                return block.raw
            case _ if isinstance(block, Media):
                return encode_media(block)
            case _:
                return None

    def _with_id(self, ours: str, name: str, key: str, value: Any) -> Wire:
        """A call or a result; an id is only told to a provider that gave it (T11)."""
        theirs = self._wire_id(ours)
        if theirs is None:
            return {key: value, "name": name}
        return {key: value, "id": theirs, "name": name}

    def _result(self, result: ToolResultBlock) -> Wire:
        ours = result.tool_use_id
        wire = self._with_id(
            ours, self._names.get(ours, ""), "response", encode_result_object(result)
        )
        media = encode_result_media(result)
        if media:
            wire["parts"] = media
        return wire


def _thought(block: ThinkingBlock) -> Wire:
    if block.format == ALONE:
        return {"text": "", "thoughtSignature": block.signature}
    wire: Wire = {"text": block.text, "thought": True}
    if block.signature:
        wire["thoughtSignature"] = block.signature
    return wire


def original_form_of_parts(parts: list[Any], written: list[Any]) -> dict[str, Any]:
    """What has to be remembered of parts that were read, so that they can be written again."""
    if _are_equal(written, parts):
        return {}
    style = style_of(parts)
    if style and _are_equal(with_style(written, style), parts):
        return {"style": style}
    return {"parts": parts}


def _are_equal(written: Any, parts: Any) -> bool:
    """Whether parts are those that were read; `1`, `1.0` and `true` are not the same."""
    if isinstance(written, Raw):
        written = _read(written)
    if isinstance(written, list) and isinstance(parts, list):
        ours, theirs = cast("list[Any]", written), cast("list[Any]", parts)
        return len(ours) == len(theirs) and all(map(_are_equal, ours, theirs))
    if isinstance(written, dict) and isinstance(parts, dict):
        mine, own = cast("Wire", written), cast("Wire", parts)
        return mine.keys() == own.keys() and all(_are_equal(mine[k], own[k]) for k in mine)
    return type(cast("object", written)) is type(cast("object", parts)) and written == parts
