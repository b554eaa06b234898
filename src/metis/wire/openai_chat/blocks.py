"""Content parts, tool calls and cache marks of Chat Completions, to and from canonical blocks.

A decoded part is *exact* if encoding it gives the JSON that was read. A part that is not exact
is stored in its original form, and one without a canonical meaning becomes an opaque block.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
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
from metis.canonical.metadata import CacheHint
from metis.streaming.arguments import parse_arguments
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.tool_ids import CallIds

PROTOCOL = "openai_chat"
"""The name under which messages remember how they were spelled here."""

ANY_VIDEO = "video/*"
"""The media type of a film that is only known by its URL."""
ANY_FILE = "application/octet-stream"
"""The media type of a file that is only known by its id."""
PDF = "application/pdf"
"""What a document at a URL is taken for."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_SOUND_TYPES = {"mp3": "audio/mpeg"}
_SOUND_FORMATS = {kind: name for name, kind in _SOUND_TYPES.items()}

read_json = msgspec.json.Decoder().decode
# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode


def as_text(value: Any) -> str | None:
    """A text, or None for anything else."""
    return value if isinstance(value, str) else None


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, an empty text or list, an object of nothing else."""
    if isinstance(value, dict):
        return all(part == 0 or is_empty(part) for part in cast("Wire", value).values())
    return value is None or value in ("", [])


def opaque_block(wire: Any, kind: object = None, issuer: str = PROTOCOL) -> OpaqueBlock:
    """A part that has no canonical meaning, as it came from its issuer."""
    return OpaqueBlock(issuer, Raw(write_json(wire)), kind if isinstance(kind, str) else None)


def decode_part(wire: Any, issuer: str = PROTOCOL) -> ContentBlock:
    """Our block for a part of the protocol; `issuer` is whose thoughts and files are in it."""
    kind = maybe_object(wire).get("type")
    decode = _DECODERS.get(kind) if isinstance(kind, str) else None
    block = None if decode is None else decode(wire, issuer)
    return opaque_block(wire, kind, issuer) if block is None else block


def encode_part(block: ContentBlock) -> Wire | Raw | None:
    """The part of the protocol for our block; None if it has no place there."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block)


def decode_parts(
    parts: Sequence[Any], issuer: str = PROTOCOL
) -> tuple[list[ContentBlock], dict[str, Any]]:
    """The blocks of a list of parts, and by index those parts that say more than their block."""
    blocks: list[ContentBlock] = []
    odd: dict[str, Any] = {}
    for index, part in enumerate(parts):
        block = decode_part(part, issuer)
        if encode_part(block) != part and not isinstance(block, OpaqueBlock):
            odd[str(index)] = part
        blocks.append(block)
    return blocks, odd


def encode_parts(blocks: Sequence[ContentBlock], odd: Mapping[str, Any]) -> list[Any]:
    """The parts for blocks; remembered ones are used while they say the same."""
    if not odd:
        parts = [encode_part(block) for block in blocks]
        return [part for part in parts if part is not None]
    parts = [_encode_odd(block, index, odd) for index, block in enumerate(blocks)]
    return [part for part in parts if part is not None]


def _encode_odd(block: ContentBlock, index: int, odd: Mapping[str, Any]) -> Any:
    """A part as it was spelled at its index, or elsewhere if blocks before it are gone."""
    in_place = odd.get(str(index))
    spelled = odd.values() if in_place is None else (in_place, *odd.values())
    issuer = _issuer(block)
    for part in spelled:
        if decode_part(part, issuer) == _bare(block):
            return part
    return encode_part(block)


def _issuer(block: ContentBlock) -> str:
    if isinstance(block, DocumentBlock):
        return block.source.issuer or PROTOCOL
    return (block.issuer if isinstance(block, ThinkingBlock) else None) or PROTOCOL


def _bare(block: ContentBlock) -> ContentBlock:
    """The block without what stands beside its part and not in it."""
    if isinstance(block, TextBlock) and block.citations:
        return replace(block, citations=())
    return block


def _decode_text(wire: Wire, _: str) -> ContentBlock | None:
    text = wire.get("text")
    return TextBlock(text) if isinstance(text, str) else None


def _decode_thinking(wire: Wire, issuer: str) -> ContentBlock | None:
    """A thinking chunk of Mistral: a list of text chunks (T54)."""
    thoughts = wire.get("thinking")
    if isinstance(thoughts, str):
        return ThinkingBlock(thoughts, issuer=issuer)
    texts = [maybe_object(chunk).get("text") for chunk in maybe_list(thoughts)]
    if texts and all(isinstance(text, str) for text in texts):
        return ThinkingBlock("".join(cast("list[str]", texts)), issuer=issuer)
    return None


def _url_at(wire: Wire, key: str) -> str | None:
    """The URL of a part: a string, or an object around it."""
    value = wire.get(key)
    url = maybe_object(value).get("url") if isinstance(value, dict) else value
    return url if isinstance(url, str) else None


def _source(url: str, otherwise: str) -> tuple[MediaSource, str]:
    """Where a URL says that the bytes are, and of which type they are."""
    inline = _DATA_URL.fullmatch(url)
    if inline is None:
        return MediaSource("url", url), otherwise
    return MediaSource("base64", inline[2]), inline[1]


def _decode_image(wire: Wire, _: str) -> ContentBlock | None:
    url = _url_at(wire, "image_url")
    if url is None:
        return None
    inline = _DATA_URL.fullmatch(url)
    if inline is None:
        return ImageBlock(ImageSource("url", url), ANY_IMAGE_TYPE)
    return ImageBlock(ImageSource("base64", inline[2]), inline[1])


def _decode_video(wire: Wire, _: str) -> ContentBlock | None:
    url = _url_at(wire, "video_url")
    return None if url is None else VideoBlock(*_source(url, ANY_VIDEO))


def _decode_audio(wire: Wire, _: str) -> ContentBlock | None:
    match wire.get("input_audio"):
        case {"data": str(data), "format": str(name)}:
            media_type = _SOUND_TYPES.get(name, f"audio/{name}")
            return AudioBlock(MediaSource("base64", data), media_type)
        case _:
            return None


def _decode_file(wire: Wire, issuer: str) -> ContentBlock | None:
    file = maybe_object(wire.get("file"))
    name = file.get("filename")
    match file:
        case {"file_data": str(data)}:
            source, media_type = _source(data, PDF)
        case {"file_id": str(data)}:
            source, media_type = MediaSource("file_id", data, issuer), ANY_FILE
        case _:
            return None
    return DocumentBlock(source, media_type, name if isinstance(name, str) else None)


def _decode_document(wire: Wire, _: str) -> ContentBlock | None:
    url = _url_at(wire, "document_url")
    return None if url is None else DocumentBlock(*_source(url, PDF))


_DECODERS: Mapping[str, Callable[[Wire, str], ContentBlock | None]] = {
    "text": _decode_text,
    "thinking": _decode_thinking,
    "image_url": _decode_image,
    "video_url": _decode_video,
    "input_audio": _decode_audio,
    "file": _decode_file,
    "document_url": _decode_document,
}


def _url_of(source: MediaSource | ImageSource, media_type: str) -> str | None:
    """The URL that stands for a source; None if the target could not open it."""
    if source.kind == "base64":
        return f"data:{media_type};base64,{source.data}"
    return source.data if source.kind == "url" else None


def _encode_text(block: TextBlock) -> Wire:
    return {"type": "text", "text": block.text}


def _encode_image(block: ImageBlock) -> Wire | None:
    url = _url_of(block.source, block.media_type)
    return None if url is None else {"type": "image_url", "image_url": {"url": url}}


def _encode_video(block: VideoBlock) -> Wire | None:
    url = _url_of(block.source, block.media_type)
    return None if url is None else {"type": "video_url", "video_url": {"url": url}}


def _encode_audio(block: AudioBlock) -> Wire | None:
    if block.source.kind != "base64":
        return None
    kind = block.media_type
    name = _SOUND_FORMATS.get(kind) or kind.removeprefix("audio/").removeprefix("x-")
    return {"type": "input_audio", "input_audio": {"data": block.source.data, "format": name}}


def _encode_document(block: DocumentBlock) -> Wire | None:
    source = block.source
    if source.kind == "text":
        return {"type": "text", "text": source.data}
    if source.kind == "file_id":
        own = {} if block.name is None else {"filename": block.name}
        return {"type": "file", "file": {"file_id": source.data, **own}}
    url = _url_of(source, block.media_type)
    if url is None:
        return None
    # Bytes without a name are refused as a file that lies nowhere.
    name = block.name or f"document.{block.media_type.partition('/')[2]}"
    return {"type": "file", "file": {"file_data": url, "filename": name}}


def _encode_opaque(block: OpaqueBlock) -> Raw:
    return block.raw


_ENCODERS: Mapping[type, Callable[[Any], Wire | Raw | None]] = {
    TextBlock: _encode_text,
    ImageBlock: _encode_image,
    VideoBlock: _encode_video,
    AudioBlock: _encode_audio,
    DocumentBlock: _encode_document,
    OpaqueBlock: _encode_opaque,
}


_CACHE_KEY = "cache_control"
_ELSEWHERE = ThinkingBlock | RedactedThinkingBlock | ToolUseBlock
"""Blocks that stand beside the content of a message."""


def cache_hints(wire: Wire, content: Sequence[ContentBlock]) -> tuple[CacheHint, ...]:
    """The hints that the marks on the parts of a message stand for."""
    parts = maybe_list(wire.get("content"))
    marks = [maybe_object(maybe_object(part).get(_CACHE_KEY)) for part in parts]
    if not any(marks):
        return ()
    found = {
        place: maybe_text(mark.get("ttl"))
        for mark, place in zip(marks, _block_index_of_parts(content), strict=False)
        if mark
    }
    return tuple(CacheHint(after=place, ttl=ttl) for place, ttl in found.items())


def with_cache_marks(
    wire: Wire, content: Sequence[ContentBlock], hints: Iterable[CacheHint]
) -> Wire:
    """The message with marks where hints say so; marks that a client set stay as they are."""
    said = wire.get("content")
    parts: list[Any] = [{"type": "text", "text": said}] if isinstance(said, str) else []
    parts = parts or [*maybe_list(said)]
    if not parts or any(_CACHE_KEY in maybe_object(part) for part in parts):
        return wire
    # What a result says last is marked, for there it ends.
    last = {
        place: number
        for number, place in zip(range(len(parts)), _block_index_of_parts(content), strict=False)
    }
    for hint in hints:
        number = last.get(hint.after)
        if number is not None and maybe_object(parts[number]):
            ttl = {} if hint.ttl is None else {"ttl": hint.ttl}
            parts[number] = {**parts[number], _CACHE_KEY: {"type": "ephemeral", **ttl}}
    return {**wire, "content": parts}


def _block_index_of_parts(content: Sequence[ContentBlock]) -> list[int]:
    """The block in which each part of a message stands, in order."""
    places: list[int] = []
    for index, block in enumerate(content):
        if isinstance(block, ToolResultBlock):
            places += [index] * len(block.content)
        elif not isinstance(block, _ELSEWHERE):
            places.append(index)
    return places


WireIdOf = Callable[[str], str]
"""The protocol's id for one of ours."""


def decode_call(wire: Any, ids: CallIds, issuer: str) -> tuple[ContentBlock, str | None]:
    """Our block for one entry of `tool_calls`, and the provider's id if it is a call."""
    call = maybe_object(wire)
    read = _read_custom(call) if call.get("type") == "custom" else _read_function(call)
    if read is None:
        return opaque_block(wire, "tool_call", issuer), None
    theirs = call.get("id")
    theirs = theirs if isinstance(theirs, str) else ""
    name, arguments, invalid = read
    return ToolUseBlock(ids.of_call(theirs), name, arguments, invalid), theirs


def decode_function_call(wire: Any, ids: CallIds) -> ToolUseBlock | None:
    """Our block for the call of the time before tools; its result knows the name only."""
    read = _read_function({"function": wire})
    if read is None:
        return None
    name, arguments, invalid = read
    return ToolUseBlock(ids.of_call(name, is_id=False), name, arguments, invalid)


def encode_call(block: ToolUseBlock, wire_id: WireIdOf) -> Wire:
    """The entry of `tool_calls` for a call that nothing more is known of."""
    return {"id": wire_id(block.id), "type": "function", "function": encode_function(block)}


def encode_function(block: ToolUseBlock) -> Wire:
    """Name and arguments; invalid ones are a string like any, and stay what they were (T32)."""
    if block.invalid is not None:
        return {"name": block.name, "arguments": block.invalid.raw}
    return {"name": block.name, "arguments": write_json(block.input).decode()}


def is_same_call(block: ToolUseBlock, wire: Wire) -> bool:
    """Whether a remembered entry still says what the block says."""
    read = _read_custom(wire) if wire.get("type") == "custom" else _read_function(wire)
    return read is not None and read == (block.name, block.input, block.invalid)


_ToolCall = tuple[str, Mapping[str, Any], InvalidInput | None]


def _read_function(wire: Wire) -> _ToolCall | None:
    function = maybe_object(wire.get("function"))
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        return None
    if isinstance(arguments, dict):
        # Some hosts send the object where a string is due (T33).
        return name, maybe_object(arguments), None
    if not isinstance(arguments, str | None):
        return None
    return name, *parse_arguments(arguments or "")


def _read_custom(wire: Wire) -> _ToolCall | None:
    custom = maybe_object(wire.get("custom"))
    name, text = custom.get("name"), custom.get("input")
    if not isinstance(name, str) or not name or not isinstance(text, str):
        return None
    return name, {"input": text}, None
