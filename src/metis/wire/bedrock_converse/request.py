"""Requests of Bedrock Converse, as they are read.

A user message of the wire may hold results and text; each result becomes a tool message, the rest
user messages. A mark for the cache becomes a hint of what stands before it. The system prompt
becomes the first message. Everything that is neither message nor tool goes into the options; the
model is not in the body, it comes with the context.
"""

from collections.abc import Iterator
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, MessageMetadata
from metis.canonical.value import raw_constructor
from metis.wire.bedrock_converse.blocks import (
    PROTOCOL,
    cache_hint,
    decode_block,
    decode_result,
    encode_alone,
    is_exact,
    is_plain_call,
    is_result,
    plain_result_text,
)
from metis.wire.bedrock_converse.options import decode_options, decode_tools
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.json_access import Wire, list_at, maybe_object, object_at, read_object, unknown_role
from metis.wire.tool_ids import CallIds

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER
_KEYS_OF_TURN = 2
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    wire = read_object(body, "request")
    draft = _Draft(context)
    try:
        if wire.get("system"):
            draft.take_system(list_at(wire.pop("system"), "$.system"))
        if "messages" not in wire:
            raise DecodeError("a request has a list of messages", path="$.messages")
        for index, turn in enumerate(list_at(wire.pop("messages"), "$.messages")):
            draft.take(object_at(turn, f"$.messages[{index}]"), index)
        tools, options = decode_tools(wire), decode_options(wire, context.model)
    except RecursionError:
        raise DecodeError("nested too deeply") from None
    return CanonicalRequest(draft.messages(), tools, options)


class _Draft:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._origin = context.provider or PROTOCOL
        self._ids = CallIds(context.session_id)
        self._bare = _make_metadata(origin=self._origin)
        self._read: list[tuple[Role, tuple[ContentBlock, ...], MessageMetadata]] = []
        self._before: Role | None = None
        """Who spoke in the turn before."""

    def messages(self) -> tuple[Message, ...]:
        session_id, moment = self._context.session_id, self._context.created_at
        ids = new_ulids(len(self._read))
        return tuple(
            [
                _make_message(
                    id=one,
                    session_id=session_id,
                    role=role,
                    content=content,
                    metadata=metadata,
                    created_at=moment,
                )
                for one, (role, content, metadata) in zip(ids, self._read, strict=True)
            ]
        )

    def take_system(self, parts: list[Any]) -> None:
        """Take the instructions that stand beside the turns."""
        self._add(_SYSTEM, parts, {})

    def take(self, wire: Wire, index: int) -> None:
        """Take one message of the wire: one or several of ours."""
        word = wire.get("role")
        role = _ROLES.get(word) if isinstance(word, str) else None
        if role is None:
            raise unknown_role(word, f"$.messages[{index}]")
        parts = list_at(wire.get("content"), f"$.messages[{index}].content")
        spelling: dict[str, Any] = {}
        if role is self._before:
            spelling["apart"] = True
        if len(wire) != _KEYS_OF_TURN:
            spelling["keys"] = {k: v for k, v in wire.items() if k not in ("role", "content")}
        if role is _SYSTEM and (self._before is None or self._before is _SYSTEM):
            spelling["turn"] = True
        self._before = role
        if role is not _USER or not any(map(is_result, parts)):
            self._add(role, parts, spelling)
            return
        for number, (is_answer, group) in enumerate(_groups(parts)):
            own = {} if number else spelling
            if is_answer:
                self._add_result(group, own)
            else:
                self._add(role, group, own)

    def _add(self, role: Role, parts: list[Any], spelling: dict[str, Any]) -> None:
        content: list[ContentBlock] = []
        ids: dict[str, str] = {}
        odd: dict[str, Any] = {}
        hints: list[CacheHint] = []
        for part in parts:
            own = maybe_object(part)
            if len(own) == 1:
                text = own.get("text")
                if type(text) is str:
                    content.append(_make_text(text))
                    continue
                call = own.get("toolUse")
                if type(call) is dict and is_plain_call(call := cast("Wire", call)):
                    theirs = call["toolUseId"]
                    ours = self._ids.of_call(theirs)
                    ids[ours] = theirs
                    content.append(_make_call(ours, call["name"], call["input"]))
                    continue
                if "cachePoint" in own and (hint := cache_hint(own, len(content) - 1)):
                    hints.append(hint)
                    continue
            block = decode_block(part, is_answer=role is _ASSISTANT)
            if isinstance(block, ToolUseBlock):
                theirs = block.id
                ours = self._ids.of_call(theirs)
                ids[ours] = theirs
                block = replace(block, id=ours)
            if not is_exact(block, part, lambda ours: ids.get(ours, ours)):
                odd[str(len(content))] = part
            content.append(block)
        self._put(role, content, _spelled(spelling, ids, odd), tuple(hints))

    def _add_result(self, parts: list[Any], spelling: dict[str, Any]) -> None:
        """Add a result, and the mark behind it if there is one."""
        wire = parts[0]
        answer = maybe_object(maybe_object(wire).get("toolResult"))
        theirs, status = answer["toolUseId"], answer.get("status")
        ours = self._ids.of_result(theirs)
        ids, odd = {ours: theirs}, dict[str, Any]()
        if status == "success":
            spelling["success"] = True
        text = plain_result_text(answer) if len(wire) == 1 else None
        if text is not None:
            is_error = status == "error"
            block = _make_result(ours, (_make_text(text),), is_error=is_error)
        else:
            block = decode_result(wire, ours)
            plain = encode_alone(block, ids.__getitem__)
            if status == "success":
                plain["toolResult"]["status"] = status
            if plain != wire:
                odd["0"] = wire
        marks = (cache_hint(part, 0) for part in parts[1:])
        hints = tuple(mark for mark in marks if mark is not None)
        self._put(_TOOL, [block], _spelled(spelling, ids, odd), hints)

    def _put(
        self,
        role: Role,
        content: list[ContentBlock],
        spelling: dict[str, Any],
        hints: tuple[CacheHint, ...],
    ) -> None:
        if "blocks" in spelling:
            spelling["digest"] = content_digest(role, content)
        metadata = self._bare
        if spelling or hints:
            metadata = _make_metadata(
                origin=self._origin,
                hints=hints,
                parent_tool_use_id=next(iter(spelling["ids"])) if role is _TOOL else None,
                provider_raw={PROTOCOL: spelling} if spelling else None,
            )
        self._read.append((role, tuple(content), metadata))


def _spelled(spelling: dict[str, Any], ids: Wire, odd: Wire) -> dict[str, Any]:
    """A spelling with the ids of calls, and with the parts that say more than their blocks."""
    if ids:
        spelling["ids"] = ids
    if odd:
        spelling["blocks"] = odd
    return spelling


def _groups(parts: list[Any]) -> Iterator[tuple[bool, list[Any]]]:
    """The parts of a user message by the messages of ours that they become, in order.

    A mark right behind a result belongs to it.
    """
    group: list[Any] = []
    is_answer = False
    for part in parts:
        if is_result(part):
            if group:
                yield is_answer, group
            group, is_answer = [part], True
        elif is_answer and cache_hint(part, 0) is None:
            yield True, group
            group, is_answer = [part], False
        else:
            group.append(part)
    if group:
        yield is_answer, group
