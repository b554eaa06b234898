"""Turns of gpt2099 and their blocks, ids, roles and cache marks.

A tool result is a block of the user's turn in gpt2099 and a message of its own here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.errors import DecodeError
from metis.canonical.ids import is_ulid, new_ulid, ulid_to_int
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, Outcome, OutcomeStatus
from metis.interchange.conversion import (
    NO_MATCHING_CALL,
    ConversionContext,
    foreign_fields,
    is_media_type,
    orphan_result_content,
    with_foreign_fields,
)
from metis.interchange.document import convert_to
from metis.interchange.gpt2099 import types
from metis.projection.loss import Change
from metis.store.entries import KnownEntry, MessageEntry
from metis.wire.json_access import Wire, maybe_object

SYSTEM = "gpt2099"
EPHEMERAL = {"type": "ephemeral"}
ROLES = {Role.USER: "user", Role.ASSISTANT: "assistant", Role.SYSTEM: "system", Role.TOOL: "user"}
"""gpt2099's role for each of ours; tool results are part of the user's turn."""
DEFAULT_VALUES: Mapping[str, tuple[Any, ...]] = {
    "role": ("user",),
    "options": ({}, None),
    "cache": (False, None),
    "is_error": (False, None),
    "id": (None,),
    "tool_use_id": (None,),
}
"""Values that mean the same as an absent key."""
CACHE_MARKS = {"cache": True, "cache_control": EPHEMERAL}
"""Cache marks are hints: their position is not a loss."""

_MEDIA_BLOCKS = (ImageBlock, DocumentBlock, AudioBlock, VideoBlock, ArtifactBlock)
# SCRU128 ids: 128 bits as 25 characters in base 36, which sort by time.
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TURN_ID_LENGTH = 25
_TURN_ID = re.compile(r"[0-9A-Za-z]{25}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANDOM_BITS = 80


def is_turn_id(text: str) -> bool:
    """Return whether a text has the form of a turn's id; bookmarks must not."""
    return _TURN_ID.fullmatch(text) is not None


def turn_id(ulid: str) -> str:
    """Return the turn id of one of our messages: the same 128 bits, so that the order stays."""
    # A message of another system may have any id, which has no bits to convert.
    if not is_ulid(ulid):
        return ulid
    number, digits = ulid_to_int(ulid), ""
    for _ in range(_TURN_ID_LENGTH):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


def turn_time(text: str) -> datetime | None:
    """Return the time in a turn's id; None if it is not an id or out of range."""
    if not is_turn_id(text):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=int(text, 36) >> _RANDOM_BITS)
    except OverflowError:
        return None


def turn_id_of(message: Message) -> str:
    """Return the id of the turn that a message starts."""
    stored = foreign_fields(message, SYSTEM).get("id")
    return stored if isinstance(stored, str) else turn_id(message.id)


def messages_of(entries: Sequence[KnownEntry]) -> list[Message]:
    """Return the messages of one turn; empty if gpt2099 has no role for one of them."""
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    return messages if all(message.role in ROLES for message in messages) else []


def role_of(messages: Sequence[Message]) -> str:
    """Return the role of a turn."""
    return ROLES[messages[0].role]


def with_cache_mark(message: Message) -> Message:
    """Return a message with a cache mark at its end, as a turn with `cache` has it."""
    last = CacheHint(after=len(message.content) - 1)
    hints = (*(hint for hint in message.metadata.hints if hint.after != last.after), last)
    return replace(message, metadata=replace(message.metadata, hints=hints))


def without_cache_mark(messages: Sequence[Message]) -> tuple[list[Message], bool]:
    """Return the messages without the cache mark at their end, and whether there was one."""
    *others, last = messages
    # `cache` of a turn and a mark on its last block mean the same.
    end = len(last.content) - 1
    hints = tuple(hint for hint in last.metadata.hints if hint.after != end)
    if len(hints) == len(last.metadata.hints):
        return list(messages), False
    return [*others, replace(last, metadata=replace(last.metadata, hints=hints))], True


def decode_turn(
    role: Role,
    content: Sequence[Wire],
    conversion: ConversionContext,
    *,
    created_at: datetime | None = None,
    foreign: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> list[Message]:
    """Return the messages of one turn: one per tool result, one per run of other blocks.

    `foreign` and `metadata` hold for the whole turn and are set on its first message.
    """
    turn = _TurnDecoder(role, conversion)
    for index, wire in enumerate(content):
        turn.add(wire, f"$.content[{index}]")
    messages = turn.messages(is_empty=not content and role != Role.SYSTEM)
    if created_at is not None:
        messages = [replace(message, created_at=created_at) for message in messages]
    messages[0] = replace(messages[0], metadata=replace(messages[0].metadata, **metadata))
    return [
        with_foreign_fields(message, SYSTEM, {"part": part} if part else foreign or {})
        for part, message in enumerate(messages)
    ]


class _TurnDecoder:
    """Splits the blocks of one turn into messages."""

    def __init__(self, role: Role, conversion: ConversionContext) -> None:
        self._role = role
        self._conversion = conversion
        self._messages: list[Message] = []
        self._blocks: list[ContentBlock] = []
        self._hints: list[CacheHint] = []
        self._call_ids: list[str | None] = []
        self._orphan_paths: list[str] = []

    def add(self, wire: Wire, path: str) -> None:
        """Decode the next block."""
        if wire.get("type") == "tool_result" and self._role == Role.USER:
            self._add_result(wire, path)
        else:
            block = _decode_block(wire, self._role, self._conversion, path)
            if isinstance(block, ToolUseBlock):
                self._call_ids.append(wire.get("id"))
            self._blocks.append(block)
        if wire.get("cache_control") and self._blocks:
            self._hints.append(CacheHint(after=len(self._blocks) - 1))

    def messages(self, *, is_empty: bool) -> list[Message]:
        """Return the messages of the turn; at least one."""
        if is_empty:
            self._blocks = [TextBlock("")]
        if self._blocks or not self._messages:
            self._end_message()
        # A result was created before the text in front of it; new ids follow the turn's order.
        self._messages = [replace(message, id=new_ulid()) for message in self._messages]
        first = self._messages[0]
        if is_empty:
            reason = "a turn without content; an empty text was added"
            self._conversion.add_loss(first, "text", "$.content", reason, Change.SYNTHESISED)
        for path in self._orphan_paths:
            self._conversion.add_loss(first, "tool_result", path, NO_MATCHING_CALL)
        return self._messages

    def _add_result(self, wire: Wire, path: str) -> None:
        result = _decode_result(wire, self._conversion, path)
        if not isinstance(result, Message):
            self._blocks += result
            self._orphan_paths.append(path)
            return
        if self._blocks:
            self._end_message()
        self._messages.append(result)

    def _end_message(self) -> None:
        foreign = {"calls": self._call_ids} if self._call_ids else None
        message = self._conversion.message(
            self._role, self._blocks, hints=tuple(self._hints), foreign=foreign
        )
        self._messages.append(message)
        self._blocks, self._hints, self._call_ids = [], [], []


def _decode_result(
    wire: Wire, conversion: ConversionContext, path: str
) -> Message | tuple[ContentBlock, ...]:
    """Return the message of a tool result; its blocks for a user message if it has no call."""
    result = convert_to(types.ToolResultBlock, wire, path)
    content = tuple(
        _decode_result_block(inner, f"{path}.content[{index}]")
        for index, inner in enumerate(result.content)
    )
    tool_use_id = conversion.match_tool_result(result.tool_use_id, result.name)
    if tool_use_id is None:
        return orphan_result_content(content)
    failed = bool(result.is_error)
    status = OutcomeStatus.ERROR if failed else OutcomeStatus.SUCCESS
    return conversion.message(
        Role.TOOL,
        (ToolResultBlock(tool_use_id, content, failed),),
        parent_tool_use_id=tool_use_id,
        outcome=Outcome(status=status, tool_name=result.name),
    )


def _decode_result_block(wire: Wire, path: str) -> ContentBlock:
    kind = wire.get("type")
    if kind == "text" and isinstance(wire.get("text"), str):
        return TextBlock(wire["text"])
    if kind == "document":
        document = convert_to(types.DocumentBlock, wire, path)
        return _decode_document(document, Role.USER) or _opaque(wire)
    return _opaque(wire)


def _decode_block(wire: Wire, role: Role, conversion: ConversionContext, path: str) -> ContentBlock:
    match wire.get("type"):
        case "text":
            return TextBlock(convert_to(types.TextBlock, wire, path).text)
        case "document":
            document = convert_to(types.DocumentBlock, wire, path)
            return _decode_document(document, role) or _opaque(wire)
        case "tool_use":
            call = convert_to(types.ToolUseBlock, wire, path)
            if role != Role.ASSISTANT:
                return _opaque(wire)
            tool_use_id = conversion.open_tool_call(call.id, call.name)
            return ToolUseBlock(tool_use_id, call.name, call.input)
        # Only the user's turn may hold results; elsewhere one is stored to be written back.
        case "tool_result":
            convert_to(types.ToolResultBlock, wire, path)
            return _opaque(wire)
        case str():
            return _opaque(wire)
        case _:
            raise DecodeError("a block has no type", path=f"{path}.type")


def _decode_document(wire: types.DocumentBlock, role: Role) -> ContentBlock | None:
    """Return the block of a file by its media type; None where the role allows no file."""
    media, data = wire.source.media_type, wire.source.data
    # System messages hold only text here, and a bad media type would be refused by every provider.
    if role == Role.SYSTEM or not is_media_type(media):
        return None
    source = MediaSource("base64", data)
    if role == Role.ASSISTANT:
        # Assistants make files here; they do not send documents.
        return ArtifactBlock(source, media)
    match media.partition("/")[0]:
        case "image":
            return ImageBlock(ImageSource("base64", data), media)
        case "audio":
            return AudioBlock(source, media)
        case "video":
            return VideoBlock(source, media)
        case _:
            return DocumentBlock(source, media)


def _opaque(wire: Wire) -> OpaqueBlock:
    kind = wire.get("type")
    raw = Raw(msgspec.json.encode(wire))
    return OpaqueBlock(SYSTEM, raw, kind if isinstance(kind, str) else None)


def encode_turn(messages: Sequence[Message], conversion: ConversionContext) -> list[Wire]:
    """Return the content of one turn."""
    content: list[Wire] = []
    for message in messages:
        if message.role == Role.TOOL:
            content += _encode_result(message, conversion)
            continue
        calls = iter(conversion.foreign_call_ids(message))
        marked = {hint.after for hint in message.metadata.hints}
        for index, block in enumerate(message.content):
            for wire in _encode_block(block, calls):
                mark = {"cache_control": EPHEMERAL} if index in marked else {}
                if "type" in wire:  # only results may hold records without a type
                    content.append(wire | mark)
    return content


def _encode_result(message: Message, conversion: ConversionContext) -> Iterator[Wire]:
    for block in message.content:
        if not isinstance(block, ToolResultBlock):
            continue
        foreign_id = conversion.foreign_call_id(block.tool_use_id)
        outcome = message.metadata.outcome
        # gpt2099 requires the tool's name in every result; ours may only be in the call.
        tool_name = outcome.tool_name if outcome else None
        inner = [wire for part in block.content for wire in _encode_block(part, iter(()))]
        yield {
            "type": "tool_result",
            "name": tool_name or conversion.tool_name(block.tool_use_id),
            "content": inner,
            **({} if foreign_id is None else {"tool_use_id": foreign_id}),
            **({"is_error": True} if block.is_error else {}),
        }


def _encode_block(block: ContentBlock, calls: Iterator[str | None]) -> Iterator[Wire]:
    match block:
        case TextBlock():
            yield {"type": "text", "text": block.text}
        case ToolUseBlock():
            foreign_id = next(calls, block.id)
            wire_id = {} if foreign_id is None else {"id": foreign_id}
            yield {"type": "tool_use", **wire_id, "name": block.name, "input": block.input}
        case OpaqueBlock() if block.issuer == SYSTEM:
            yield maybe_object(block.data)
        case _ if isinstance(block, _MEDIA_BLOCKS) and block.source.kind == "base64":
            source = {"type": "base64", "media_type": block.media_type, "data": block.source.data}
            yield {"type": "document", "source": source}
        case _:
            return
