"""Responses of OpenAI Responses."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason
from metis.canonical.value import made
from metis.wire.call import RequestContext
from metis.wire.failure import has_failed
from metis.wire.openai_errors import decode_error
from metis.wire.openai_responses.answer import Answer, read_common
from metis.wire.openai_responses.calls import Calls
from metis.wire.openai_responses.items import Run, encode_items
from metis.wire.openai_responses.parts import PROTOCOL, write_json
from metis.wire.openai_responses.said import is_refused
from metis.wire.openai_responses.usage import (
    decode_status,
    decode_stop_reason,
    decode_usage,
    encode_status,
    encode_usage,
)
from metis.wire.shape import Wire, maybe_list, maybe_text, object_at, read_object
from metis.wire.spelling import spelling_of
from metis.wire.tool_ids import CallIds

PROVIDER = "openai-responses"
"""Who answers if nobody says."""

_make_message = made(Message)
_make_metadata = made(MessageMetadata)
_ASSISTANT = Role.ASSISTANT


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    provider = context.provider or PROVIDER
    if has_failed(context):
        raise decode_error(body, context.status, provider)
    wire = body if isinstance(body, dict) else read_object(body, "response")
    output = wire.get("output")
    if wire.get("error") and (not output or wire.get("status") == "failed"):
        raise decode_error(wire, context.status, provider)
    if not isinstance(output, list):
        raise DecodeError("a response has a list of output items", path="$.output")
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus | None = None,
    scope: str | None = None,
) -> Message:
    """The message of a response, whole or as far as it has come; `scope` is what calls are of."""
    provider = context.provider or PROVIDER
    response_id, model = _text(wire.get("id")), _text(wire.get("model"))
    envelope = wire.copy()
    output = maybe_list(envelope.pop("output", None))
    scope = scope or response_id or message_id
    answer = read_common(output, f"{context.session_id}\0{scope}")
    if answer is None:
        answer = _read_any(output, answer_ids(context, scope, message_id), context)
    content, spelling, is_refused = answer
    spelling["response"] = envelope
    status = status or decode_status(wire)
    if status is MessageStatus.COMPLETE and not content:
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
            stop_reason=decode_stop_reason(wire, content, is_refused=is_refused),
            response_id=response_id,
            provider_raw={PROTOCOL: spelling},
        ),
    )


def _read_any(output: list[Any], ids: CallIds, context: RequestContext) -> Answer:
    """What items of any kind say, and how they were spelled."""
    run = Run(ids, context.provider or PROTOCOL)
    for index, item in enumerate(output):
        run.take(object_at(item, f"$.output[{index}]"))
    return Answer(tuple(run.blocks), run.spelling(), is_refused(run.texts))


def answer_ids(context: RequestContext, answer: str, message_id: str) -> CallIds:
    """What gives the calls of one answer their ids."""
    ids = CallIds(context.session_id, message_id)
    ids.enter(answer)
    return ids


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = spelling_of(message, PROTOCOL)
    output = encode_output_items(message, spelling)
    envelope: Wire = spelling.get("response") or new_envelope(message, context)
    return write_json({**envelope, "output": output})


def encode_output_items(message: Message, spelling: Mapping[str, Any]) -> Sequence[Any]:
    """The output items for a message."""
    calls = Calls()
    calls.learn(spelling)
    return encode_items(message.content, spelling, calls, "answer", message.id)


def new_envelope(message: Message, context: RequestContext) -> Wire:
    """What stands around the items of a response that was born elsewhere."""
    metadata = message.metadata
    status, details = encode_status(metadata.stop_reason)
    return {
        **bare_envelope(
            metadata.response_id or f"resp_{message.id}",
            int(message.created_at.timestamp()),
            wire_model(context.model or metadata.model),
        ),
        "status": status,
        "incomplete_details": details,
        "usage": None if metadata.usage is None else encode_usage(metadata.usage),
    }


def bare_envelope(response_id: str, created: int, model: str) -> Wire:
    """A response of which nothing is known yet; clients want every key."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def wire_model(model: str | None) -> str:
    """The name of a model without its provider."""
    name = model or ""
    return name.partition(":")[2] or name


def with_status(message: Message, status: MessageStatus, reason: StopReason) -> Message:
    """The same message, ended in another way."""
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, metadata=metadata)


def _text(value: Any) -> str | None:
    return maybe_text(value) or None
