"""Responses of Chat Completions."""

from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason
from metis.canonical.value import made
from metis.wire.call import RequestContext
from metis.wire.failure import has_failed, is_broken
from metis.wire.openai_chat.answer import read_answer
from metis.wire.openai_chat.assistant import decode_assistant
from metis.wire.openai_chat.parts import PROTOCOL, write_json
from metis.wire.openai_chat.request import encode_message, known_ids, remember
from metis.wire.openai_chat.usage import (
    decode_stop_reason,
    decode_usage,
    encode_stop_reason,
    encode_usage,
)
from metis.wire.openai_errors import decode_error
from metis.wire.shape import Wire, maybe_list, maybe_object, read_object
from metis.wire.spelling import spelling_of
from metis.wire.tool_ids import CallIds

_make_message = made(Message)
_make_metadata = made(MessageMetadata)
PROVIDER = "openai"
"""Who answers if nobody says."""

_ASSISTANT, _COMPLETE, _ERROR = Role.ASSISTANT, MessageStatus.COMPLETE, StopReason.ERROR


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    provider = context.provider or PROVIDER
    if has_failed(context):
        raise decode_error(body, context.status, provider)
    wire = read_object(body if isinstance(body, bytes) else write_json(body), "response")
    choices = wire.get("choices")
    if wire.get("error") and not choices:
        raise decode_error(wire, context.status, provider)
    if not isinstance(choices, list):
        raise DecodeError("a response has a list of choices", path="$.choices")
    first = maybe_object(choices[0]) if choices else {}
    if first.get("error") and not maybe_object(first.get("message")).get("content"):
        raise decode_error(first, context.status, provider)
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = _COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come; it is taken out of the body."""
    choices = maybe_list(wire.get("choices"))
    choice = maybe_object(choices[0]) if choices else {}
    said, answer = maybe_object(choice.get("message")), _text(wire.get("id")) or message_id
    issuer = context.provider or PROTOCOL
    found = read_answer(said, f"{context.session_id}\0{answer}", issuer)
    if found is not None:
        content, spelling = found
        has_calls = "ids" in spelling
    else:
        ids = CallIds(context.session_id, message_id)
        ids.enter(answer)
        content, spelling = decode_assistant(said, ids, issuer)
        kept = remember(said, Role.ASSISTANT, content, spelling)
        kept["ids"] = {ours: theirs for ours, theirs in kept["ids"].items() if theirs}
        spelling = {name: value for name, value in kept.items() if value}
        has_calls = any(type(block) is ToolUseBlock for block in content)
    if said:
        del choice["message"]
    else:
        spelling["mute"] = True
    spelling["response"] = wire
    reason = decode_stop_reason(choice, has_calls=has_calls, is_refused="refusal" in spelling)
    if status is _COMPLETE and (reason is _ERROR or not content):
        status = MessageStatus.ERROR  # nothing is no answer (M-123, T166)
    provider, model = context.provider or PROVIDER, _text(wire.get("model"))
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
        content=content,
        created_at=context.created_at,
        metadata=_make_metadata(
            model=f"{provider}:{model}" if model else context.model,
            provider=provider,
            origin=provider,
            status=status,
            usage=decode_usage(wire.get("usage"), context, wire.get("service_tier")),
            stop_reason=reason,
            response_id=_text(wire.get("id")),
            provider_raw={PROTOCOL: spelling},
        ),
    )


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = spelling_of(message, PROTOCOL)
    said = encode_message(message, spelling, known_ids(spelling), is_answer=True)
    body: Wire = spelling.get("response") or new_envelope(message, context)
    choices = maybe_list(body.get("choices"))
    is_mute = spelling.get("mute") and not message.content
    if is_mute or not choices or not isinstance(choices[0], dict):
        return write_json(body)
    first: Wire = {**maybe_object(choices[0]), "message": said}
    reason = message.metadata.stop_reason
    if is_broken(reason) and not is_broken(
        decode_stop_reason(first, has_calls=False, is_refused=False)
    ):
        first["finish_reason"] = encode_stop_reason(reason)
    return write_json({**body, "choices": [first, *choices[1:]]})


def new_envelope(message: Message, context: RequestContext) -> Wire:
    """What stands around the message of a response that was born elsewhere."""
    metadata = message.metadata
    reason = encode_stop_reason(metadata.stop_reason or StopReason.END_TURN)
    body: Wire = {
        "id": metadata.response_id or f"chatcmpl-{message.id}",
        "object": "chat.completion",
        "created": int(message.created_at.timestamp()),
        "model": wire_model(context.model or metadata.model),
        "choices": [{"index": 0, "logprobs": None, "finish_reason": reason}],
    }
    if metadata.usage is not None:
        body["usage"] = encode_usage(metadata.usage)
    return body


def wire_model(model: str | None) -> str:
    """The name of a model without its provider."""
    name = model or ""
    return name.partition(":")[2] or name


def with_status(message: Message, status: MessageStatus, reason: StopReason) -> Message:
    """The same message, ended in another way."""
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, metadata=metadata)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
