"""Responses of Chat Completions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, OpaqueBlock, ToolUseBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason
from metis.canonical.value import made
from metis.wire.call import RequestContext
from metis.wire.failure import is_broken
from metis.wire.openai_chat.assistant import decode_assistant
from metis.wire.openai_chat.common import Completion, read_assistant
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
from metis.wire.spelling import spelled, spelling_of
from metis.wire.tool_ids import CallIds

_make_message = made(Message)
_make_metadata = made(MessageMetadata)
PROVIDER = "openai"
"""Who answers if nobody says."""

_LOWEST_ERROR = 400
_ASSISTANT, _COMPLETE = Role.ASSISTANT, MessageStatus.COMPLETE
_read_common = msgspec.json.Decoder(Completion).decode


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    provider = context.provider or PROVIDER
    if (context.status or 0) >= _LOWEST_ERROR:
        raise decode_error(body, context.status, provider)
    quick = _decode_common(body, context) if isinstance(body, bytes) else None
    if quick is not None:
        return quick
    wire = body if isinstance(body, dict) else read_object(body, "response")
    choices = wire.get("choices")
    if wire.get("error") and not choices:
        raise decode_error(wire, context.status, provider)
    if not isinstance(choices, list):
        raise DecodeError("a response has a list of choices", path="$.choices")
    first = maybe_object(next(iter(maybe_list(choices)), None))
    if first.get("error") and not maybe_object(first.get("message")).get("content"):
        raise decode_error(first, context.status, provider)
    return decode_body(wire, context, message_id=new_ulid())


def _decode_common(body: bytes, context: RequestContext) -> Message | None:
    """The message of a response of common parts; None for all others."""
    try:
        answer = _read_common(body)
    except (ValueError, RecursionError):
        return None
    message_id = new_ulid()
    said, choice = answer.choices[0].message, answer.choices[0].rest()
    ids = CallIds(context.session_id, message_id)
    ids.enter(answer.id or message_id)
    found = read_assistant(said, ids, context.provider or PROTOCOL)
    if found is None:
        return None
    content, spelling = found
    wire = answer.rest()
    wire["choices"] = [choice]
    spelling["response"] = wire
    return _message(_Answer(wire, choice, content, spelling), context, message_id)


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = _COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come."""
    choices = maybe_list(wire.get("choices"))
    choice = maybe_object(choices[0]) if choices else {}
    said = maybe_object(choice.get("message"))
    ids = CallIds(context.session_id, message_id)
    ids.enter(_text(wire.get("id")) or message_id)
    content, spelling = decode_assistant(said, ids, context.provider or PROTOCOL)
    spelling = remember(said, Role.ASSISTANT, content, spelling)
    spelling["ids"] = {ours: theirs for ours, theirs in spelling["ids"].items() if theirs}
    spelling["response"] = _envelope(wire, choices)
    return _message(_Answer(wire, choice, content, spelling), context, message_id, status)


class _Answer(NamedTuple):
    """A response, and what its first choice says."""

    wire: Wire
    choice: Wire
    content: tuple[ContentBlock, ...]
    spelling: Mapping[str, Any]


def _message(
    answer: _Answer, context: RequestContext, message_id: str, status: MessageStatus = _COMPLETE
) -> Message:
    wire, choice, content, spelling = answer
    provider = context.provider or PROVIDER
    model = _text(wire.get("model"))
    reason = decode_stop_reason(
        choice, has_calls=_has_calls(content), is_refused="refusal" in spelling
    )
    if status is _COMPLETE and (reason is StopReason.ERROR or not content):
        status = MessageStatus.ERROR  # nothing is no answer (M-123, T166)
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
            provider_raw=spelled(PROTOCOL, spelling),
        ),
    )


def _has_calls(content: tuple[ContentBlock, ...]) -> bool:
    return bool(content) and any(type(block) is ToolUseBlock for block in content)


def _envelope(wire: Wire, choices: list[Any]) -> Wire:
    """All of a response but the message of its first choice."""
    if not choices or not isinstance(choices[0], dict):
        return wire
    own = maybe_object(choices[0])
    first = {key: value for key, value in own.items() if key != "message"}
    return {**wire, "choices": [first, *choices[1:]]}


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    message = _without_foreign_parts(message, context.provider or PROTOCOL)
    spelling = spelling_of(message, PROTOCOL)
    said = encode_message(message, spelling, known_ids(spelling), is_answer=True)
    body: Wire = spelling.get("response") or new_envelope(message, context)
    choices = maybe_list(body.get("choices"))
    if not choices or not isinstance(choices[0], dict):
        return write_json(body)
    first: Wire = {**maybe_object(choices[0]), "message": said}
    reason = message.metadata.stop_reason
    if is_broken(reason) and not is_broken(
        decode_stop_reason(first, has_calls=False, is_refused=False)
    ):
        first["finish_reason"] = encode_stop_reason(reason)
    return write_json({**body, "choices": [first, *choices[1:]]})


def _without_foreign_parts(message: Message, provider: str) -> Message:
    """The answer without opaque parts that a client of this provider could not read."""
    content = message.content
    if not any(isinstance(block, OpaqueBlock) and block.issuer != provider for block in content):
        return message
    kept = (
        block for block in content if not isinstance(block, OpaqueBlock) or block.issuer == provider
    )
    return replace(message, content=tuple(kept))


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
