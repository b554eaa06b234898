"""Responses of Bedrock Converse, with their usage and stop reasons."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import raw_constructor
from metis.wire.bedrock_converse.blocks import (
    CLIENT_CALL,
    PROTOCOL,
    decode_block,
    encode_alone,
    encode_block,
    is_exact,
    is_plain_call,
)
from metis.wire.bedrock_converse.errors import decode_error
from metis.wire.bedrock_converse.history import WIRE_ID_PREFIX
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.errors import has_failed, is_failed_stop, read_error
from metis.wire.json_access import (
    Wire,
    list_at,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
    object_at,
    read_object,
)
from metis.wire.original_form import original_blocks, original_form_of
from metis.wire.tool_ids import canonical_tool_id, derived_id

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
_WORDS: Mapping[StopReason, str] = {
    StopReason.END_TURN: "end_turn",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.TOOL_USE: "tool_use",
    StopReason.CONTENT_FILTER: "content_filtered",
    StopReason.REFUSAL: "content_filtered",
    # The model has more to say: an answer that was cut is gone on with, a whole one is not (T158).
    StopReason.PAUSE: "max_tokens",
}
_LONG = "1h"
_FREE = Decimal(0)
_KEYS_OF_USAGE = 3
_make_usage = raw_constructor(Usage)


def decode_stop_reason(word: str | None) -> StopReason | None:
    """Our reason for the provider's; its own word stays in the spelling."""
    return None if word is None else _STOP_REASONS.get(word, StopReason.UNKNOWN)


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """The provider's word for our reason; none if it is not known or no clean end (T164)."""
    return None if reason is None else _WORDS.get(reason)


def decode_usage(wire: Mapping[str, Any], context: RequestContext) -> Usage | None:
    """The usage that a response tells, in disjoint buckets; absent is unknown, not zero (T153)."""
    counts = maybe_object(wire.get("usage"))
    fresh = maybe_count(counts.get("inputTokens"))
    if fresh is None:
        return None
    usage = _make_usage(
        input_tokens=fresh,
        output_tokens=maybe_count(counts.get("outputTokens")) or 0,
        cost_usd=_FREE,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        service_tier=maybe_text(maybe_object(wire.get("serviceTier")).get("type")),
    )
    return replace(usage, **_more_usage(counts)) if len(counts) > _KEYS_OF_USAGE else usage


def _more_usage(counts: Wire) -> dict[str, Any]:
    """What a usage tells beside the three counts that it always has."""
    written = maybe_count(counts.get("cacheWriteInputTokens")) or 0
    server = maybe_object(counts.get("serverToolUsage"))
    return {
        "cached_input_tokens": maybe_count(counts.get("cacheReadInputTokens")) or 0,
        "cache_creation_input_tokens": written,
        "cache_creation_1h_input_tokens": min(_long_lived(counts), written),
        "server_tool_requests": {n: c for n, c in server.items() if maybe_count(c)} or None,
    }


def _long_lived(counts: Wire) -> int:
    """The tokens that were written for an hour (T149)."""
    details = (maybe_object(each) for each in maybe_list(counts.get("cacheDetails")))
    return sum(
        maybe_count(each.get("inputTokens")) or 0 for each in details if each.get("ttl") == _LONG
    )


def encode_usage(usage: Usage | None) -> Wire:
    """The usage of a response in this protocol's words; it has no word for unknown."""
    if usage is None:
        return {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    wire: Wire = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
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
    details: list[Wire] = [{"ttl": _LONG, "inputTokens": long}]
    return [*details, {"ttl": "5m", "inputTokens": short}] if short else details


_write = msgspec.json.Encoder().encode
_MINTED = re.compile(r"[A-Za-z]+_[A-Za-z0-9_-]{16,}")
"""Ids that come once; others, such as `functions.read:0`, come again in the next answer (T09)."""
_ASSISTANT, _COMPLETE = Role.ASSISTANT, MessageStatus.COMPLETE
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)


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
        if len(own) == 1 and type(call) is dict and is_plain_call(call := cast("Wire", call)):
            theirs = call["toolUseId"]
            ours = tool_use_id_of(context, message_id, theirs)
            ids[ours] = theirs
            content.append(_make_call(ours, call["name"], call["input"]))
            continue
        block = decode_block(part, is_answer=True)
        if isinstance(block, ToolUseBlock):
            theirs = block.id
            ours = tool_use_id_of(context, message_id, theirs)
            ids[ours] = theirs
            block = replace(block, id=ours)
            plain = encode_alone(block, ids.__getitem__)
            if maybe_object(part["toolUse"]).get("type") == CLIENT_CALL:
                plain["toolUse"]["type"] = CLIENT_CALL
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


def tool_use_id_of(context: RequestContext, message_id: str, wire_id: str) -> str:
    """Our id for a call of an answer; an id that comes again in another answer is another (T09)."""
    scope = context.session_id
    if not _MINTED.fullmatch(wire_id):
        scope = f"{scope}\0{message_id}"
    return canonical_tool_id(scope, wire_id)


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = original_form_of(message, PROTOCOL)
    envelope = cast("Wire", spelling.get("response") or encode_envelope(message, context))
    if is_failed_stop(message.metadata.stop_reason) and not _is_told(envelope, message):
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
    odd, typed = original_blocks(message, spelling), spelling.get("typed", ())
    content: list[Any] = []
    for index, block in enumerate(message.content):
        part = odd.get(str(index))
        if part is None:
            part = encode_block(
                block, lambda ours: known.get(ours) or derived_id(ours, WIRE_ID_PREFIX)
            )
            if index in typed and isinstance(block, ToolUseBlock):
                part = msgspec.to_builtins(part)
                part["toolUse"]["type"] = CLIENT_CALL
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
