"""Parts of Gemini, to and from our blocks.

A signature may stand on any part, and has to go back on that very part. Ours is a thought without
words right before the block that carries it (`ON_NEXT`), or one that stands for an empty text part
(`ALONE`); so other providers are told that it was left out, and nobody but its issuer gets it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import msgspec
from msgspec import Raw

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.value import made
from metis.projection.signatures import ON_NEXT
from metis.wire.gemini.media import Media, decode_media, encode_media
from metis.wire.gemini.names import in_style, normal_part, style_of
from metis.wire.gemini.results import (
    decode_answer,
    decode_result_media,
    encode_answer,
    encode_result_media,
)
from metis.wire.shape import Wire, maybe_object

ALONE = "signature_alone"
"""The format of a signature that came on an empty text part."""

_KEYS_OF_CALL = 2
_KEYS_WITH_ID = 3
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_make_text = made(TextBlock)
_make_call = made(ToolUseBlock)
_make_result = made(ToolResultBlock)
_make_thinking = made(ThinkingBlock)


class Names(Protocol):
    """Gives calls and results their ids; the provider's own may be missing."""

    def call(self, name: str, theirs: str | None) -> str:
        """Our id for a call."""
        ...

    def answer(self, name: str, theirs: str | None) -> str:
        """Our id of the call that a result answers."""
        ...


class PartReader:
    """Reads the parts of one message."""

    def __init__(self, issuer: str, names: Names, *, is_model: bool) -> None:
        self._issuer = issuer
        self._names = names
        self._is_model = is_model

    def read(self, parts: list[Any], blocks: list[ContentBlock]) -> bool:
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
            blocks.append(_make_thinking("", signature, None, ON_NEXT, self._issuer))
        ours = self._names.call(name, theirs)
        blocks.append(_make_call(ours, name, cast("Wire", arguments)))
        return True

    def _read_any(self, wire: Wire, blocks: list[ContentBlock]) -> None:
        part = normal_part(wire)
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
            blocks.append(_make_thinking("", signature, None, ON_NEXT, self._issuer))
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
        ours = self._names.call(name, theirs if isinstance(theirs, str) and theirs else None)
        return _make_call(ours, name, cast("Wire", arguments or {}))

    def _result(self, answer: Wire) -> ContentBlock | None:
        name, response, theirs = answer.get("name"), answer.get("response"), answer.get("id")
        if self._is_model or not isinstance(name, str):
            return None
        ours = self._names.answer(name, theirs if isinstance(theirs, str) and theirs else None)
        said, is_error = decode_answer(response)
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


class PartWriter:
    """Writes blocks as parts; knows the ids that the provider gave, and the names of the calls."""

    def __init__(self, wire_id: Callable[[str], str | None], names: Mapping[str, str]) -> None:
        self._wire_id = wire_id
        self._names = names

    def write(self, content: tuple[ContentBlock, ...]) -> list[Any]:
        """The parts for blocks that were projected for this protocol."""
        parts: list[Any] = []
        signature: str | None = None
        for block in content:
            kind = type(block)
            if kind is ThinkingBlock and cast("ThinkingBlock", block).format == ON_NEXT:
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
        wire = self._with_id(ours, self._names.get(ours, ""), "response", encode_answer(result))
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


def spelling_of_parts(parts: list[Any], written: list[Any]) -> dict[str, Any]:
    """What has to be remembered of parts that were read, so that they can be written again."""
    if _are_equal(written, parts):
        return {}
    style = style_of(parts)
    if style and _are_equal(in_style(written, style), parts):
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
