"""Responses of Chat Completions, both directions, with their usage and stop reasons."""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.wire.call import RequestContext
from metis.wire.declared_tools import CUSTOM_KIND, DeclaredTool
from metis.wire.errors import has_failed, is_failed_stop
from metis.wire.json_access import (
    Wire,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
    read_object,
)
from metis.wire.openai_chat.assistant import decode_assistant
from metis.wire.openai_chat.blocks import PROTOCOL, write_json
from metis.wire.openai_chat.request import encode_message, wire_id_lookup, with_exact_form
from metis.wire.openai_errors import decode_error
from metis.wire.openai_values import decode_cost, input_tokens
from metis.wire.original_form import original_form_of
from metis.wire.response import model_name, new_usage, response_message
from metis.wire.tool_ids import CallIds

DEFAULT_PROVIDER = "openai"
"""The provider of a response whose context names none."""

_CACHE_KEYS = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")
"""The keys for cached tokens of hosts that do not use `prompt_tokens_details`."""
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
    # Not `stop`, after which clients do not continue the response (T158).
    StopReason.PAUSE: "length",
    StopReason.ERROR: "error",
    StopReason.CANCELLED: "error",
}


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """Decode a response body; an error body is raised as a ProviderError."""
    provider = context.provider or DEFAULT_PROVIDER
    if has_failed(context):
        raise decode_error(body, context.status, provider)
    # A dict is copied through JSON, because `decode_body` removes the message from it.
    wire = read_object(body if isinstance(body, bytes) else write_json(body), "response")
    choices = wire.get("choices")
    # OpenRouter answers 200 with an error object, at the top or in the first choice (T189).
    if wire.get("error") and not choices:
        raise decode_error(wire, context.status, provider)
    if not isinstance(choices, list):
        raise DecodeError("a response needs a list of choices", path="$.choices")
    first = maybe_object(choices[0]) if choices else {}
    if first.get("error") and not maybe_object(first.get("message")).get("content"):
        raise decode_error(first, context.status, provider)
    return decode_body(wire, context, message_id=new_ulid())


def decode_body(
    wire: Wire,
    context: RequestContext,
    *,
    message_id: str,
    status: MessageStatus = MessageStatus.COMPLETE,
) -> Message:
    """Decode a response, complete or partial; its message is removed from `wire`."""
    choices = maybe_list(wire.get("choices"))
    choice = maybe_object(choices[0]) if choices else {}
    message = maybe_object(choice.get("message"))
    response_id = maybe_text(wire.get("id")) or None
    ids = CallIds(context.session_id, message_id)
    ids.enter_response(response_id or message_id)
    content, form = decode_assistant(message, ids, context.provider or PROTOCOL)
    form = with_exact_form(message, Role.ASSISTANT, content, form)
    form["ids"] = {call: wire_id for call, wire_id in form["ids"].items() if wire_id}
    form = {name: value for name, value in form.items() if value}
    if message:
        del choice["message"]
    else:
        # A choice without a message must be encoded without one again.
        form["mute"] = True
    form["response"] = wire
    provider, model = context.provider or DEFAULT_PROVIDER, maybe_text(wire.get("model"))
    return response_message(
        content,
        context,
        (PROTOCOL, form),
        provider=provider,
        message_id=message_id,
        model=f"{provider}:{model}" if model else context.model,
        status=status,
        usage=decode_usage(wire.get("usage"), context, wire.get("service_tier")),
        stop_reason=_decode_stop_reason(
            choice,
            has_calls=any(type(block) is ToolUseBlock for block in content),
            is_refusal="refusal" in form,
        ),
        response_id=response_id,
    )


def encode_response(message: Message, context: RequestContext) -> bytes:
    """Encode a message as a response body."""
    form = original_form_of(message, PROTOCOL)
    encoded = encode_message(message, form, wire_id_lookup(form), is_response=True)
    if context.declared_tools and not form:
        encoded = _with_custom_calls(encoded, message, context.declared_tools)
    body: Wire = form.get("response") or _new_envelope(message, context)
    choices = maybe_list(body.get("choices"))
    had_no_message = form.get("mute") and not message.content
    if had_no_message or not choices or not isinstance(choices[0], dict):
        return write_json(body)
    first: Wire = {**maybe_object(choices[0]), "message": encoded}
    reason = message.metadata.stop_reason
    # The stored finish reason is outdated if the response was cancelled later (T164).
    original = _decode_stop_reason(
        first,
        has_calls=any(type(block) is ToolUseBlock for block in message.content),
        is_refusal="refusal" in form,
    )
    if reason is not original and (original is not StopReason.UNKNOWN or is_failed_stop(reason)):
        first["finish_reason"] = encode_stop_reason(reason)
    return write_json({**body, "choices": [first, *choices[1:]]})


def _with_custom_calls(
    encoded: Wire, message: Message, declared: Mapping[str, DeclaredTool]
) -> Wire:
    """Return a message in which calls of custom tools have the form of custom calls (T219)."""
    blocks = [block for block in message.content if type(block) is ToolUseBlock]
    calls = [
        _encode_custom_call(maybe_object(call), block, declared.get(block.name))
        for call, block in zip(maybe_list(encoded.get("tool_calls")), blocks, strict=False)
    ]
    return {**encoded, "tool_calls": calls} if calls else encoded


def _encode_custom_call(call: Wire, block: ToolUseBlock, tool: DeclaredTool | None) -> Wire:
    """Return a call in the form of a custom call; unchanged if its tool is not a custom one."""
    if tool is None or tool.kind != CUSTOM_KIND:
        return call
    text = tool.text_input(block.input) if block.invalid is None else block.invalid.raw
    text = write_json(block.input).decode() if text is None else text
    keys = {key: value for key, value in call.items() if key != "function"}
    return {**keys, "type": "custom", "custom": {"name": tool.name, "input": text}}


def _new_envelope(message: Message, context: RequestContext) -> Wire:
    """Return the keys of a response besides its message, for a message of another protocol."""
    metadata = message.metadata
    reason = encode_stop_reason(metadata.stop_reason or StopReason.END_TURN)
    body: Wire = {
        "id": metadata.response_id or f"chatcmpl-{message.id}",
        "object": "chat.completion",
        "created": int(message.created_at.timestamp()),
        "model": model_name(context.model or metadata.model),
        "choices": [{"index": 0, "logprobs": None, "finish_reason": reason}],
    }
    if metadata.usage is not None:
        body["usage"] = encode_usage(metadata.usage)
    return body


def _decode_stop_reason(choice: Wire, *, has_calls: bool, is_refusal: bool) -> StopReason:
    """Decode the stop reason of a choice; UNKNOWN for a new name."""
    name = choice.get("finish_reason")
    reason = _STOP_REASONS.get(name) if isinstance(name, str) else None
    if reason is StopReason.END_TURN or reason is None:
        if has_calls:
            # Some hosts send `stop`, or nothing, for a response with calls, which would end the
            # tool loop before the calls are run (T163).
            return StopReason.TOOL_USE
        if is_refusal:
            return StopReason.REFUSAL
        # OpenRouter sends the reason of its upstream, vLLM the stop sequence itself.
        is_sequence = choice.get("native_finish_reason") == "stop_sequence"
        if reason and (is_sequence or isinstance(choice.get("stop_reason"), str)):
            return StopReason.STOP_SEQUENCE
    return reason or StopReason.UNKNOWN


def encode_stop_reason(reason: StopReason | None) -> str | None:
    """Encode a stop reason; None if unknown, because `stop` would mean a clean end (T164)."""
    return None if reason is None else _FINISH_REASONS.get(reason)


def decode_usage(wire: Any, context: RequestContext, tier: Any = None) -> Usage | None:
    """Decode a usage into disjoint buckets; an absent usage is unknown, not zero (T153)."""
    if not wire:
        return None
    usage = maybe_object(wire)
    prompt, output = (
        maybe_count(usage.get("prompt_tokens")),
        maybe_count(usage.get("completion_tokens")),
    )
    if prompt is None and output is None:
        return None
    prompt, output = prompt or 0, output or 0
    details = maybe_object(usage.get("prompt_tokens_details"))
    cached = _first_count(details, ("cached_tokens",)) or _first_count(usage, _CACHE_KEYS)
    written = _first_count(details, ("cache_write_tokens", "cache_creation_tokens"))
    output, reasoning = _output_tokens(usage, prompt, output)
    return new_usage(
        latency_ms=context.latency_ms,
        input_tokens=input_tokens(prompt, cached, written),
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        output_tokens=output,
        reasoning_output_tokens=reasoning,
        reported_cost_usd=decode_cost(usage.get("cost")),
        server_tool_requests=_decode_server_tools(usage),
        service_tier=maybe_text(tier) or None,
    )


def _output_tokens(usage: Wire, prompt: int, output: int) -> tuple[int, int]:
    """Return the output tokens, and the part of them that was spent on reasoning."""
    details = maybe_object(usage.get("completion_tokens_details"))
    reasoning = _first_count(details, ("reasoning_tokens",))
    # xAI does not count reasoning in `completion_tokens`; only the total includes it (T144).
    excess = _first_count(usage, ("total_tokens",)) - prompt - output
    if excess > 0 and reasoning in (0, excess):
        return output + excess, excess
    return output, min(reasoning, output)


def _decode_server_tools(usage: Wire) -> dict[str, int] | None:
    tools = maybe_object(usage.get("server_tool_use_details") or usage.get("server_tool_use"))
    counts = {
        name.removesuffix("_requests"): count
        for name, value in tools.items()
        if name.endswith("_requests") and (count := maybe_count(value))
    }
    return counts or None


def _first_count(wire: Wire, keys: tuple[str, ...]) -> int:
    return next((count for key in keys if (count := maybe_count(wire.get(key)))), 0)


def encode_usage(usage: Usage) -> Wire:
    """Encode a usage; the prompt tokens of this protocol include cached tokens."""
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
