"""Requests of Chat Completions, both directions: each wire message is one canonical message."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.function_tools import decode_functions, with_error_prefix
from metis.wire.history import EncodedMessages
from metis.wire.json_access import Wire, maybe_list, maybe_object, read_object
from metis.wire.openai_chat.assistant import decode_assistant, encode_assistant, original_call
from metis.wire.openai_chat.blocks import (
    PROTOCOL,
    WireIdOf,
    cache_hints,
    decode_part,
    decode_parts,
    encode_call,
    encode_part,
    encode_parts,
    is_empty,
    with_cache_marks,
    write_json,
)
from metis.wire.openai_chat.fast import FastMessageDecoder, FastRequest
from metis.wire.openai_chat.options import decode_options, encode_options
from metis.wire.original_form import (
    EMPTY,
    is_meaningful,
    original_form_of,
    provider_raw_of,
    unmapped_paths,
)
from metis.wire.tool_ids import TOOL_ID_PREFIX, CallIds, derived_id

_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}
_read_common = msgspec.json.Decoder(FastRequest).decode

_Content = tuple[ContentBlock, ...]


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    quick = _decode_common(body, context)
    if quick is None:
        wire = read_object(body, "request")
        found = wire.pop("messages", None)
        if not isinstance(found, list):
            raise DecodeError("a request has a list of messages", path="$.messages")
        messages = decode_messages(maybe_list(found), context)
    else:
        messages, wire = quick
    return CanonicalRequest(messages, decode_functions(wire.get("tools")), decode_options(wire))


def _decode_common(body: bytes, context: RequestContext) -> tuple[tuple[Message, ...], Wire] | None:
    """The messages and the options of a request of common messages; None for all others."""
    try:
        request = _read_common(body)
    except (ValueError, RecursionError):
        return None
    read = FastMessageDecoder(context.session_id, context.provider or PROTOCOL).read
    session_id, moment = context.session_id, context.created_at
    messages: list[Message] = []
    for message_id, turn in zip(new_ulids(len(request.messages)), request.messages, strict=True):
        found = read(turn)
        if found is None:
            return None
        role, content, metadata = found
        messages.append(
            _make_message(
                id=message_id,
                session_id=session_id,
                role=role,
                content=content,
                created_at=moment,
                metadata=metadata,
            )
        )
    return tuple(messages), request.options()


def decode_messages(wire: Sequence[Any], context: RequestContext) -> tuple[Message, ...]:
    """Our messages for those of the wire."""
    ids = CallIds(context.session_id)
    issuer = context.provider or PROTOCOL
    return tuple(
        _decode_message(
            maybe_object(message),
            place,
            one,
            context,
            lambda wire: _decode_blocks(wire, ids, issuer),
        )
        for place, (one, message) in enumerate(zip(new_ulids(len(wire)), wire, strict=True))
    )


def _decode_message(
    wire: Wire,
    place: int,
    message_id: str,
    context: RequestContext,
    decode: Callable[[Wire], tuple[_Content, dict[str, Any]]],
) -> Message:
    role = _ROLES.get(str(wire.get("role")))
    if role is None:
        raise DecodeError("a message has a role that we know", path=f"$.messages[{place}]")
    content, spelling = decode(wire)
    spelling = with_exact_form(wire, role, content, spelling)
    calls = (block.tool_use_id for block in content if isinstance(block, ToolResultBlock))
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=role,
        content=content,
        created_at=context.created_at,
        metadata=_make_metadata(
            origin=context.provider or PROTOCOL,
            parent_tool_use_id=next(calls, None),
            hints=cache_hints(wire, content),
            provider_raw=provider_raw_of(PROTOCOL, spelling),
        ),
    )


def _decode_blocks(wire: Wire, ids: CallIds, issuer: str) -> tuple[_Content, dict[str, Any]]:
    match wire.get("role"):
        case "assistant":
            return decode_assistant(wire, ids, issuer)
        case "tool" | "function":
            return _decode_result(wire, ids, issuer)
        case _:
            # Somebody who says nothing says an empty text: a message has a block (M-123).
            content, spelling = _decode_content(wire.get("content"), issuer)
            return content or (TextBlock(""),), spelling


def _decode_content(content: Any, issuer: str) -> tuple[_Content, dict[str, Any]]:
    if isinstance(content, list):
        blocks, odd = decode_parts(maybe_list(content), issuer)
        return tuple(blocks), {"parts": True, "blocks": odd}
    return ((TextBlock(content),) if isinstance(content, str) and content else ()), {}


def _decode_result(wire: Wire, ids: CallIds, issuer: str) -> tuple[_Content, dict[str, Any]]:
    content, spelling = _decode_content(wire.get("content"), issuer)
    name = wire.get("name")
    if wire.get("role") == "function":
        spelling["function"] = {"name": name}
        ours = ids.of_result(str(name), is_id=False)
    else:
        theirs = wire.get("tool_call_id")
        theirs = theirs if isinstance(theirs, str) else ""
        ours = ids.of_result(theirs)
        spelling["ids"] = {ours: theirs}
    return (ToolResultBlock(ours, content),), spelling


def with_exact_form(
    wire: Wire, role: Role, content: _Content, spelling: Mapping[str, Any]
) -> dict[str, Any]:
    """The spelling with what is still missing to write exactly this message again."""
    ids: Mapping[str, str] = spelling.get("ids") or {}
    plain = _encode_blocks(role, content, spelling, _lookup_in(ids))
    keys = {key: value for key, value in wire.items() if not _has_key(plain, key, value)}
    found = {**spelling, "keys": keys, "absent": [key for key in plain if key not in wire]}
    if apply_form(plain, found) == wire:
        return found
    return {**spelling, "whole": {"wire": wire, "digest": content_digest(role, content)}}


def _has_key(plain: Wire, key: str, value: Any) -> bool:
    return key in plain and plain[key] == value


def apply_form(wire: Wire, spelling: Mapping[str, Any]) -> Wire:
    """The message with the keys that it came with, where blocks do not speak for themselves."""
    keys: Mapping[str, Any] = spelling.get("keys") or {}
    for key, value in keys.items():
        if not wire.get(key):
            wire[key] = value
    for key in spelling.get("absent") or ():
        if not wire.get(key):
            wire.pop(key, None)
    return wire


def encode_message(
    message: Message, spelling: Mapping[str, Any], wire_id: WireIdOf, *, is_answer: bool = False
) -> Wire:
    """One message of the wire for one of ours."""
    is_echo = "response" in spelling and not is_answer
    whole: Mapping[str, Any] = spelling.get("whole") or {}
    if whole and not is_echo and whole["digest"] == message.content_digest():
        return whole["wire"]
    wire = apply_form(
        _encode_blocks(message.role, message.content, spelling, wire_id, is_answer=is_answer),
        spelling,
    )
    return {key: wire[key] for key in wire if not _is_idle(key, wire)} if is_echo else wire


def _is_idle(key: str, wire: Wire) -> bool:
    """Whether a key of an answer says nothing when the answer is sent back."""
    return key not in ("role", "content") and is_empty(wire[key])


def _encode_blocks(
    role: Role,
    content: _Content,
    spelling: Mapping[str, Any],
    wire_id: WireIdOf,
    *,
    is_answer: bool = False,
) -> Wire:
    if role is Role.ASSISTANT:
        return encode_assistant(content, spelling, wire_id, is_answer=is_answer)
    if role is Role.TOOL:
        return _encode_result(content, spelling, wire_id)
    return {"role": str(role), "content": _encode_content(content, spelling)}


def _encode_content(content: _Content, spelling: Mapping[str, Any]) -> Any:
    if not spelling.get("parts"):
        match content:
            case ():
                return ""
            case (TextBlock() as only,):
                return only.text
            case _:
                pass
    return encode_parts(content, spelling.get("blocks") or {})


def _encode_result(content: _Content, spelling: Mapping[str, Any], wire_id: WireIdOf) -> Wire:
    result = next((block for block in content if isinstance(block, ToolResultBlock)), None)
    if result is None:
        return {"role": "tool", "content": _encode_content(content, spelling)}
    inner = with_error_prefix(result.content) if result.is_error else result.content
    text = _encode_content(inner, spelling)
    if "function" in spelling:
        return {"role": "function", **spelling["function"], "content": text}
    return {"role": "tool", "tool_call_id": wire_id(result.tool_use_id), "content": text}


def wire_id_lookup(spelling: Mapping[str, Any]) -> WireIdOf:
    """The ids that one message remembers; others are derived from ours."""
    return _lookup_in(spelling.get("ids") or {})


def _lookup_in(known: Mapping[str, str]) -> WireIdOf:
    def wire_id(ours: str) -> str:
        theirs = known.get(ours)
        return derived_id(ours, "call_") if theirs is None else theirs

    return wire_id


_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_PREFIX = "call_"
_PLAIN_FORM = frozenset({"calls", "ids", "response"})
"""What the spelling of a message may hold that is written like one of ours."""


class _TextMessage(Struct, gc=False):
    content: str
    role: str


class _ToolMessage(Struct, gc=False):
    content: str
    tool_call_id: str
    role: str = "tool"


class _Function(Struct, gc=False):
    arguments: str
    name: str


class _Call(Struct, gc=False):
    function: _Function
    id: str
    type: str = "function"


class _CallMessage(Struct, gc=False):
    content: str | None
    tool_calls: list[_Call | Wire]
    role: str = "assistant"


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    turns = ChatHistoryEncoder()
    turns.add(messages)
    return turns.body(tools, options)


class ChatHistoryEncoder:
    """The turns of a conversation, written once each."""

    def __init__(self, turns: EncodedMessages | None = None) -> None:
        self._turns = turns or EncodedMessages("messages", write_json)
        self._ids: dict[str, str] = {}

    def copy(self) -> "ChatHistoryEncoder":
        """The same turns, to which others can be added."""
        other = ChatHistoryEncoder(self._turns.copy())
        other._ids = self._ids
        return other

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        return self._turns.body(tools, options, encode_options)

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._ids.update(ids)
        turns: list[Any] = []
        for message in messages:
            raw = message.metadata.provider_raw
            spelling = EMPTY if raw is None else raw.get(PROTOCOL, EMPTY)
            turn = None
            if spelling:
                self._ids.update(spelling.get("ids") or EMPTY)
            hints = message.metadata.hints
            if spelling.keys() <= _PLAIN_FORM and not hints:
                turn = self._plain(message.role, message.content, spelling)
            if turn is None:
                turn = encode_message(message, spelling, self._wire_id)
                if hints:
                    turn = with_cache_marks(turn, message.content, hints)
            turns.append(turn)
        self._turns.add(turns)

    def _plain(
        self, role: Role, content: Sequence[ContentBlock], spelling: Mapping[str, Any]
    ) -> Struct | None:
        """The turn of a message of texts and calls; None for all others."""
        if len(content) == 1:
            only = content[0]
            if type(only) is TextBlock and role is not _TOOL:
                return None if only.citations else _TextMessage(only.text, _role_name(role))
            if type(only) is ToolResultBlock:
                return self._result(only)
        return self._asked(content, spelling) if content and role is _ASSISTANT else None

    def _result(self, result: ToolResultBlock) -> _ToolMessage | None:
        inner = result.content
        if len(inner) != 1 or result.is_error:
            return None
        only, call = inner[0], result.tool_use_id
        if type(only) is not TextBlock:
            return None
        theirs = self._ids.get(call)
        return _ToolMessage(
            only.text, _PREFIX + call.removeprefix(TOOL_ID_PREFIX) if theirs is None else theirs
        )

    def _asked(
        self, content: Sequence[ContentBlock], spelling: Mapping[str, Any]
    ) -> _CallMessage | None:
        text = None
        calls: list[_Call | Wire] = []
        ids, odd = self._ids, spelling.get("calls", EMPTY)
        for block in content:
            if type(block) is ToolUseBlock:
                if odd and (kept := original_call(block, spelling, self._wire_id)) is not None:
                    calls.append(kept)
                    continue
                invalid, call = block.invalid, block.id
                arguments = invalid.raw if invalid else write_json(block.input).decode()
                theirs = ids.get(call)
                if theirs is None:
                    theirs = _PREFIX + call.removeprefix(TOOL_ID_PREFIX)
                calls.append(_Call(_Function(arguments, block.name), theirs))
            elif type(block) is TextBlock and text is None and not calls and not block.citations:
                text = block.text
            else:
                return None
        return _CallMessage(text, calls)

    def _wire_id(self, ours: str) -> str:
        theirs = self._ids.get(ours)
        return derived_id(ours, _PREFIX) if theirs is None else theirs


def _role_name(role: Role) -> str:
    """Who speaks, in the protocol's words."""
    if role is _USER:
        return "user"
    return "assistant" if role is _ASSISTANT else str(role)


_MAPPED_KEYS = frozenset(
    {"role", "content", "tool_calls", "function_call", "tool_call_id", "annotations"}
)
"""Keys that blocks speak for, however they are spelled."""
_CALL_KEYS = {"function", "id", "type"}
_FUNCTION_KEYS = {"arguments", "name"}


def unmapped_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    spelling = original_form_of(message, PROTOCOL)
    whole = maybe_object(spelling.get("whole"))
    keys = maybe_object(whole.get("wire")) or maybe_object(spelling.get("keys"))
    for key, value in keys.items():
        if key not in _MAPPED_KEYS and is_meaningful(key, value):
            yield f"$.{key}"
    yield from _unmapped_parts(message, maybe_object(spelling.get("blocks")))
    calls = maybe_object(spelling.get("calls"))
    for index, block in enumerate(message.content):
        if (
            isinstance(block, ToolUseBlock)
            and block.id in calls
            and not _has_only_mapped_keys(calls[block.id])
        ):
            yield from unmapped_paths(
                calls[block.id], encode_call(block, str), f"$.content[{index}]"
            )


def _has_only_mapped_keys(call: Wire) -> bool:
    """Whether a call of a function says nothing but what our block does."""
    return call.keys() == _CALL_KEYS and maybe_object(call["function"]).keys() == _FUNCTION_KEYS


def _unmapped_parts(message: Message, odd: Mapping[str, Any]) -> Iterator[str]:
    for part in odd.values():
        block = decode_part(part)
        path = _path_of(block, message.content, "$.content")
        if path is not None:
            yield from unmapped_paths(part, encode_part(block), path)


def _path_of(block: ContentBlock, content: Sequence[ContentBlock], path: str) -> str | None:
    """Where a block stands in a message, or in the result that it holds."""
    for index, each in enumerate(content):
        if each == block:
            return f"{path}[{index}]"
        if isinstance(each, ToolResultBlock):
            inner = _path_of(block, each.content, f"{path}[{index}].content")
            if inner is not None:
                return inner
    return None
