"""Responses of Ollama: an answer in a chat, or the completion of a prompt."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import raw_constructor
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.errors import has_failed, read_error
from metis.wire.json_access import Wire, maybe_count, maybe_text, object_at, read_object
from metis.wire.ollama.answer import read_common
from metis.wire.ollama.blocks import (
    PROTOCOL,
    CallIds,
    OriginalForm,
    decode_artifact,
    join_response_text,
    write_json,
)
from metis.wire.ollama.errors import decode_error
from metis.wire.ollama.history import GENERATE_PATH
from metis.wire.ollama.request import Content, Decoded, decode_any_response, encode_response_message
from metis.wire.original_form import original_form_of
from metis.wire.tool_ids import derived_id

_STOP_REASONS = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
_NS_PER_MS = 1_000_000
_NOTHING = Decimal(0)
_COMPLETION = ("response", "thinking", "image")
_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
_make_usage = raw_constructor(Usage)
_ASSISTANT, _COMPLETE = Role.ASSISTANT, MessageStatus.COMPLETE
_MAX_TOKENS, _TOOL_USE, _UNKNOWN = StopReason.MAX_TOKENS, StopReason.TOOL_USE, StopReason.UNKNOWN


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    is_error = has_failed(context)
    if isinstance(body, dict):
        wire = dict(body)
    else:
        wire = read_error(body, "error") if is_error else read_object(body, "response")
    if is_error or "error" in wire:
        raise decode_error(wire, context.status, context.provider or PROTOCOL)
    if "message" not in wire and "response" not in wire:
        raise DecodeError("a response has a message, or a completion", path="$.message")
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = _COMPLETE,
) -> Message:
    """The message of a response, whole or as far as it has come; takes the wire apart."""
    provider = context.provider or PROTOCOL
    if "message" in wire:
        said = object_at(wire.pop("message"), "$.message")
        content, spelling = _decode_answer(said, call_scope(context, message_id), provider)
    else:
        content, spelling = _decode_completion(wire, provider)
    spelling["response"] = wire
    model = context.model or f"{provider}:{wire.get('model', 'unknown')}"
    if status is MessageStatus.COMPLETE and not content:
        status = MessageStatus.ERROR  # nothing is no answer (M-123, T166)
    return _make_message(
        id=message_id,
        session_id=context.session_id,
        role=_ASSISTANT,
        content=content,
        created_at=context.created_at,
        metadata=_make_metadata(
            model=model,
            provider=provider,
            origin=provider,
            status=status,
            usage=decode_usage(wire, context),
            stop_reason=_decode_stop_reason(wire, content),
            provider_raw={PROTOCOL: spelling},
        ),
    )


def call_scope(context: RequestContext, message_id: str) -> str:
    """What the ids of calls hold for; the next answer may use the same ones again (T09)."""
    return f"{context.session_id}\0{message_id}"


def _decode_answer(wire: Wire, scope: str, issuer: str) -> Decoded:
    return read_common(wire, scope, issuer) or decode_any_response(wire, CallIds(scope), issuer)


def _decode_completion(wire: Wire, issuer: str) -> Decoded:
    said = {key: wire.pop(key) for key in _COMPLETION if key in wire}
    text, thought, image = (maybe_text(said.get(key)) for key in _COMPLETION)
    blocks: list[ContentBlock] = [ThinkingBlock(thought, issuer=issuer)] if thought else []
    blocks += (TextBlock(text),) if text else ()
    blocks += (decode_artifact(image),) if image else ()
    content = tuple(blocks)
    spelling: OriginalForm = {"is_completion": True}
    if _encode_completion(content) != said:
        spelling["completion"] = {"wire": said, "digest": content_digest(Role.ASSISTANT, content)}
    return content, spelling


def _decode_stop_reason(wire: Wire, content: Content) -> StopReason:
    """Our reason; the server says stop although tools were called (T163), or nothing (T131)."""
    reason = _STOP_REASONS.get(maybe_text(wire.get("done_reason")) or "", _UNKNOWN)
    if reason is not _MAX_TOKENS:
        for block in content:
            if type(block) is ToolUseBlock:
                return _TOOL_USE
    return reason


def decode_usage(wire: Wire, context: RequestContext) -> Usage | None:
    """The usage of a response; absent usage is unknown, not zero (T153).

    A prompt that was in the cache already is not counted again, and a count of zero is left out.
    """
    prompt, output = wire.get("prompt_eval_count"), wire.get("eval_count")
    if prompt is None and output is None:
        return None
    took_ns = maybe_count(wire.get("total_duration")) or 0
    return _make_usage(
        input_tokens=maybe_count(prompt) or 0,
        output_tokens=maybe_count(output) or 0,
        cost_usd=_NOTHING,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms or took_ns // _NS_PER_MS,
    )


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = original_form_of(message, PROTOCOL)
    envelope: Wire | None = spelling.get("response")
    if envelope is None:
        said = _encode_foreign_response(message, context)
        return write_json({**new_envelope(message, context), **said})
    if not spelling.get("is_completion"):
        return write_json({**envelope, "message": encode_response_message(message)})
    odd: Mapping[str, Any] = spelling.get("completion") or {}
    if odd and odd["digest"] == message.content_digest():
        return write_json({**envelope, **odd["wire"]})
    return write_json({**envelope, **_encode_completion(message.content)})


def _encode_foreign_response(message: Message, context: RequestContext) -> Wire:
    """What an answer that was born elsewhere says; as a newer server, it gives ids to calls."""
    if context.path == GENERATE_PATH:
        return _encode_completion(message.content)
    calls = (block for block in message.content if isinstance(block, ToolUseBlock))
    return {
        "message": encode_response_message(
            message, {c.id: derived_id(c.id, "call_") for c in calls}
        )
    }


def _encode_completion(content: Content) -> Wire:
    said: Wire = {"response": join_response_text(content)}
    thoughts = "".join(block.text for block in content if isinstance(block, ThinkingBlock))
    if thoughts:
        said["thinking"] = thoughts
    for block in content:
        if isinstance(block, ArtifactBlock) and block.source.kind == "base64":
            said["image"] = block.source.data
    return said


def new_envelope(message: Message, context: RequestContext) -> Wire:
    """What stands around an answer that was born elsewhere."""
    metadata = message.metadata
    reason = "length" if metadata.stop_reason is StopReason.MAX_TOKENS else "stop"
    return {
        "model": wire_model(context.model or metadata.model),
        "created_at": timestamp(message),
        "done": True,
        "done_reason": reason,
        **encode_usage(metadata.usage),
    }


def encode_usage(usage: Usage | None) -> Wire:
    """The counts of a response and how long it took; unknown ones are left out."""
    if usage is None:
        return {}
    return {
        "total_duration": usage.latency_ms * _NS_PER_MS,
        "prompt_eval_count": usage.prompt_tokens,
        "eval_count": usage.output_tokens,
    }


def wire_model(model: str | None) -> str:
    """The name of a model without its provider."""
    name = model or ""
    return name.partition(":")[2] or name


def timestamp(message: Message | RequestContext) -> str:
    """When something was made, as a server writes it."""
    return message.created_at.isoformat().replace("+00:00", "Z")
