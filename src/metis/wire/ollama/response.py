"""Responses and errors of Ollama, both directions.

A response contains the message of a chat or the completion of a prompt; an error body contains only
a text.
"""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.digest import content_digest
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    DecodeError,
    InvalidRequestError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.wire.call import RequestContext
from metis.wire.errors import (
    FIRST_ERROR_STATUS,
    OverflowWording,
    class_of_status,
    class_of_text,
    has_failed,
    worded_text,
)
from metis.wire.json_access import Wire, maybe_count, maybe_object, maybe_text, object_at
from metis.wire.ollama.blocks import (
    GENERATE_PATH,
    PROTOCOL,
    Content,
    OriginalForm,
    PendingCalls,
    decode_artifact,
    encode_assistant,
    join_response_text,
    write_json,
)
from metis.wire.ollama.request import decode_response_message, original_message
from metis.wire.original_form import original_form_of
from metis.wire.response import model_name, new_usage, read_response, response_message
from metis.wire.tool_ids import derived_id

WIRE_ID_PREFIX = "call_"
"""The prefix of wire ids that are derived from tool_use_ids."""
_STOP_REASONS = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
_STATUS_OF: Mapping[type[ProviderError], int] = {
    RateLimitError: 429,
    AuthenticationError: 401,
    NetworkError: 502,
    ContextOverflowError: 400,
    InvalidRequestError: 400,
}
_NS_PER_MS = 1_000_000
_COMPLETION_KEYS = ("response", "thinking", "image")


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """Decode a response body; an error body is raised as a ProviderError."""
    wire = read_response(body, context, "error")
    if has_failed(context) or "error" in wire:
        raise decode_error(wire, context.status, context.provider or PROTOCOL)
    if "message" not in wire and "response" not in wire:
        raise DecodeError("a response needs a `message` or a `response`", path="$.message")
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """Decode a response, complete or partial; its message is removed from `wire`."""
    provider = context.provider or PROTOCOL
    if "message" in wire:
        message = object_at(wire.pop("message"), "$.message")
        calls = PendingCalls(call_scope(context, message_id))
        content, form = decode_response_message(message, calls, provider)
    else:
        content, form = _decode_completion(wire, provider)
    form["response"] = wire
    return response_message(
        content,
        context,
        (PROTOCOL, form),
        provider=provider,
        message_id=message_id,
        model=context.model or f"{provider}:{maybe_text(wire.get('model')) or 'unknown'}",
        status=status,
        usage=decode_usage(wire, context),
        stop_reason=_decode_stop_reason(wire, content),
    )


def call_scope(context: RequestContext, message_id: str) -> str:
    """Return the scope of call ids: later responses may repeat the same wire ids (T09)."""
    return f"{context.session_id}\0{message_id}"


def _decode_completion(wire: Wire, issuer: str) -> tuple[Content, OriginalForm]:
    completion = {key: wire.pop(key) for key in _COMPLETION_KEYS if key in wire}
    text, thinking, image = (maybe_text(completion.get(key)) for key in _COMPLETION_KEYS)
    blocks: list[ContentBlock] = [ThinkingBlock(thinking, issuer=issuer)] if thinking else []
    blocks += (TextBlock(text),) if text else ()
    blocks += (decode_artifact(image),) if image else ()
    content = tuple(blocks)
    # Encoding joins texts and omits empty keys. If the result differs, the JSON is stored.
    form: OriginalForm = {"is_completion": True}
    if _encode_completion(content) != completion:
        digest = content_digest(Role.ASSISTANT, content)
        form["completion"] = {"wire": completion, "digest": digest}
    return content, form


def _decode_stop_reason(wire: Wire, content: Content) -> StopReason:
    name = maybe_text(wire.get("done_reason")) or ""
    reason = _STOP_REASONS.get(name, StopReason.UNKNOWN)
    # Ollama sends `stop` for a response with tool calls, which would end the tool loop before the
    # calls are run (T163). Some servers send no reason at all (T131).
    has_calls = any(type(block) is ToolUseBlock for block in content)
    return StopReason.TOOL_USE if has_calls and reason is not StopReason.MAX_TOKENS else reason


def decode_usage(wire: Wire, context: RequestContext) -> Usage | None:
    """Decode the usage of a response; an absent usage is unknown, not zero (T153)."""
    prompt, output = wire.get("prompt_eval_count"), wire.get("eval_count")
    if prompt is None and output is None:
        return None
    duration_ns = maybe_count(wire.get("total_duration")) or 0
    return new_usage(
        # Ollama omits the prompt count if the whole prompt is cached.
        input_tokens=maybe_count(prompt) or 0,
        output_tokens=maybe_count(output) or 0,
        latency_ms=context.latency_ms or duration_ns // _NS_PER_MS,
    )


def encode_response(message: Message, context: RequestContext) -> bytes:
    """Encode a message as a response body."""
    form = original_form_of(message, PROTOCOL)
    envelope: Wire = form.get("response") or _new_envelope(message, context)
    is_foreign = "response" not in form
    reason = message.metadata.stop_reason
    if not is_foreign and reason is not _decode_stop_reason(envelope, message.content):
        # The stored envelope is outdated if the message was cancelled later (T164).
        envelope = {**envelope, "done_reason": encode_stop_reason(reason)}
    is_completion = context.path == GENERATE_PATH if is_foreign else form.get("is_completion")
    if is_completion:
        original: Mapping[str, Any] = form.get("completion") or {}
        is_unchanged = original and original["digest"] == message.content_digest()
        completion = original["wire"] if is_unchanged else _encode_completion(message.content)
        return write_json({**envelope, **completion})
    wire_ids: dict[str, str] = {}
    if is_foreign:
        # Newer versions of Ollama send call ids; clients of older ones ignore them.
        calls = (block for block in message.content if isinstance(block, ToolUseBlock))
        wire_ids = {call.id: derived_id(call.id, WIRE_ID_PREFIX) for call in calls}
    wire_ids |= form.get("ids") or {}
    encoded = original_message(message) or encode_assistant(message.content, form, wire_ids)
    return write_json({**envelope, "message": encoded})


def _encode_completion(content: Content) -> Wire:
    completion: Wire = {"response": join_response_text(content)}
    thinking = "".join(block.text for block in content if isinstance(block, ThinkingBlock))
    if thinking:
        completion["thinking"] = thinking
    for block in content:
        if isinstance(block, ArtifactBlock) and block.source.kind == "base64":
            completion["image"] = block.source.data
    return completion


def _new_envelope(message: Message, context: RequestContext) -> Wire:
    """Return the keys of a response besides its message, for a message of another protocol."""
    metadata = message.metadata
    return {
        "model": model_name(context.model or metadata.model),
        "created_at": timestamp(message),
        "done": True,
        "done_reason": encode_stop_reason(metadata.stop_reason),
        **encode_usage(metadata.usage),
    }


def encode_stop_reason(reason: StopReason | None) -> str:
    """Encode a stop reason as `length` or `stop`, the only two of Ollama."""
    return "length" if reason is StopReason.MAX_TOKENS else "stop"


def encode_usage(usage: Usage | None) -> Wire:
    """Encode the token counts and the duration of a response; nothing if the usage is unknown."""
    if usage is None:
        return {}
    return {
        "total_duration": usage.latency_ms * _NS_PER_MS,
        "prompt_eval_count": usage.prompt_tokens,
        "eval_count": usage.output_tokens,
    }


def timestamp(created: Message | RequestContext) -> str:
    """Return the time of creation in the format of `created_at`."""
    return created.created_at.isoformat().replace("+00:00", "Z")


OVERFLOW = OverflowWording(
    "prompt too long; exceeded max context length",
    "prompt too long; exceeded max context length by {excess} tokens",
)


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Decode an error body into an error with the server's text unchanged."""
    if status is not None and status < FIRST_ERROR_STATUS:
        status = None  # an error in the body of a 200 response has no error status (T132)
    error = wire.get("error")
    inner = maybe_object(error)
    text = maybe_text(error) or maybe_text(inner.get("message")) or write_json(wire).decode()
    kind = class_of_status(status)
    if kind in (InvalidRequestError, OtherProviderError, ServerError):
        kind = class_of_text(text) or kind
    return kind(text, provider=provider, status=status, kind=maybe_text(inner.get("type")))


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """Encode an error as the status and the body of a response."""
    text = error.text if error.provider == PROTOCOL else worded_text(error, OVERFLOW)
    return error.status or _STATUS_OF.get(type(error), 500), write_json({"error": text})
