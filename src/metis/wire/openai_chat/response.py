"""Responses of Chat Completions, with their usage and stop reasons."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import raw_constructor
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.errors import has_failed, is_failed_stop
from metis.wire.json_access import Wire, maybe_list, maybe_object, read_object
from metis.wire.openai_chat.answer import read_answer
from metis.wire.openai_chat.assistant import decode_assistant
from metis.wire.openai_chat.blocks import PROTOCOL, write_json
from metis.wire.openai_chat.request import encode_message, wire_id_lookup, with_exact_form
from metis.wire.openai_errors import decode_error
from metis.wire.original_form import original_form_of
from metis.wire.tool_ids import CallIds

_LARGEST = 2**63 - 1
_FREE = Decimal(0)
_make_usage = raw_constructor(Usage)
_CACHE_KEYS = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")

_END_TURN, _TOOL_USE = StopReason.END_TURN, StopReason.TOOL_USE
_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": StopReason.END_TURN,
    "eos": StopReason.END_TURN,
    "eos_token": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "content_filter": StopReason.CONTENT_FILTER,
    "sensitive": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
    "error": StopReason.ERROR,
    "network_error": StopReason.ERROR,
}
_FINISH_REASONS: Mapping[StopReason, str] = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.REFUSAL: "content_filter",
    StopReason.PAUSE: "length",
    StopReason.ERROR: "error",
    StopReason.CANCELLED: "error",
}


def decode_stop_reason(choice: Wire, *, has_calls: bool, is_refused: bool) -> StopReason:
    """Our reason for the one of a choice; its own word stays in the spelling."""
    word = choice.get("finish_reason")
    reason = _STOP_REASONS.get(word) if isinstance(word, str) else None
    if reason is _END_TURN or reason is None:
        if has_calls:
            # Some hosts say stop, or nothing, although tools were called (T163).
            return _TOOL_USE
        if is_refused:
            return StopReason.REFUSAL
        if reason and (
            choice.get("native_finish_reason") == "stop_sequence" or _names_stop_sequence(choice)
        ):
            return StopReason.STOP_SEQUENCE
    return reason or StopReason.UNKNOWN


def _names_stop_sequence(choice: Wire) -> bool:
    """Whether the host names the stop sequence that it met, as vLLM does."""
    return isinstance(choice.get("stop_reason"), str)


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """The word for our reason; none if it is not known, for only a clean end is a stop (T164)."""
    return None if reason is None else _FINISH_REASONS.get(reason)


def decode_usage(wire: Any, context: RequestContext, tier: Any = None) -> Usage | None:
    """The usage of a response in disjoint buckets; absent usage is unknown, not zero (T153)."""
    if not wire:
        return None
    usage = maybe_object(wire)
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None and output is None:
        return None
    prompt, output = prompt or 0, output or 0
    details = maybe_object(usage.get("prompt_tokens_details"))
    cached = _first_count(details, ("cached_tokens",)) or _first_count(usage, _CACHE_KEYS)
    written = _first_count(details, ("cache_write_tokens", "cache_creation_tokens"))
    output, reasoning = _outputs(usage, prompt, output)
    return _make_usage(
        # A sum smaller than its parts counts them apart (T143).
        input_tokens=prompt - cached - written if cached + written <= prompt else prompt,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        output_tokens=output,
        reasoning_output_tokens=reasoning,
        cost_usd=_FREE,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        reported_cost_usd=_decode_cost(usage.get("cost")),
        server_tool_requests=_server_tools(usage),
        service_tier=tier if isinstance(tier, str) and tier else None,
    )


def _outputs(usage: Wire, prompt: int, output: int) -> tuple[int, int]:
    """All output tokens, and those of them that were spent on reasoning.

    Some hosts count reasoning apart: then the total is more than the sum of the two (T144).
    """
    details = maybe_object(usage.get("completion_tokens_details"))
    reasoning = _first_count(details, ("reasoning_tokens",))
    apart = _first_count(usage, ("total_tokens",)) - prompt - output
    if apart > 0 and reasoning in (0, apart):
        return output + apart, apart
    return output, min(reasoning, output)


def _server_tools(usage: Wire) -> dict[str, int] | None:
    used = maybe_object(usage.get("server_tool_use_details") or usage.get("server_tool_use"))
    if not used:
        return None
    counts = {
        name.removesuffix("_requests"): count
        for name, value in used.items()
        if name.endswith("_requests") and (count := _count(value))
    }
    return counts or None


def _first_count(wire: Wire, keys: tuple[str, ...]) -> int:
    for key in keys:
        count = wire.get(key)
        if type(count) is int and 0 < count <= _LARGEST:
            return count
    return 0


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _decode_cost(value: Any) -> Decimal | None:
    """What the host says it charged, if that is an amount of money."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        return None
    return Decimal(str(value))


def encode_usage(usage: Usage) -> Wire:
    """The usage of a response in this protocol's words, where the prompt includes the cache."""
    prompt_details: Wire = {"cached_tokens": usage.cached_input_tokens}
    if usage.cache_creation_input_tokens:
        prompt_details["cache_write_tokens"] = usage.cache_creation_input_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_output_tokens},
    }


_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
DEFAULT_PROVIDER = "openai"
"""Who answers if nobody says."""

_ASSISTANT, _COMPLETE, _ERROR = Role.ASSISTANT, MessageStatus.COMPLETE, StopReason.ERROR


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """The message of a response body; an error body raises the error that it stands for."""
    provider = context.provider or DEFAULT_PROVIDER
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
        ids.enter_response(answer)
        content, spelling = decode_assistant(said, ids, issuer)
        kept = with_exact_form(said, Role.ASSISTANT, content, spelling)
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
    provider, model = context.provider or DEFAULT_PROVIDER, _text(wire.get("model"))
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
    spelling = original_form_of(message, PROTOCOL)
    said = encode_message(message, spelling, wire_id_lookup(spelling), is_answer=True)
    body: Wire = spelling.get("response") or new_envelope(message, context)
    choices = maybe_list(body.get("choices"))
    is_mute = spelling.get("mute") and not message.content
    if is_mute or not choices or not isinstance(choices[0], dict):
        return write_json(body)
    first: Wire = {**maybe_object(choices[0]), "message": said}
    reason = message.metadata.stop_reason
    if is_failed_stop(reason) and not is_failed_stop(
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
