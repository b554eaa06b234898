"""Content parts, tool calls and cache marks of Chat Completions, to and from canonical blocks.

A decoded part is *exact* if encoding it gives the JSON that it was decoded from. The JSON of other
parts is stored in the original form of the message; a part of unknown type becomes an opaque block.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from metis.canonical.blocks import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
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
from metis.wire.openai_values import (
    ANY_FILE,
    PDF,
    decode_audio,
    decode_image_url,
    encode_audio,
    file_name,
    media_url,
    parse_data_url,
)
from metis.wire.tool_ids import CallIds

PROTOCOL = "openai_chat"
"""The name under which messages store their original form in this protocol."""

_ANY_VIDEO = "video/*"
"""The media type of a video behind a URL, whose real type is unknown."""
WireIdOf = Callable[[str], str]
"""Returns the wire id for a tool_use_id."""
ToolCall = tuple[str, Mapping[str, Any], InvalidInput | None]
"""The name of a tool, the input, and the invalid input if it could not be parsed."""

_CACHE_KEY = "cache_control"

read_json = msgspec.json.Decoder().decode
# Keys are sorted, so that the bytes do not change when a history is stored and loaded. Otherwise
# the prompt cache of the provider misses without an error (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode


def is_empty(value: Any) -> bool:
    """Whether a value is null, an empty string or list, or an object of such values and zeros."""
    if not isinstance(value, dict):
        return value is None or value in ("", [])
    # A list instead of calls: a provider may nest objects deeper than Python calls functions.
    pending: list[Any] = [*cast("Wire", value).values()]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += cast("Wire", part).values()
        # Some hosts send an unused object with empty texts and zeros in place of null.
        elif not (part is None or part == 0 or part in ("", [])):
            return False
    return True


def opaque_block(wire: Any, kind: object = None, issuer: str = PROTOCOL) -> OpaqueBlock:
    """Return an opaque block with the JSON of a part that has no canonical meaning."""
    return OpaqueBlock(issuer, Raw(write_json(wire)), maybe_text(kind))


def decode_part(wire: Any, issuer: str = PROTOCOL) -> ContentBlock:
    """Decode a content part; `issuer` is the provider that issued its thinking and file ids."""
    kind = maybe_object(wire).get("type")
    decode = _DECODERS.get(kind) if isinstance(kind, str) else None
    block = None if decode is None else decode(wire, issuer)
    return opaque_block(wire, kind, issuer) if block is None else block


def encode_part(block: ContentBlock) -> Wire | Raw | None:
    """Encode a block as a content part; None if the protocol has no part for it."""
    encode = _ENCODERS.get(type(block))
    return None if encode is None else encode(block)


def decode_parts(
    parts: Sequence[Any], issuer: str = PROTOCOL
) -> tuple[list[ContentBlock], dict[str, Any]]:
    """Decode a list of parts into blocks and, by index, the parts that are not exact."""
    blocks: list[ContentBlock] = []
    original_parts: dict[str, Any] = {}
    for index, part in enumerate(parts):
        block = decode_part(part, issuer)
        if encode_part(block) != part and not isinstance(block, OpaqueBlock):
            original_parts[str(index)] = part
        blocks.append(block)
    return blocks, original_parts


def encode_parts(blocks: Sequence[ContentBlock], original_parts: Mapping[str, Any]) -> list[Any]:
    """Encode blocks as parts; an original part is used if it still decodes to the same block."""
    if original_parts:
        originals = _OriginalParts(original_parts)
        parts = [originals.encode(block, index) for index, block in enumerate(blocks)]
    else:
        parts = [encode_part(block) for block in blocks]
    return [part for part in parts if part is not None]


_MAX_ISSUERS = 8
"""For how many issuers the parts of a message are decoded; a hostile one may name thousands."""


class _OriginalParts:
    """The original parts of a message, by their index and by the blocks that they decode to."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self._by_block: dict[str, dict[ContentBlock, Any]] = {}

    def encode(self, block: ContentBlock, index: int) -> Any:
        """Return the original part of a block, at its index or elsewhere; else encode the block."""
        bare, issuer = _without_citations(block), _issuer_of(block)
        # The index is tried first: two equal blocks may have had different parts.
        at_index = self._parts.get(str(index))
        if at_index is not None and decode_part(at_index, issuer) == bare:
            return at_index
        part = self._parts_of(issuer).get(bare)
        return encode_part(block) if part is None else part

    def _parts_of(self, issuer: str) -> Mapping[ContentBlock, Any]:
        parts = self._by_block.get(issuer)
        if parts is None:
            parts = dict[ContentBlock, Any]()
            if len(self._by_block) < _MAX_ISSUERS:
                for part in self._parts.values():
                    parts.setdefault(decode_part(part, issuer), part)
            self._by_block[issuer] = parts
        return parts


def _issuer_of(block: ContentBlock) -> str:
    if isinstance(block, DocumentBlock):
        return block.source.issuer or PROTOCOL
    return (block.issuer if isinstance(block, ThinkingBlock) else None) or PROTOCOL


def _without_citations(block: ContentBlock) -> ContentBlock:
    """Return a block without citations, which are not in its part but in a key of the message."""
    if isinstance(block, TextBlock) and block.citations:
        return replace(block, citations=())
    return block


def _decode_text(wire: Wire, _: str) -> ContentBlock | None:
    text = wire.get("text")
    return TextBlock(text) if isinstance(text, str) else None


def _decode_thinking(wire: Wire, issuer: str) -> ContentBlock | None:
    # Only Mistral sends thinking as a content part, which contains a list of text chunks (T54).
    thinking = wire.get("thinking")
    if isinstance(thinking, str):
        return ThinkingBlock(thinking, issuer=issuer)
    # Other chunks, such as references, are only in the original part.
    chunk_texts = [maybe_text(maybe_object(chunk).get("text")) for chunk in maybe_list(thinking)]
    texts = [text for text in chunk_texts if text is not None]
    return ThinkingBlock("".join(texts), issuer=issuer) if texts else None


def _url_at(wire: Wire, key: str) -> str | None:
    """Return the URL of a part, which is a string or an object with the key `url`."""
    value = wire.get(key)
    return maybe_text(maybe_object(value).get("url") if isinstance(value, dict) else value)


def _decode_source(url: str, media_type: str) -> tuple[MediaSource, str]:
    """Return the source for a URL or data URL, and its type; `media_type` is used for a URL."""
    inline = parse_data_url(url)
    if inline is None:
        return MediaSource("url", url), media_type
    return MediaSource("base64", inline[0]), inline[1]


def _decode_image(wire: Wire, _: str) -> ContentBlock | None:
    url = _url_at(wire, "image_url")
    return None if url is None else decode_image_url(url)


def _decode_video(wire: Wire, _: str) -> ContentBlock | None:
    url = _url_at(wire, "video_url")
    return None if url is None else VideoBlock(*_decode_source(url, _ANY_VIDEO))


def _decode_audio(wire: Wire, _: str) -> ContentBlock | None:
    return decode_audio(wire)


def _decode_file(wire: Wire, issuer: str) -> ContentBlock | None:
    file = maybe_object(wire.get("file"))
    match file:
        case {"file_data": str(data)}:
            source, media_type = _decode_source(data, PDF)
        case {"file_id": str(data)}:
            # Only the provider that stores a file can open it by its id.
            source, media_type = MediaSource("file_id", data, issuer), ANY_FILE
        case _:
            return None
    return DocumentBlock(source, media_type, maybe_text(file.get("filename")))


def _decode_document(wire: Wire, _: str) -> ContentBlock | None:
    url = _url_at(wire, "document_url")
    return None if url is None else DocumentBlock(*_decode_source(url, PDF))


_DECODERS: Mapping[str, Callable[[Wire, str], ContentBlock | None]] = {
    "text": _decode_text,
    "thinking": _decode_thinking,
    "image_url": _decode_image,
    "video_url": _decode_video,
    "input_audio": _decode_audio,
    "file": _decode_file,
    "document_url": _decode_document,
}


def _encode_text(block: TextBlock) -> Wire:
    return {"type": "text", "text": block.text}


def _encode_image(block: ImageBlock) -> Wire | None:
    url = media_url(block.source, block.media_type)
    return None if url is None else {"type": "image_url", "image_url": {"url": url}}


def _encode_video(block: VideoBlock) -> Wire | None:
    url = media_url(block.source, block.media_type)
    return None if url is None else {"type": "video_url", "video_url": {"url": url}}


def _encode_document(block: DocumentBlock) -> Wire | None:
    source = block.source
    if source.kind == "text":
        return {"type": "text", "text": source.data}
    if source.kind == "file_id":
        file: Wire = {"file_id": source.data}
        return {
            "type": "file",
            "file": file if block.name is None else {**file, "filename": block.name},
        }
    url = media_url(source, block.media_type)
    if url is None:
        return None
    return {"type": "file", "file": {"file_data": url, "filename": file_name(block)}}


def _encode_opaque(block: OpaqueBlock) -> Raw:
    return block.raw


_ENCODERS: Mapping[type, Callable[[Any], Wire | Raw | None]] = {
    TextBlock: _encode_text,
    ImageBlock: _encode_image,
    VideoBlock: _encode_video,
    AudioBlock: encode_audio,
    DocumentBlock: _encode_document,
    OpaqueBlock: _encode_opaque,
}


def decode_call(wire: Any, ids: CallIds, issuer: str) -> tuple[ContentBlock, str | None]:
    """Decode an entry of `tool_calls` into a block and its wire id; an opaque block has no id."""
    entry = maybe_object(wire)
    call = _read_call(entry)
    if call is None:
        return opaque_block(wire, "tool_call", issuer), None
    wire_id = maybe_text(entry.get("id")) or ""
    return ToolUseBlock(ids.of_call(wire_id), *call), wire_id


def decode_legacy_call(wire: Any, ids: CallIds) -> ToolUseBlock | None:
    """Decode `function_call`, OpenAI's deprecated form with one call per message; None if invalid.

    It has no id: its result refers to it by the name of the function.
    """
    call = _read_function({"function": wire})
    return None if call is None else ToolUseBlock(ids.of_call(call[0], is_id=False), *call)


def encode_call(block: ToolUseBlock, wire_id_of: WireIdOf) -> Wire:
    """Encode a call without an original form as an entry of `tool_calls`."""
    return {"id": wire_id_of(block.id), "type": "function", "function": encode_function(block)}


def encode_function(block: ToolUseBlock) -> Wire:
    """Encode the name and the arguments of a call."""
    # Arguments are a string in this protocol, so that invalid ones are sent back unchanged (T32).
    invalid = block.invalid
    arguments = write_json(block.input).decode() if invalid is None else invalid.raw
    return {"name": block.name, "arguments": arguments}


def is_same_call(block: ToolUseBlock, wire: Wire) -> bool:
    """Whether an entry of `tool_calls` still decodes to the block."""
    return _read_call(wire) == (block.name, block.input, block.invalid)


def _read_call(wire: Wire) -> ToolCall | None:
    return _read_custom(wire) if wire.get("type") == "custom" else _read_function(wire)


def _read_function(wire: Wire) -> ToolCall | None:
    function = maybe_object(wire.get("function"))
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        return None
    if isinstance(arguments, dict):
        # Some versions of vLLM and Ollama send an object instead of a JSON string (T33).
        return name, maybe_object(arguments), None
    if not isinstance(arguments, str | None):
        return None
    return name, *parse_arguments(arguments or "")


def _read_custom(wire: Wire) -> ToolCall | None:
    custom = maybe_object(wire.get("custom"))
    name, text = custom.get("name"), custom.get("input")
    if not isinstance(name, str) or not name or not isinstance(text, str):
        return None
    return name, {"input": text}, None


_BESIDE_CONTENT = ThinkingBlock | RedactedThinkingBlock | ToolUseBlock
"""The blocks that are encoded in other keys of the message than `content`."""


def cache_hints(wire: Wire, content: Sequence[ContentBlock]) -> tuple[CacheHint, ...]:
    """Return the hints for the `cache_control` marks on the parts of a message."""
    parts = maybe_list(wire.get("content"))
    marks = [maybe_object(maybe_object(part).get(_CACHE_KEY)) for part in parts]
    if not any(marks):
        return ()
    ttl_by_block = {
        index: maybe_text(mark.get("ttl"))
        for mark, index in zip(marks, _block_indexes(content), strict=False)
        if mark
    }
    return tuple(CacheHint(after=index, ttl=ttl) for index, ttl in ttl_by_block.items())


def with_cache_marks(
    wire: Wire, content: Sequence[ContentBlock], hints: Iterable[CacheHint]
) -> Wire:
    """Return a message with a cache mark for each hint; a message with marks is not changed."""
    value = wire.get("content")
    parts: list[Any] = [{"type": "text", "text": value}] if isinstance(value, str) else []
    parts = parts or [*maybe_list(value)]
    if not parts or any(_CACHE_KEY in maybe_object(part) for part in parts):
        return wire
    # A tool result may have several parts: the last one gets the mark.
    last_part = {
        index: number
        for number, index in zip(range(len(parts)), _block_indexes(content), strict=False)
    }
    for hint in hints:
        number = last_part.get(hint.after)
        if number is not None and maybe_object(parts[number]):
            ttl = {} if hint.ttl is None else {"ttl": hint.ttl}
            parts[number] = {**parts[number], _CACHE_KEY: {"type": "ephemeral", **ttl}}
    return {**wire, "content": parts}


def _block_indexes(content: Sequence[ContentBlock]) -> list[int]:
    """Return, for each content part of a message in order, the index of its block."""
    indexes: list[int] = []
    for index, block in enumerate(content):
        if isinstance(block, ToolResultBlock):
            indexes += [index] * len(block.content)
        elif not isinstance(block, _BESIDE_CONTENT):
            indexes.append(index)
    return indexes
