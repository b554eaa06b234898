"""Turns of gpt2099 and their blocks, ids, roles and cache marks.

A result of a tool call is a block of the user's turn in gpt2099 and a message of its own here.
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
    ConversionContext,
    foreign_fields,
    is_media_type,
    orphan_result_content,
)
from metis.interchange.document import convert_to
from metis.interchange.gpt2099 import types
from metis.projection.loss import Change
from metis.store.entries import KnownEntry, MessageEntry
from metis.wire.json_access import Wire, maybe_object

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LENGTH = 25
_TURN_ID = re.compile(r"[0-9A-Za-z]{25}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANDOM_BITS = 80


def is_turn_id(text: str) -> bool:
    """Whether a text has the form of a turn's id; no bookmark may."""
    return _TURN_ID.fullmatch(text) is not None


def turn_id(ulid: str) -> str:
    """The id of a turn for one of our messages: the same 128 bits, so that the order stays."""
    if not is_ulid(ulid):
        return ulid
    number, digits = ulid_to_int(ulid), ""
    for _ in range(_LENGTH):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


def turn_time(text: str) -> datetime | None:
    """When a turn was made, as its id says; None if it says nothing that can be."""
    if not is_turn_id(text):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=int(text, 36) >> _RANDOM_BITS)
    except OverflowError:
        return None


SYSTEM = "gpt2099"
EPHEMERAL = {"type": "ephemeral"}
_INLINE = (ImageBlock, DocumentBlock, AudioBlock, VideoBlock, ArtifactBlock)


def decode_turn(
    role: Role,
    content: Sequence[Wire],
    desk: ConversionContext,
    *,
    created_at: datetime | None = None,
    **facts: Any,
) -> list[Message]:
    """The messages of one turn: a run of other blocks is one, each result of a call is one."""
    turn = _Turn(role, desk)
    for index, wire in enumerate(content):
        turn.take(wire, f"$.content[{index}]")
    messages = turn.messages(is_empty=not content and role != Role.SYSTEM)
    if created_at is not None:
        messages = [replace(message, created_at=created_at) for message in messages]
    return [_marked(message, part, facts) for part, message in enumerate(messages)]


class _Turn:
    """One turn while it is read."""

    def __init__(self, role: Role, desk: ConversionContext) -> None:
        self._role = role
        self._desk = desk
        self._done: list[Message] = []
        self._run: list[ContentBlock] = []
        self._hints: list[CacheHint] = []
        self._calls: list[str | None] = []
        self._orphans: list[str] = []

    def take(self, wire: Wire, path: str) -> None:
        """The next block."""
        if wire.get("type") == "tool_result" and self._role == Role.USER:
            self._take_result(wire, path)
        else:
            block = _decode_block(wire, self._role, self._desk, path)
            if isinstance(block, ToolUseBlock):
                self._calls.append(wire.get("id"))
            self._run.append(block)
        if wire.get("cache_control") and self._run:
            self._hints.append(CacheHint(after=len(self._run) - 1))

    def messages(self, *, is_empty: bool) -> list[Message]:
        """What was read, as messages; never none."""
        if is_empty:
            self._run = [TextBlock("")]
        if self._run or not self._done:
            self._close()
        # A result was made before the words in front of it; ids go by the order of the turn.
        self._done = [replace(message, id=new_ulid()) for message in self._done]
        first = self._done[0]
        if is_empty:
            reason = "a turn without content; here it holds an empty text"
            self._desk.add_loss(first, "text", "$.content", reason, Change.SYNTHESISED)
        for place in self._orphans:
            reason = "it answers no open call of this history; here it is told by the user"
            self._desk.add_loss(first, "tool_result", place, reason)
        return self._done

    def _take_result(self, wire: Wire, path: str) -> None:
        result = _decode_result(wire, self._desk, path)
        if not isinstance(result, Message):
            self._run += result
            self._orphans.append(path)
            return
        if self._run:
            self._close()
        self._done.append(result)

    def _close(self) -> None:
        foreign = {"calls": self._calls} if self._calls else None
        message = self._desk.message(
            self._role, self._run, hints=tuple(self._hints), foreign=foreign
        )
        self._done.append(message)
        self._run, self._hints, self._calls = [], [], []


def _marked(message: Message, part: int, facts: dict[str, Any]) -> Message:
    """The message with its number in the turn, and what the whole turn says on the first."""
    foreign = foreign_fields(message, SYSTEM)
    metadata = message.metadata
    if part == 0:
        foreign = {**foreign, **facts.get("foreign", {})}
        about = {key: value for key, value in facts.items() if key != "foreign"}
        metadata = replace(metadata, **about)
    else:
        foreign = {**foreign, "part": part}
    if foreign:
        metadata = replace(metadata, external={**(metadata.external or {}), SYSTEM: foreign})
    return replace(message, metadata=metadata)


def _decode_result(
    wire: Wire, desk: ConversionContext, path: str
) -> Message | tuple[ContentBlock, ...]:
    result = convert_to(types.ToolResultBlock, wire, path)
    content = tuple(
        _decode_inner(inner, f"{path}.content[{index}]")
        for index, inner in enumerate(result.content)
    )
    answered = desk.match_tool_result(result.tool_use_id, result.name)
    if answered is None:
        return orphan_result_content(content)
    failed = bool(result.is_error)
    status = OutcomeStatus.ERROR if failed else OutcomeStatus.SUCCESS
    return desk.message(
        Role.TOOL,
        (ToolResultBlock(answered, content, failed),),
        parent_tool_use_id=answered,
        outcome=Outcome(status=status, tool_name=result.name),
    )


def _decode_inner(wire: Wire, path: str) -> ContentBlock:
    kind = wire.get("type")
    if kind == "text" and isinstance(wire.get("text"), str):
        return TextBlock(wire["text"])
    if kind == "document":
        return _decode_document(convert_to(types.DocumentBlock, wire, path), Role.USER) or _sealed(
            wire
        )
    return _sealed(wire)


def _decode_block(wire: Wire, role: Role, desk: ConversionContext, path: str) -> ContentBlock:
    match wire.get("type"):
        case "text":
            return TextBlock(convert_to(types.TextBlock, wire, path).text)
        case "document":
            document = convert_to(types.DocumentBlock, wire, path)
            return _decode_document(document, role) or _sealed(wire)
        case "tool_use":
            call = convert_to(types.ToolUseBlock, wire, path)
            if role != Role.ASSISTANT:
                return _sealed(wire)
            return ToolUseBlock(desk.open_tool_call(call.id, call.name), call.name, call.input)
        case "tool_result":
            convert_to(types.ToolResultBlock, wire, path)
            return _sealed(wire)
        case str():
            return _sealed(wire)
        case _:
            raise DecodeError("a block has no type", path=f"{path}.type")


def _decode_document(wire: types.DocumentBlock, role: Role) -> ContentBlock | None:
    media, data = wire.source.media_type, wire.source.data
    if role == Role.SYSTEM or not is_media_type(media):
        return None
    source = MediaSource("base64", data)
    if role == Role.ASSISTANT:
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


def _sealed(wire: Wire) -> OpaqueBlock:
    kind = wire.get("type")
    raw = Raw(msgspec.json.encode(wire))
    return OpaqueBlock(SYSTEM, raw, kind if isinstance(kind, str) else None)


def encode_turn(messages: Sequence[Message], desk: ConversionContext) -> list[Wire]:
    """The content of one turn."""
    content: list[Wire] = []
    for message in messages:
        if message.role == Role.TOOL:
            content += _encode_result(message, desk)
            continue
        calls = iter(desk.foreign_call_ids(message))
        marks = {hint.after for hint in message.metadata.hints}
        for index, block in enumerate(message.content):
            for wire in _encode_block(block, calls):
                mark = {"cache_control": EPHEMERAL} if index in marks else {}
                if "type" in wire:  # records without a type may stand inside of results only
                    content.append(wire | mark)
    return content


def _encode_result(message: Message, desk: ConversionContext) -> Iterator[Wire]:
    for block in message.content:
        if not isinstance(block, ToolResultBlock):
            continue
        foreign = desk.foreign_call_id(block.tool_use_id)
        outcome = message.metadata.outcome
        inner = [wire for part in block.content for wire in _encode_block(part, iter(()))]
        yield {
            "type": "tool_result",
            "name": (outcome.tool_name if outcome else None) or desk.tool_name(block.tool_use_id),
            "content": inner,
            **({} if foreign is None else {"tool_use_id": foreign}),
            **({"is_error": True} if block.is_error else {}),
        }


def _encode_block(block: ContentBlock, calls: Iterator[str | None]) -> Iterator[Wire]:
    match block:
        case TextBlock():
            yield {"type": "text", "text": block.text}
        case ToolUseBlock():
            foreign = next(calls, block.id)
            own = {} if foreign is None else {"id": foreign}
            yield {"type": "tool_use", **own, "name": block.name, "input": block.input}
        case OpaqueBlock() if block.issuer == SYSTEM:
            yield maybe_object(block.data)
        case _ if isinstance(block, _INLINE) and block.source.kind == "base64":
            source = {"type": "base64", "media_type": block.media_type, "data": block.source.data}
            yield {"type": "document", "source": source}
        case _:
            return


ROLES = {Role.USER: "user", Role.ASSISTANT: "assistant", Role.SYSTEM: "system", Role.TOOL: "user"}
"""Their word for each of our roles; results of calls ride with the user."""

DEFAULT_VALUES: Mapping[str, tuple[Any, ...]] = {
    "role": ("user",),
    "options": ({}, None),
    "cache": (False, None),
    "is_error": (False, None),
    "id": (None,),
    "tool_use_id": (None,),
}
"""Values that say the same as leaving the key out."""

CACHE_MARKS = {"cache": True, "cache_control": EPHEMERAL}
"""Marks for caches: hints, whatever their place."""


def messages_of(entries: Sequence[KnownEntry]) -> list[Message]:
    """The messages of one turn; none if one of them has no role here."""
    found = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    return found if all(message.role in ROLES for message in found) else []


def role_of(messages: Sequence[Message]) -> str:
    """The role of a turn."""
    return ROLES[messages[0].role]


def turn_id_of(message: Message) -> str:
    """The id of the turn that a message begins."""
    found = foreign_fields(message, SYSTEM).get("id")
    return found if isinstance(found, str) else turn_id(message.id)


def with_cache_mark(message: Message) -> Message:
    """The message with a mark at its end, as a turn with `cache` has it."""
    last = CacheHint(after=len(message.content) - 1)
    hints = (*(hint for hint in message.metadata.hints if hint.after != last.after), last)
    return replace(message, metadata=replace(message.metadata, hints=hints))


def without_cache_mark(messages: Sequence[Message]) -> tuple[list[Message], bool]:
    """The messages without the mark at the end of the turn, and whether there was one."""
    *rest, last = messages
    end = len(last.content) - 1
    hints = tuple(hint for hint in last.metadata.hints if hint.after != end)
    if len(hints) == len(last.metadata.hints):
        return list(messages), False
    return [*rest, replace(last, metadata=replace(last.metadata, hints=hints))], True
