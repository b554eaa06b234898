"""Responses of Bedrock Converse: messages, usage, stop reasons and errors."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.streaming.aws_event_stream import encode_event_frame
from metis.wire.bedrock_converse.blocks import (
    CLIENT_CALL,
    PROTOCOL,
    WIRE_ID_PREFIX,
    decode_block,
    decode_part,
    encode_alone,
    encode_block,
    is_exact,
)
from metis.wire.call import RequestContext
from metis.wire.errors import (
    NOT_FOUND,
    OverflowWording,
    class_of_status,
    class_of_text,
    has_failed,
    refine_class,
    worded_text,
)
from metis.wire.json_access import (
    Wire,
    list_at,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
    object_at,
)
from metis.wire.original_form import EMPTY, original_blocks, original_form_of
from metis.wire.response import new_usage, read_response, response_message
from metis.wire.tool_ids import derived_id, next_tool_id

_write = msgspec.json.Encoder().encode
_LONG_TTL = "1h"
_USAGE_KEYS = 3
"""The number of keys in a usage that has only input, output and total tokens."""
_UNIQUE_ID = re.compile(r"[A-Za-z]+_[A-Za-z0-9_-]{16,}")
"""Wire ids that are unique; others, such as `functions.read:0`, recur in later responses (T09)."""
_STOP_REASONS = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "content_filtered": StopReason.CONTENT_FILTER,
    "guardrail_intervened": StopReason.CONTENT_FILTER,
    "malformed_model_output": StopReason.ERROR,
    "malformed_tool_use": StopReason.ERROR,
}
_STOP_REASON_NAMES: Mapping[StopReason, str] = {
    StopReason.END_TURN: "end_turn",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.TOOL_USE: "tool_use",
    StopReason.CONTENT_FILTER: "content_filtered",
    # Converse has no reason for a refusal of the model.
    StopReason.REFUSAL: "content_filtered",
    # Clients continue a response that reached a limit, but not one that ended (T158).
    StopReason.PAUSE: "max_tokens",
}


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """Decode a response body; an error body is raised as a ProviderError."""
    wire = read_response(body, context)
    # Some compatible hosts send an error with status 200.
    if has_failed(context) or ("message" in wire and "output" not in wire):
        raise decode_error(wire, context.status)
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """Decode a response, complete or partial."""
    output = object_at(wire.get("output"), "$.output")
    message = object_at(output.get("message"), "$.output.message")
    parts = list_at(message.get("content"), "$.output.message.content")
    message_keys = {key: value for key, value in message.items() if key != "content"}
    form: Wire = {"response": {**wire, "output": {**output, "message": message_keys}}}
    provider = context.provider or PROTOCOL
    return response_message(
        _decode_content(parts, context, message_id, form),
        context,
        (PROTOCOL, form),
        message_id=message_id,
        provider=provider,
        model=context.model or f"{provider}:unknown",
        status=status,
        usage=decode_usage(wire, context),
        stop_reason=decode_stop_reason(maybe_text(wire.get("stopReason"))),
    )


def _decode_content(
    parts: list[Any], context: RequestContext, message_id: str, form: Wire
) -> list[ContentBlock]:
    """Decode the blocks of a response, and add wire ids and inexact parts to its original form."""
    content: list[ContentBlock] = []
    ids: dict[str, str] = {}
    counts: dict[str, int] = {}
    inexact: Wire = {}
    typed: list[int] = []
    for index, part in enumerate(parts):
        block = decode_block(part, is_response=True)
        if isinstance(block, ToolUseBlock):
            wire_id = block.id
            tool_use_id = tool_use_id_of(context, message_id, wire_id, counts)
            # Bedrock rejects requests with two calls of one id: a repeated wire id is not stored,
            # so that the next request derives another one from the tool_use_id.
            if counts[wire_id] == 1:
                ids[tool_use_id] = wire_id
            plain = encode_alone(block)
            block = replace(block, id=tool_use_id)
            # Some models send the default type explicitly; storing the index is enough for it.
            if maybe_object(part["toolUse"]).get("type") == CLIENT_CALL:
                plain["toolUse"]["type"] = CLIENT_CALL
                typed.append(index)
            is_exact_part = plain == part
        else:
            is_exact_part = is_exact(block, part, str)
        if not is_exact_part:
            inexact[str(index)] = part
        content.append(block)
    if ids:
        form["ids"] = ids
    if typed:
        form["typed"] = typed
    if inexact:
        form["blocks"], form["digest"] = inexact, content_digest(Role.ASSISTANT, content)
    return content


def tool_use_id_of(
    context: RequestContext, message_id: str, wire_id: str, counts: dict[str, int]
) -> str:
    """Return the tool_use_id of a call; a wire id in another response is another call (T09)."""
    scope = context.session_id
    if not _UNIQUE_ID.fullmatch(wire_id):
        scope = f"{scope}\0{message_id}"
    return next_tool_id(scope, wire_id, counts)


_decode_part = partial(decode_part, is_response=True)


def encode_response(message: Message, context: RequestContext) -> bytes:
    """Encode the response body for a message."""
    form = original_form_of(message, PROTOCOL)
    envelope = cast("Wire", form.get("response") or encode_envelope(message, context))
    reason = message.metadata.stop_reason
    envelope_reason = decode_stop_reason(maybe_text(envelope.get("stopReason")))
    if envelope_reason is not reason:
        # The stored envelope is outdated if the message has changed since.
        envelope = {**envelope, "stopReason": encode_stop_reason(reason)}
    output = maybe_object(envelope.get("output"))
    wire = {**maybe_object(output.get("message")), "content": _encode_content(message, form)}
    return _write({**envelope, "output": {**output, "message": wire}})


def _encode_content(message: Message, form: Mapping[str, Any]) -> list[Any]:
    """Encode the blocks of a response; unchanged ones in their original form."""
    wire_ids: Mapping[str, str] = form.get("ids", EMPTY)
    originals, typed = original_blocks(message, form, _decode_part), form.get("typed", ())
    content: list[Any] = []
    for index, block in enumerate(message.content):
        part = originals.get(str(index))
        if part is None:
            part = encode_block(
                block, lambda call: wire_ids.get(call) or derived_id(call, WIRE_ID_PREFIX)
            )
            if index in typed and isinstance(block, ToolUseBlock):
                part = msgspec.to_builtins(part)
                part["toolUse"]["type"] = CLIENT_CALL
        if part is not None:
            content.append(part)
    return content


def encode_envelope(message: Message, context: RequestContext) -> Wire:
    """Encode the keys of a response other than its content."""
    metadata = message.metadata
    usage = metadata.usage
    return {
        "metrics": {"latencyMs": context.latency_ms if usage is None else usage.latency_ms},
        "output": {"message": {"role": "assistant"}},
        "stopReason": encode_stop_reason(metadata.stop_reason),
        "usage": encode_usage(usage),
    }


def decode_stop_reason(name: str | None) -> StopReason | None:
    """Decode a stop reason; UNKNOWN for a new name, which the original form still contains."""
    return None if name is None else _STOP_REASONS.get(name, StopReason.UNKNOWN)


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """Encode a stop reason; None for an unknown one and for failed responses (T164)."""
    return None if reason is None else _STOP_REASON_NAMES.get(reason)


def decode_usage(wire: Mapping[str, Any], context: RequestContext) -> Usage | None:
    """Decode a usage into disjoint buckets; an absent usage is unknown, not zero (T153)."""
    counts = maybe_object(wire.get("usage"))
    input_tokens = maybe_count(counts.get("inputTokens"))
    if input_tokens is None:
        return None
    return new_usage(
        latency_ms=context.latency_ms,
        input_tokens=input_tokens,
        output_tokens=maybe_count(counts.get("outputTokens")) or 0,
        service_tier=maybe_text(maybe_object(wire.get("serviceTier")).get("type")),
        **_decode_extra_usage(counts) if len(counts) > _USAGE_KEYS else {},
    )


def _decode_extra_usage(counts: Wire) -> dict[str, Any]:
    """Decode the buckets besides input, output and total tokens."""
    written = maybe_count(counts.get("cacheWriteInputTokens")) or 0
    server = maybe_object(counts.get("serverToolUsage"))
    return {
        "cached_input_tokens": maybe_count(counts.get("cacheReadInputTokens")) or 0,
        "cache_creation_input_tokens": written,
        "cache_creation_1h_input_tokens": min(_long_lived(counts), written),
        "server_tool_requests": {n: c for n, c in server.items() if maybe_count(c)} or None,
    }


def _long_lived(counts: Wire) -> int:
    """Return the tokens that were cached for one hour, which have a higher price (T149)."""
    details = map(maybe_object, maybe_list(counts.get("cacheDetails")))
    long = (detail for detail in details if detail.get("ttl") == _LONG_TTL)
    return sum(maybe_count(detail.get("inputTokens")) or 0 for detail in long)


def encode_usage(usage: Usage | None) -> Wire:
    """Encode a usage; an unknown usage becomes zero, because SDKs require the object."""
    if usage is None:
        return {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    wire: Wire = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        # The total includes cached tokens, `inputTokens` does not.
        "totalTokens": usage.prompt_tokens + usage.output_tokens,
    }
    if usage.cached_input_tokens or usage.cache_creation_input_tokens:
        wire["cacheReadInputTokens"] = usage.cached_input_tokens
        wire["cacheWriteInputTokens"] = usage.cache_creation_input_tokens
    if usage.cache_creation_1h_input_tokens:
        wire["cacheDetails"] = _details(usage)
    return wire


def _details(usage: Usage) -> list[Wire]:
    long = usage.cache_creation_1h_input_tokens
    short = usage.cache_creation_input_tokens - long
    details: list[Wire] = [{"ttl": _LONG_TTL, "inputTokens": long}]
    return [*details, {"ttl": "5m", "inputTokens": short}] if short else details


# Errors of Bedrock itself have the name of the protocol or of the profile as their provider.
_PROVIDERS = (PROTOCOL, "bedrock-converse")
_SUFFIX = "Exception"
_BY_TYPE: Mapping[str, type[ProviderError]] = {
    "accessdenied": AuthenticationError,
    "expiredtoken": AuthenticationError,
    "incompletesignature": AuthenticationError,
    "internalserver": ServerError,
    "invalidsignature": AuthenticationError,
    "modelerror": ServerError,
    # AWS loads a model on its first call and expects a retry.
    "modelnotready": RateLimitError,
    "modelstreamerror": ServerError,
    "modeltimeout": NetworkError,
    "resourcenotfound": InvalidRequestError,
    "servicequotaexceeded": RateLimitError,
    "serviceunavailable": ServerError,
    "throttling": RateLimitError,
    "unrecognizedclient": AuthenticationError,
    "validation": InvalidRequestError,
}
_TYPE_OF: Mapping[type[ProviderError], tuple[int, str]] = {
    RateLimitError: (429, "Throttling"),
    AuthenticationError: (403, "AccessDenied"),
    ServerError: (500, "InternalServer"),
    NetworkError: (503, "ServiceUnavailable"),
    ContextOverflowError: (400, "Validation"),
    InvalidRequestError: (400, "Validation"),
}
OVERFLOW = OverflowWording(
    "Input is too long for requested model",
    "Input is too long for requested model: {tokens} tokens > {limit} maximum",
)
_UNKNOWN = (500, "InternalServer")
_MODEL_FAILED = 424  # the status for an error of the model, not of the API
_STREAMED = frozenset({"InternalServer", "ServiceUnavailable", "Throttling", "Validation"})
"""The exceptions that a stream may carry, except `modelStreamError`, which is never encoded."""


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Decode an error body into an error with the provider's text unchanged."""
    # AWS may send `namespace#Name:URL` as the name of the exception.
    kind = maybe_text(wire.get("__type"))
    name = None if kind is None else kind.rpartition("#")[2].partition(":")[0]
    text = str(wire.get("message") or wire.get("Message") or wire)
    return _class_of(name, status, text)(text, provider=provider, status=status, kind=name)


def _class_of(name: str | None, status: int | None, text: str) -> type[ProviderError]:
    by_type = _BY_TYPE.get((name or "").removesuffix(_SUFFIX).lower())
    if by_type is None:
        by_type = ServerError if status == _MODEL_FAILED else class_of_status(status)
    return refine_class(by_type, status, text)


def refine_stream_error(error: ProviderError) -> ProviderError:
    """Return the error for an exception in a stream, with the class that its text implies."""
    by_text = class_of_text(error.text) if type(error) is InvalidRequestError else None
    return (by_text or type(error))(
        error.text, provider=PROTOCOL, status=error.status, kind=error.kind
    )


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """Encode an error as the status and the body of a response."""
    status, name = _TYPE_OF.get(type(error), _UNKNOWN)
    kind = name + _SUFFIX
    if error.provider in _PROVIDERS:
        status, kind = error.status or status, error.kind or kind
    elif error.status == NOT_FOUND:
        status, kind = NOT_FOUND, f"ResourceNotFound{_SUFFIX}"
    return status, _write({"__type": kind, "message": _text(error)})


def _text(error: ProviderError) -> str:
    return error.text if error.provider in _PROVIDERS else worded_text(error, OVERFLOW)


def error_frame(error: ProviderError) -> bytes:
    """Encode the exception that ends a stream."""
    _, name = _TYPE_OF.get(type(error), _UNKNOWN)
    # AWS SDKs accept only the documented exceptions in a stream and fail on other names.
    if name not in _STREAMED:
        name = "Validation"
    headers = {
        ":exception-type": name[0].lower() + name[1:] + _SUFFIX,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return encode_event_frame(headers, _write({"message": _text(error)}))
