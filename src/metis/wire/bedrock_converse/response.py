"""Responses of Bedrock Converse."""

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus
from metis.canonical.value import made
from metis.wire.bedrock_converse.blocks import (
    CALL,
    PROTOCOL,
    decode_block,
    encode_block,
    is_exact,
    is_usual_call,
    plain_block,
)
from metis.wire.bedrock_converse.errors import decode_error
from metis.wire.bedrock_converse.turns import PREFIX
from metis.wire.bedrock_converse.usage import (
    decode_stop_reason,
    decode_usage,
    encode_stop_reason,
    encode_usage,
)
from metis.wire.call import RequestContext
from metis.wire.failure import has_failed, is_broken, read_error
from metis.wire.shape import Wire, list_at, maybe_object, maybe_text, object_at, read_object
from metis.wire.spelling import spelled_blocks, spelling_of
from metis.wire.tool_ids import canonical_tool_id, derived_id

_write = msgspec.json.Encoder().encode
_MINTED = re.compile(r"[A-Za-z]+_[A-Za-z0-9_-]{16,}")
"""Ids that come once; others, such as `functions.read:0`, come again in the next answer (T09)."""
_ASSISTANT, _COMPLETE = Role.ASSISTANT, MessageStatus.COMPLETE
_make_text = made(TextBlock)
_make_call = made(ToolUseBlock)
_make_message = made(Message)
_make_metadata = made(MessageMetadata)


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    is_error = has_failed(context)
    if isinstance(body, dict):
        wire = {**body}
    else:
        wire = read_error(body) if is_error else read_object(body, "response")
    if is_error or ("message" in wire and "output" not in wire):
        raise decode_error(wire, context.status)
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come."""
    output = object_at(wire.get("output"), "$.output")
    said = object_at(output.get("message"), "$.output.message")
    parts = list_at(said.get("content"), "$.output.message.content")
    own = {key: value for key, value in said.items() if key != "content"}
    raw: Wire = {"response": {**wire, "output": {**output, "message": own}}}
    content = _decode_content(parts, context, message_id, raw)
    provider = context.provider or PROTOCOL
    if status is _COMPLETE and not content:
        status = MessageStatus.ERROR  # nothing is no answer (M-123, T166)
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
        content=tuple(content),
        created_at=context.created_at,
        metadata=_make_metadata(
            model=context.model or f"{provider}:unknown",
            provider=provider,
            origin=provider,
            status=status,
            usage=decode_usage(wire, context),
            stop_reason=decode_stop_reason(maybe_text(wire.get("stopReason"))),
            provider_raw={PROTOCOL: raw},
        ),
    )


def _decode_content(
    parts: list[Any], context: RequestContext, message_id: str, raw: Wire
) -> list[ContentBlock]:
    """The blocks of an answer; what has to be remembered of its parts is added to `raw`."""
    content: list[ContentBlock] = []
    ids: dict[str, str] = {}
    odd: Wire = {}
    typed: list[int] = []
    for index, part in enumerate(parts):
        own = maybe_object(part)
        text = own.get("text")
        if type(text) is str and len(own) == 1:
            content.append(_make_text(text))
            continue
        call = own.get("toolUse")
        if len(own) == 1 and type(call) is dict and is_usual_call(call := cast("Wire", call)):
            theirs = call["toolUseId"]
            ours = call_id(context, message_id, theirs)
            ids[ours] = theirs
            content.append(_make_call(ours, call["name"], call["input"]))
            continue
        block = decode_block(part, is_answer=True)
        if isinstance(block, ToolUseBlock):
            theirs = block.id
            ours = call_id(context, message_id, theirs)
            ids[ours] = theirs
            block = replace(block, id=ours)
            plain = plain_block(block, ids.__getitem__)
            if maybe_object(part["toolUse"]).get("type") == CALL:
                plain["toolUse"]["type"] = CALL
                typed.append(index)
            is_same = plain == part
        else:
            is_same = is_exact(block, part, str)
        if not is_same:
            odd[str(index)] = part
        content.append(block)
    if ids:
        raw["ids"] = ids
    if typed:
        raw["typed"] = typed
    if odd:
        raw["blocks"], raw["digest"] = odd, content_digest(_ASSISTANT, content)
    return content


def call_id(context: RequestContext, message_id: str, theirs: str) -> str:
    """Our id for a call of an answer; an id that comes again in another answer is another (T09)."""
    scope = context.session_id
    if not _MINTED.fullmatch(theirs):
        scope = f"{scope}\0{message_id}"
    return canonical_tool_id(scope, theirs)


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = spelling_of(message, PROTOCOL)
    envelope = cast("Wire", spelling.get("response") or encode_envelope(message, context))
    if is_broken(message.metadata.stop_reason) and not _is_told(envelope, message):
        envelope = {**envelope, "stopReason": None}
    output = maybe_object(envelope.get("output"))
    said = {**maybe_object(output.get("message")), "content": _encode_content(message, spelling)}
    return _write({**envelope, "output": {**output, "message": said}})


def _is_told(envelope: Wire, message: Message) -> bool:
    """Whether the provider itself told that the answer is broken."""
    word = maybe_text(envelope.get("stopReason"))
    return decode_stop_reason(word) is message.metadata.stop_reason


def _encode_content(message: Message, spelling: Mapping[str, Any]) -> list[Any]:
    known = cast("Mapping[str, str]", spelling.get("ids", {}))
    odd, typed = spelled_blocks(message, spelling), spelling.get("typed", ())
    content: list[Any] = []
    for index, block in enumerate(message.content):
        part = odd.get(str(index))
        if part is None:
            part = encode_block(block, lambda ours: known.get(ours) or derived_id(ours, PREFIX))
            if index in typed and isinstance(block, ToolUseBlock):
                part = msgspec.to_builtins(part)
                part["toolUse"]["type"] = CALL
        if part is not None:
            content.append(part)
    return content


def encode_envelope(message: Message, context: RequestContext) -> Wire:
    """What stands around the content of a response."""
    metadata = message.metadata
    usage = metadata.usage
    return {
        "metrics": {"latencyMs": context.latency_ms if usage is None else usage.latency_ms},
        "output": {"message": {"role": "assistant"}},
        "stopReason": encode_stop_reason(metadata.stop_reason),
        "usage": encode_usage(usage),
    }
