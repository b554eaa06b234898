"""Requests of Chat Completions.

Decoding: each message of the wire becomes one of ours, in its place. Everything that is neither
message nor tool goes into the options.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import made
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.failed_result import mark_failed
from metis.wire.functions import decode_functions
from metis.wire.openai_chat.assistant import decode_assistant, encode_assistant
from metis.wire.openai_chat.cache import hints_of
from metis.wire.openai_chat.calls import WireId
from metis.wire.openai_chat.common import Body, TurnReader
from metis.wire.openai_chat.options import decode_options
from metis.wire.openai_chat.parts import PROTOCOL, decode_parts, encode_parts, is_empty
from metis.wire.shape import Wire, maybe_list, maybe_object, read_object
from metis.wire.spelling import spelled
from metis.wire.tool_ids import CallIds, derived_id

_make_message = made(Message)
_make_metadata = made(MessageMetadata)
_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}
_read_common = msgspec.json.Decoder(Body).decode

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
    read = TurnReader(context.session_id, context.provider or PROTOCOL).read
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
            maybe_object(message), place, one, context, lambda wire: _decode(wire, ids, issuer)
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
    spelling = remember(wire, role, content, spelling)
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
            hints=hints_of(wire, content),
            provider_raw=spelled(PROTOCOL, spelling),
        ),
    )


def _decode(wire: Wire, ids: CallIds, issuer: str) -> tuple[_Content, dict[str, Any]]:
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


def remember(
    wire: Wire, role: Role, content: _Content, spelling: Mapping[str, Any]
) -> dict[str, Any]:
    """The spelling with what is still missing to write exactly this message again."""
    ids: Mapping[str, str] = spelling.get("ids") or {}
    plain = _encode(role, content, spelling, _wire_id(ids))
    keys = {key: value for key, value in wire.items() if not _says(plain, key, value)}
    found = {**spelling, "keys": keys, "absent": [key for key in plain if key not in wire]}
    if spell(plain, found) == wire:
        return found
    return {**spelling, "whole": {"wire": wire, "digest": content_digest(role, content)}}


def _says(plain: Wire, key: str, value: Any) -> bool:
    return key in plain and plain[key] == value


def spell(wire: Wire, spelling: Mapping[str, Any]) -> Wire:
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
    message: Message, spelling: Mapping[str, Any], wire_id: WireId, *, is_answer: bool = False
) -> Wire:
    """One message of the wire for one of ours."""
    is_echo = "response" in spelling and not is_answer
    whole: Mapping[str, Any] = spelling.get("whole") or {}
    if whole and not is_echo and whole["digest"] == message.content_digest():
        return whole["wire"]
    wire = spell(
        _encode(message.role, message.content, spelling, wire_id, is_answer=is_answer), spelling
    )
    return {key: wire[key] for key in wire if not _is_idle(key, wire)} if is_echo else wire


def _is_idle(key: str, wire: Wire) -> bool:
    """Whether a key of an answer says nothing when the answer is sent back."""
    return key not in ("role", "content") and is_empty(wire[key])


def _encode(
    role: Role,
    content: _Content,
    spelling: Mapping[str, Any],
    wire_id: WireId,
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


def _encode_result(content: _Content, spelling: Mapping[str, Any], wire_id: WireId) -> Wire:
    result = next((block for block in content if isinstance(block, ToolResultBlock)), None)
    if result is None:
        return {"role": "tool", "content": _encode_content(content, spelling)}
    inner = mark_failed(result.content) if result.is_error else result.content
    text = _encode_content(inner, spelling)
    if "function" in spelling:
        return {"role": "function", **spelling["function"], "content": text}
    return {"role": "tool", "tool_call_id": wire_id(result.tool_use_id), "content": text}


def known_ids(spelling: Mapping[str, Any]) -> WireId:
    """The ids that one message remembers; others are derived from ours."""
    return _wire_id(spelling.get("ids") or {})


def _wire_id(known: Mapping[str, str]) -> WireId:
    def wire_id(ours: str) -> str:
        theirs = known.get(ours)
        return derived_id(ours, "call_") if theirs is None else theirs

    return wire_id
