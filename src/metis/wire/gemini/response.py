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
from metis.wire.failure import has_failed
from metis.wire.gemini.answer import Answer, read_common
from metis.wire.gemini.calls import CallNames
from metis.wire.gemini.errors import decode_error, read_error
from metis.wire.gemini.grounding import cited
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
from metis.wire.spelling import spelling_of
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode
_make_message = made(Message)
_make_metadata = made(MessageMetadata)
_ASSISTANT, _COMPLETE, _ERROR = Role.ASSISTANT, MessageStatus.COMPLETE, StopReason.ERROR
_TOLD = ("candidates", "promptFeedback", "usageMetadata")
"""One of these a response has, whatever came of it."""


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    is_error = has_failed(context)
    data = body if isinstance(body, bytes) else _write(body)
    wire = read_error(data) if is_error else read_object(data, "response")
    if is_error or "error" in wire:
        raise decode_error(wire, context.status, context.provider or PROTOCOL)
    if not wire.get("candidates") and not any(field(wire, key) for key in _TOLD):
        raise DecodeError("a response has candidates", path="$.candidates")
    try:
        message = decode_body(wire, context, message_id=new_ulid())
    except RecursionError:
        raise DecodeError("nested too deeply") from None
    failure = refused_call(message, context)
    if failure is not None:
        raise failure
    return message


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
    status: MessageStatus = _COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come; its parts are taken out of it."""
    provider, response_id = context.provider or PROTOCOL, maybe_text(field(wire, "responseId"))
    candidate = first_candidate(wire)
    said = maybe_object(candidate.get("content"))
    parts = maybe_list(said.get("parts"))
    if parts:
        said["parts"] = []
    scope = call_scope(context, scope or response_id or message_id)
    spelling: Wire = {"response": wire}
    answer = read_common(parts, scope, provider) or _read_any(parts, scope, provider, spelling)
    content = answer.content
    if answer.ids:
        spelling["ids"] = answer.ids
    if "groundingMetadata" in candidate or "grounding_metadata" in candidate:
        content = cited(content, candidate)
    if "parts" in spelling:
        spelling["digest"] = content_digest(_ASSISTANT, content)
    reason = _stop_reason(wire, candidate, provider, has_calls=answer.has_calls)
    if status is _COMPLETE and (reason is _ERROR or not content):
        # A call that comes with such an end must never run (T161), and nothing is no answer.
        status = MessageStatus.ERROR
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
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
            provider_raw={PROTOCOL: spelling},
        ),
    )


def _read_any(parts: list[Any], scope: str, provider: str, spelling: Wire) -> Answer:
    """What parts of any kind say; how they were written is noted if we would write otherwise."""
    names = CallNames(scope)
    blocks: list[ContentBlock] = []
    is_usual = PartReader(provider, names, is_model=True).read(parts, blocks)
    content, ids = tuple(blocks), names.given()
    if not is_usual:
        spelling |= spelling_of_parts(parts, PartWriter(ids.get, names.by_id).write(content))
    return Answer(content, ids, bool(names.by_id))


def call_scope(context: RequestContext, answer: str) -> str:
    """What ids of calls hold for: an id that comes again in another answer is another (T09)."""
    return f"{context.session_id}\0{answer}"


def _stop_reason(wire: Wire, candidate: Wire, provider: str, *, has_calls: bool) -> StopReason:
    word = finish_word(field(candidate, "finishReason"), provider)
    if word is None and field(maybe_object(field(wire, "promptFeedback")), "blockReason"):
        return StopReason.CONTENT_FILTER
    return decode_stop_reason(word, has_calls=has_calls)


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
