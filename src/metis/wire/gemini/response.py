"""Responses of Gemini."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ThinkingBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError, ServerError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason
from metis.canonical.value import made
from metis.wire.call import RequestContext
from metis.wire.failure import FIRST_ERROR_STATUS
from metis.wire.gemini.calls import CallNames
from metis.wire.gemini.errors import decode_error, read_error
from metis.wire.gemini.grounding import cite
from metis.wire.gemini.names import HOSTS, PROTOCOL, field
from metis.wire.gemini.parts import PartReader, PartWriter, spelling_of_parts
from metis.wire.gemini.turns import encode_parts
from metis.wire.gemini.usage import (
    decode_stop_reason,
    decode_usage,
    encode_stop_reason,
    encode_usage,
    finish_word,
)
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text, read_object
from metis.wire.spelling import spelled, spelling_of
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode
_make_message = made(Message)
_make_metadata = made(MessageMetadata)


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    if isinstance(body, dict):
        wire = body
    else:
        wire = read_error(body) if failed(context) else read_object(body, "response")
    if "error" in wire or failed(context):
        raise decode_error(wire, context.status, context.provider or PROTOCOL)
    if not any(field(wire, key) for key in ("candidates", "promptFeedback", "usageMetadata")):
        raise DecodeError("a response has candidates", path="$.candidates")
    try:
        message = decode_body(wire, context, message_id=new_ulid())
    except RecursionError:
        raise DecodeError("nested too deeply") from None
    failure = refused_call(message, context)
    if failure is not None:
        raise failure
    return message


def failed(context: RequestContext) -> bool:
    """Whether the status of a response says that it is an error."""
    return (context.status or 0) >= FIRST_ERROR_STATUS


def refused_call(message: Message, context: RequestContext) -> ServerError | None:
    """The error of an answer that holds nothing because the model made a call wrong (T161)."""
    if message.content or message.metadata.stop_reason is not StopReason.ERROR:
        return None
    envelope = spelling_of(message, PROTOCOL).get("response", {})
    candidate = first_candidate(envelope)
    word = finish_word(field(candidate, "finishReason"), context.provider)
    text = maybe_text(field(candidate, "finishMessage")) or f"the answer ended with {word}"
    return ServerError(text, provider=context.provider, status=context.status, kind=word)


def first_candidate(wire: Mapping[str, Any]) -> Wire:
    """The first answer of a response; an empty object if there is none."""
    candidates = maybe_list(wire.get("candidates"))
    return maybe_object(candidates[0]) if candidates else {}


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    scope: str | None = None,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come."""
    provider = context.provider or PROTOCOL
    response_id = maybe_text(field(wire, "responseId"))
    names = CallNames(call_scope(context, scope or response_id or message_id))
    candidate = first_candidate(wire)
    parts = maybe_list(maybe_object(candidate.get("content")).get("parts"))
    blocks: list[ContentBlock] = []
    is_usual = PartReader(provider, names, is_model=True).read(parts, blocks)
    cite(blocks, candidate)
    content, ids = tuple(blocks), names.given()
    spelling: dict[str, Any] = {"response": _envelope(wire), "ids": ids}
    if not is_usual:
        spelling |= spelling_of_parts(parts, PartWriter(ids.get, names.by_id).write(content))
        if "parts" in spelling:
            spelling["digest"] = content_digest(Role.ASSISTANT, content)
    reason = _stop_reason(wire, candidate, provider, has_calls=bool(names.by_id))
    if status is MessageStatus.COMPLETE and (reason is StopReason.ERROR or not content):
        # A call that comes with such an end must never run (T161), and nothing is no answer.
        status = MessageStatus.ERROR
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=Role.ASSISTANT,
        content=content,
        created_at=context.created_at,
        metadata=_make_metadata(
            model=context.model or f"{provider}:{field(wire, 'modelVersion') or 'unknown'}",
            provider=provider,
            origin=provider,
            status=status,
            usage=decode_usage(wire, context),
            stop_reason=reason,
            response_id=response_id,
            provider_raw=spelled(PROTOCOL, spelling),
        ),
    )


def call_scope(context: RequestContext, answer: str) -> str:
    """What ids of calls hold for: an id that comes again in another answer is another (T09)."""
    return f"{context.session_id}\0{answer}"


def _stop_reason(wire: Wire, candidate: Wire, provider: str, *, has_calls: bool) -> StopReason:
    word = finish_word(field(candidate, "finishReason"), provider)
    if word is None and field(maybe_object(field(wire, "promptFeedback")), "blockReason"):
        return StopReason.CONTENT_FILTER
    return decode_stop_reason(word, has_calls=has_calls)


def _envelope(wire: Wire) -> Wire:
    """A response without the parts of its first answer."""
    candidates = wire.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        return wire
    first, *others = cast("list[Any]", candidates)
    if not isinstance(first, dict):
        return wire
    candidate = dict(cast("Wire", first))
    content = candidate.get("content")
    if isinstance(content, dict) and "parts" in content:
        candidate["content"] = {**content, "parts": []}
    return {**wire, "candidates": [candidate, *others]}


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = spelling_of(message, PROTOCOL)
    known = cast("Mapping[str, str]", spelling.get("ids", {}))
    envelope = spelling.get("response")
    # A client pairs calls and results by id where it gets one; the provider's own calls may have
    # none, others always get one.
    wire_id = known.get if envelope else _derived
    parts = encode_parts(_unsealed(message), spelling, PartWriter(wire_id, {}))
    if not envelope:
        return _write(make_envelope(message, context, parts))
    if not parts or not first_candidate(envelope):
        return _write(envelope)
    candidate = first_candidate(envelope)
    content = {**maybe_object(candidate.get("content")), "parts": parts}
    first = {**candidate, "content": content}
    return _write({**envelope, "candidates": [first, *envelope["candidates"][1:]]})


def _unsealed(message: Message) -> Message:
    """The message without signatures of other providers: a client would send them back to us."""
    content = tuple(map(_unseal, message.content))
    return message if content == message.content else replace(message, content=content)


def _unseal(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ThinkingBlock) and block.issuer not in HOSTS:
        return replace(block, signature=None)
    return block


def _derived(ours: str) -> str:
    return derived_id(ours, "call_")


def make_envelope(message: Message, context: RequestContext, parts: list[Any]) -> Wire:
    """The response for a message that did not come from here."""
    metadata = message.metadata
    model = context.model or metadata.model or ""
    candidate = {
        "content": {"parts": parts, "role": "model"},
        "finishReason": encode_stop_reason(metadata.stop_reason),
        "index": 0,
    }
    wire: Wire = {
        "candidates": [candidate],
        "modelVersion": model.partition(":")[2] or model,
        "responseId": metadata.response_id or message.id,
    }
    usage = encode_usage(metadata.usage)
    if usage is not None:
        wire["usageMetadata"] = usage
    return wire
