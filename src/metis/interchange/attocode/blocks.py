"""Content blocks, tool calls and the two spellings of keys of attocode.

The TypeScript program writes `toolCalls`, the Python program `tool_calls`; a file is written back
in the spelling in which it was read.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    OpaqueBlock,
    TextBlock,
    ToolUseBlock,
)
from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint
from metis.interchange.attocode import types
from metis.interchange.conversion import ConversionContext, foreign_fields, is_media_type
from metis.interchange.document import T, convert_to
from metis.streaming.arguments import parse_arguments
from metis.wire.json_access import Wire, maybe_list, maybe_object

SYSTEM = "attocode"
SNAKE_CASE = {"spelling": "snake_case"}
"""The foreign fields of a message that was read from a file of the Python program."""

_SNAKE_KEYS: Mapping[str, str] = {
    "toolCalls": "tool_calls",
    "toolResults": "tool_results",
    "toolCallId": "tool_call_id",
    "parseError": "parse_error",
    "callId": "call_id",
    "stopReason": "stop_reason",
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_tokens",
    "cacheWriteTokens": "cache_creation_tokens",
}
_CAMEL_KEYS = {snake: camel for camel, snake in _SNAKE_KEYS.items()}
# Keys are renamed only below these: arguments, values and metadata have keys of a tool.
_LISTS = ("toolCalls", "toolResults")
_OBJECTS = ("usage",)
# attocode stores the text of arguments that are not JSON under this key.
_RAW_KEY = "_raw"
_EPHEMERAL = {"type": "ephemeral"}


def is_snake_case(record: Wire) -> bool:
    """Return whether a record has keys in the spelling of the Python program."""
    return not record.keys().isdisjoint(_CAMEL_KEYS) or not maybe_object(
        record.get("usage")
    ).keys().isdisjoint(_CAMEL_KEYS)


def has_snake_case(message: Message) -> bool:
    """Return whether a message came from a file of the Python program."""
    return SNAKE_CASE.items() <= foreign_fields(message, SYSTEM).items()


def to_snake_case(record: Wire) -> Wire:
    """Return a record with the keys of the Python program."""
    return _renamed(record, _SNAKE_KEYS)


def decode_record(kind: type[T], record: Wire, *, is_snake: bool) -> T:
    """Return a record of either spelling as a wire type.

    Raises:
        DecodeError: it does not fit; the path has the spelling of the record.
    """
    if not is_snake:
        return convert_to(kind, record, "$")
    try:
        return convert_to(kind, {"content": "", **_renamed(record, _CAMEL_KEYS)}, "$")
    except DecodeError as error:
        path = error.path
        for camel, snake in _SNAKE_KEYS.items():
            path = path.replace(f".{camel}", f".{snake}")
        raise DecodeError(error.reason, path=path) from None


def _renamed(record: Wire, keys: Mapping[str, str]) -> Wire:
    renamed: Wire = {}
    for key, value in record.items():
        name = keys.get(key, key)
        # A record with both spellings of a key has one of them in the residue.
        if name in renamed or (name != key and name in record):
            name = key
        if _CAMEL_KEYS.get(name, name) in _LISTS and isinstance(value, list):
            value = [_renamed_flat(item, keys) for item in maybe_list(value)]  # noqa: PLW2901 - the renamed value
        elif name in _OBJECTS:
            value = _renamed_flat(value, keys)  # noqa: PLW2901 - the renamed value
        renamed[name] = value
    return renamed


def _renamed_flat(value: Any, keys: Mapping[str, str]) -> Any:
    item = maybe_object(value)
    return {keys.get(key, key): inner for key, inner in item.items()} if item else value


# Content


def decode_content(
    content: str | Sequence[types.ContentBlock], role: Role
) -> tuple[list[ContentBlock], list[CacheHint]]:
    """Return the blocks of content and the cache hints behind them."""
    if isinstance(content, str):
        return ([TextBlock(content)] if content else []), []
    hints = [
        CacheHint(after=index)
        for index, block in enumerate(content)
        if block.cache_control is not None
    ]
    return [_decode_block(block, role) for block in content], hints


def _decode_block(block: types.ContentBlock, role: Role) -> ContentBlock:
    if isinstance(block, types.TextContent):
        return TextBlock(block.text)
    source, media = block.source, block.source.media_type
    # System messages hold only text here, and a bad media type would be refused by every provider.
    if role == Role.SYSTEM or not is_media_type(media):
        raw = Raw(msgspec.json.encode({"type": "image", "source": msgspec.to_builtins(source)}))
        return OpaqueBlock(SYSTEM, raw, "image")
    if role == Role.ASSISTANT:
        return ArtifactBlock(MediaSource(source.type, source.data), media)
    return ImageBlock(ImageSource(source.type, source.data), media)


def encode_content(blocks: Sequence[ContentBlock], marked: set[int]) -> str | list[Wire]:
    """Return the content of blocks: one text as a string, everything else as a list."""
    content: list[Wire] = []
    for index, block in enumerate(blocks):
        wire = _encode_block(block)
        if wire is not None:
            mark = {"cache_control": _EPHEMERAL} if index in marked else {}
            content.append({**wire, **mark})
    is_plain = all(wire.keys() == {"type", "text"} for wire in content)
    if len(content) < 2 and is_plain:  # noqa: PLR2004 - one text, or none
        return "".join(wire["text"] for wire in content)
    return content


def _encode_block(block: ContentBlock) -> Wire | None:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ImageBlock() | ArtifactBlock() if block.source.kind in ("base64", "url"):
            if not block.media_type.startswith("image/"):
                return None
            source = {
                "type": str(block.source.kind),
                "media_type": block.media_type,
                "data": block.source.data,
            }
            return {"type": "image", "source": source}
        case OpaqueBlock() if block.issuer == SYSTEM:
            return maybe_object(block.data) or None
        case _:
            return None


# Tool calls


def decode_calls(
    calls: Sequence[types.ToolCall] | None, conversion: ConversionContext
) -> list[ToolUseBlock]:
    """Return the blocks of tool calls."""
    return [_decode_call(call, conversion) for call in calls or ()]


def _decode_call(call: types.ToolCall, conversion: ConversionContext) -> ToolUseBlock:
    # Arguments with a `parseError` are never used as an input: they stay invalid here, too.
    tool_use_id = conversion.open_tool_call(call.id, call.name)
    if call.parseError is None:
        return ToolUseBlock(tool_use_id, call.name, call.arguments)
    raw = call.arguments.get(_RAW_KEY)
    if set(call.arguments) != {_RAW_KEY} or not isinstance(raw, str):
        raw = json.dumps(call.arguments, ensure_ascii=False)
    return ToolUseBlock(tool_use_id, call.name, {}, InvalidInput(raw=raw, error=call.parseError))


def foreign_call_ids(calls: Sequence[types.ToolCall] | None) -> Wire:
    """Return what a message holds of the ids of its calls."""
    return {"calls": [call.id for call in calls]} if calls else {}


def encode_calls(message: Message, conversion: ConversionContext) -> list[Wire]:
    """Return the tool calls of a message under their foreign ids."""
    blocks = [block for block in message.content if isinstance(block, ToolUseBlock)]
    foreign_ids = conversion.foreign_call_ids(message)
    return [
        _encode_call(block, foreign_id or block.id)
        for block, foreign_id in zip(blocks, foreign_ids, strict=True)
    ]


def _encode_call(block: ToolUseBlock, foreign_id: str) -> Wire:
    wire: Wire = {"id": foreign_id, "name": block.name}
    if block.invalid is None:
        return wire | {"arguments": block.input}
    parsed, error = parse_arguments(block.invalid.raw)
    arguments = {_RAW_KEY: block.invalid.raw} if error is not None else parsed
    return wire | {"arguments": arguments, "parseError": block.invalid.error}
