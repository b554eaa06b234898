"""Responses of Gemini: messages, usage, stop reasons, grounding and error bodies."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import Citation, ContentBlock, TextBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    DecodeError,
    InvalidRequestError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, StopReason, Usage
from metis.wire.call import RequestContext
from metis.wire.errors import (
    NOT_FOUND,
    OverflowWording,
    class_of_status,
    has_failed,
    refine_class,
    worded_text,
)
from metis.wire.errors import read_error as read_any_error
from metis.wire.gemini.history import encode_parts
from metis.wire.gemini.key_names import HOSTS, PROTOCOL, field
from metis.wire.gemini.original_parts import original_form_of_parts, signature_carriers
from metis.wire.gemini.parts import (
    WIRE_ID_PREFIX,
    PartDecoder,
    PartEncoder,
)
from metis.wire.gemini.request import CallPairing
from metis.wire.json_access import (
    Wire,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
    read_object,
)
from metis.wire.original_form import EMPTY, original_form_of
from metis.wire.response import model_name, new_usage, response_message
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_RESPONSE_KEYS = ("candidates", "promptFeedback", "usageMetadata")
"""Every response has one of these keys, even if the prompt was blocked."""


def decode_response(body: bytes | Wire, context: RequestContext) -> Message:
    """Decode a response body; an error body is raised as a ProviderError."""
    is_error = has_failed(context)
    data = body if isinstance(body, bytes) else _write(body)
    wire = read_error(data) if is_error else read_object(data, "response")
    if is_error or "error" in wire:
        raise decode_error(wire, context.status, context.provider or PROTOCOL)
    if not wire.get("candidates") and not any(field(wire, key) for key in _RESPONSE_KEYS):
        raise DecodeError("a response needs a list of candidates", path="$.candidates")
    try:
        message = decode_body(wire, context, message_id=new_ulid())
    except RecursionError:
        raise DecodeError("the response is nested too deeply") from None
    failure = malformed_call_error(message, context)
    if failure is not None:
        raise failure
    return message


def malformed_call_error(message: Message, context: RequestContext) -> ServerError | None:
    """Return the error for a response that is empty because of a malformed call (T161)."""
    if message.content or message.metadata.stop_reason is not StopReason.ERROR:
        return None
    envelope = original_form_of(message, PROTOCOL).get("response", {})
    candidate = first_candidate(envelope)
    name = finish_reason_name(field(candidate, "finishReason"), context.provider)
    text = maybe_text(field(candidate, "finishMessage")) or f"the response ended with {name}"
    return ServerError(text, provider=context.provider, status=context.status, kind=name)


def first_candidate(wire: Mapping[str, Any]) -> Wire:
    """Return the first candidate of a response; an empty object if there is none."""
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
    """Decode a response, complete or partial; its parts are removed from `wire`."""
    provider, response_id = context.provider or PROTOCOL, maybe_text(field(wire, "responseId"))
    candidate = first_candidate(wire)
    wire_content = maybe_object(candidate.get("content"))
    parts = maybe_list(wire_content.get("parts"))
    if parts:
        wire_content["parts"] = []
    pairing = CallPairing(call_scope(context, scope or response_id or message_id))
    blocks: list[ContentBlock] = []
    is_plain = PartDecoder(provider, pairing, is_model=True).decode(parts, blocks)
    content, ids = tuple(blocks), pairing.take_new_wire_ids()
    form: Wire = {"response": wire}
    if not is_plain:
        encoded = PartEncoder(ids.get, pairing.tool_names).encode(content)
        form |= original_form_of_parts(parts, encoded)
        if carriers := signature_carriers(content):
            form["carriers"] = carriers
    if ids:
        form["ids"] = ids
    if "groundingMetadata" in candidate or "grounding_metadata" in candidate:
        content = _with_citations(content, candidate)
    if "parts" in form:
        form["digest"] = content_digest(Role.ASSISTANT, content)
    return response_message(
        content,
        context,
        (PROTOCOL, form),
        message_id=message_id,
        provider=provider,
        model=context.model or f"{provider}:{maybe_text(field(wire, 'modelVersion')) or 'unknown'}",
        status=status,
        usage=decode_usage(wire, context),
        stop_reason=_stop_reason(wire, candidate, provider, has_calls=bool(pairing.tool_names)),
        response_id=response_id,
    )


def call_scope(context: RequestContext, response: str) -> str:
    """Return the scope of call ids: a wire id in another response is another call (T09)."""
    return f"{context.session_id}\0{response}"


def _stop_reason(wire: Wire, candidate: Wire, provider: str, *, has_calls: bool) -> StopReason:
    name = finish_reason_name(field(candidate, "finishReason"), provider)
    # A blocked prompt has no candidate, and so no finish reason.
    if name is None and field(maybe_object(field(wire, "promptFeedback")), "blockReason"):
        return StopReason.CONTENT_FILTER
    return decode_stop_reason(name, has_calls=has_calls)


def encode_response(message: Message, context: RequestContext) -> bytes:
    """Encode the response body for a message."""
    form = original_form_of(message, PROTOCOL)
    wire_ids: Mapping[str, str] = form.get("ids", EMPTY)
    envelope = form.get("response")
    # Gemini's calls may have no id. Calls of other providers get one, because clients match results
    # by id.
    wire_id = wire_ids.get if envelope else _derived_id
    parts = encode_parts(message, form, PartEncoder(wire_id, {}))
    if not envelope:
        return _write(_new_envelope(message, context, parts))
    candidate = first_candidate(envelope)
    if not candidate:
        return _write(envelope)
    first = candidate
    if parts:
        content = {**maybe_object(candidate.get("content")), "parts": parts}
        first = {**candidate, "content": content}
    reason = message.metadata.stop_reason
    if reason is not None and reason is not _envelope_reason(message, envelope, candidate):
        # The stored envelope is outdated, for example because the message was cancelled later.
        key = "finish_reason" if "finish_reason" in candidate else "finishReason"
        first = {**first, key: encode_stop_reason(reason)}
    return _write({**envelope, "candidates": [first, *envelope["candidates"][1:]]})


def _envelope_reason(message: Message, envelope: Wire, candidate: Wire) -> StopReason:
    """Return the stop reason of a stored envelope for the content of a message."""
    has_calls = any(type(block) is ToolUseBlock for block in message.content)
    provider = message.metadata.provider or PROTOCOL
    return _stop_reason(envelope, candidate, provider, has_calls=has_calls)


def _derived_id(tool_use_id: str) -> str:
    return derived_id(tool_use_id, WIRE_ID_PREFIX)


def _new_envelope(message: Message, context: RequestContext, parts: list[Any]) -> Wire:
    """Return the response body for a message of another protocol."""
    metadata = message.metadata
    candidate = {
        "content": {"parts": parts, "role": "model"},
        "finishReason": encode_stop_reason(metadata.stop_reason),
        "index": 0,
    }
    wire: Wire = {
        "candidates": [candidate],
        "modelVersion": model_name(context.model or metadata.model),
        "responseId": metadata.response_id or message.id,
    }
    usage = encode_usage(metadata.usage)
    if usage is not None:
        wire["usageMetadata"] = usage
    return wire


_BLOCKED = (
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "MODEL_ARMOR",
    "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT",
    "IMAGE_RECITATION",
)
_STOP_REASONS: Mapping[str, StopReason] = {
    "STOP": StopReason.END_TURN,
    "FUNCTION_CALL": StopReason.END_TURN,  # sent by other servers with this protocol
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    **dict.fromkeys(_BLOCKED, StopReason.CONTENT_FILTER),
    # The model wrote an invalid call; Gemini sends the reason without the call (T161).
    "MALFORMED_FUNCTION_CALL": StopReason.ERROR,
    "MALFORMED_RESPONSE": StopReason.ERROR,
    "MISSING_THOUGHT_SIGNATURE": StopReason.ERROR,
    "TOO_MANY_TOOL_CALLS": StopReason.ERROR,
    "UNEXPECTED_TOOL_CALL": StopReason.ERROR,
}
_FINISH_REASONS: Mapping[StopReason, str] = {
    StopReason.MAX_TOKENS: "MAX_TOKENS",
    StopReason.CONTENT_FILTER: "SAFETY",
    StopReason.REFUSAL: "SAFETY",
    StopReason.ERROR: "OTHER",
    StopReason.CANCELLED: "OTHER",
    StopReason.UNKNOWN: "OTHER",
}
# The enums of Gemini and Vertex AI differ after the first six values.
_SHARED_ENUM = (
    "FINISH_REASON_UNSPECIFIED",
    "STOP",
    "MAX_TOKENS",
    "SAFETY",
    "RECITATION",
    "OTHER",
)
_AI_STUDIO_ENUM = (
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "MALFORMED_FUNCTION_CALL",
    "IMAGE_SAFETY",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
)
_VERTEX_ENUM = ("BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL", "MODEL_ARMOR")


def finish_reason_name(value: Any, provider: str | None) -> str | None:
    """Return the name of a finish reason; some servers send its number in the enum."""
    if type(value) is not int:
        return maybe_text(value)
    names = (*_SHARED_ENUM, *(_VERTEX_ENUM if provider == "vertex" else _AI_STUDIO_ENUM))
    return names[value] if 0 <= value < len(names) else str(value)


def decode_stop_reason(name: str | None, *, has_calls: bool) -> StopReason:
    """Decode a finish reason; Gemini sends `STOP` for responses with calls, too (T163)."""
    reason = _STOP_REASONS.get(name or "", StopReason.UNKNOWN)
    return StopReason.TOOL_USE if has_calls and reason is StopReason.END_TURN else reason


def encode_stop_reason(reason: StopReason | None) -> str:
    """Encode a stop reason; `STOP` for responses with calls, too."""
    return "STOP" if reason is None else _FINISH_REASONS.get(reason, "STOP")


def decode_usage(body: Mapping[str, Any], context: RequestContext) -> Usage | None:
    """Decode a usage into disjoint buckets; an absent usage is unknown, not zero (T153).

    The prompt count includes cached tokens (T142), but not the prompts of server tools (T146), and
    the output count does not include thinking (T145). Gemini omits counts of zero.
    """
    counts = maybe_object(field(body, "usageMetadata"))
    if not counts:
        return None
    prompt = _count(counts, "promptTokenCount")
    # Chunks before the last may contain an empty usage.
    if not prompt and not _count(counts, "totalTokenCount"):
        return None
    # A wrong count of the server must not make the uncached count negative.
    cached = min(_count(counts, "cachedContentTokenCount"), prompt)
    thinking = _count(counts, "thoughtsTokenCount")
    searches = _searches(body)
    return new_usage(
        latency_ms=context.latency_ms,
        input_tokens=prompt - cached + _count(counts, "toolUsePromptTokenCount"),
        cached_input_tokens=cached,
        output_tokens=_count(counts, "candidatesTokenCount") + thinking,
        reasoning_output_tokens=thinking,
        service_tier=maybe_text(field(counts, "serviceTier")),
        server_tool_requests={"web_search": searches} if searches else None,
    )


def _count(counts: Wire, name: str) -> int:
    return maybe_count(field(counts, name)) or 0


def _searches(body: Mapping[str, Any]) -> int:
    """Return the number of web searches of a response."""
    grounding = maybe_object(field(first_candidate(body), "groundingMetadata"))
    return len(maybe_list(field(grounding, "webSearchQueries"))) if grounding else 0


def encode_usage(usage: Usage | None) -> Wire | None:
    """Encode a usage; None if it is unknown."""
    if usage is None:
        return None
    prompt, thinking = usage.prompt_tokens, usage.reasoning_output_tokens
    wire: Wire = {
        "promptTokenCount": prompt,
        # Unlike ours, Gemini's output count does not include thinking (T145).
        "candidatesTokenCount": max(usage.output_tokens - thinking, 0),
        "totalTokenCount": prompt + usage.output_tokens,
    }
    if usage.cached_input_tokens:
        wire["cachedContentTokenCount"] = usage.cached_input_tokens
    if thinking:
        wire["thoughtsTokenCount"] = thinking
    return wire


GROUNDING = "grounding"
"""The kind of a citation from grounding metadata."""

_SOURCES = ("web", "retrievedContext", "maps")


def _with_citations(content: tuple[ContentBlock, ...], candidate: Wire) -> tuple[ContentBlock, ...]:
    """Return the blocks with the citations of a candidate, on the texts that they support (T200).

    Gemini's offsets count bytes, ours count characters, so that a segment is found by its text.
    """
    metadata = maybe_object(field(candidate, "groundingMetadata"))
    supports = maybe_list(field(metadata, "groundingSupports")) if metadata else []
    if not supports:
        return content
    blocks = list(content)
    chunks = [maybe_object(chunk) for chunk in maybe_list(field(metadata, "groundingChunks"))]
    for support in map(maybe_object, supports):
        segment = maybe_text(maybe_object(support.get("segment")).get("text"))
        if not segment:
            continue
        for index, block in enumerate(blocks):
            if type(block) is TextBlock and segment in block.text:
                added = _citations(support, chunks, segment, block.text.index(segment))
                blocks[index] = replace(block, citations=(*block.citations, *added))
                break
    return tuple(blocks)


def _citations(support: Wire, chunks: list[Wire], segment: str, start: int) -> Iterator[Citation]:
    for number in maybe_list(field(support, "groundingChunkIndices")):
        if type(number) is int and 0 <= number < len(chunks):
            source = _source(chunks[number])
            yield Citation(
                kind=GROUNDING,
                cited_text=segment,
                url=maybe_text(source.get("uri")),
                title=maybe_text(source.get("title")),
                start=start,
                end=start + len(segment),
                raw=chunks[number],
            )


def _source(chunk: Wire) -> Wire:
    sources = (maybe_object(field(chunk, name)) for name in _SOURCES)
    return next((source for source in sources if source), Wire())


_BY_STATUS: Mapping[str, type[ProviderError]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "FAILED_PRECONDITION": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "NOT_FOUND": InvalidRequestError,
    "UNAUTHENTICATED": AuthenticationError,
    "PERMISSION_DENIED": AuthenticationError,
    "RESOURCE_EXHAUSTED": RateLimitError,
    "UNAVAILABLE": ServerError,
    "INTERNAL": ServerError,
    "UNKNOWN": ServerError,
    "DEADLINE_EXCEEDED": NetworkError,
    "CANCELLED": NetworkError,
}
_STATUS_OF: Mapping[type[ProviderError], tuple[int, str]] = {
    RateLimitError: (429, "RESOURCE_EXHAUSTED"),
    AuthenticationError: (401, "UNAUTHENTICATED"),
    ServerError: (500, "INTERNAL"),
    NetworkError: (504, "DEADLINE_EXCEEDED"),
    ContextOverflowError: (400, "INVALID_ARGUMENT"),
    InvalidRequestError: (400, "INVALID_ARGUMENT"),
}
OVERFLOW = OverflowWording(
    "The input token count exceeds the maximum number of tokens allowed",
    "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit})",
)
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_RETRY_IN = re.compile(r"retry in (\d{1,9}(?:\.\d{1,9})?)s", re.IGNORECASE)


def read_error(body: bytes) -> Wire:
    """Read an error body, which may be in a list; a body that is not JSON becomes the text."""
    try:
        value = _read(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list) and value:
        return maybe_object(cast("list[Any]", value)[0])
    return read_any_error(body)


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Decode an error body into an error with the provider's text unchanged."""
    error = maybe_object(wire.get("error")) or wire
    code = error.get("code")
    if status is None and type(code) is int:
        status = code
    kind, text = maybe_text(error.get("status")), str(error.get("message") or wire)
    details = [maybe_object(detail) for detail in maybe_list(error.get("details"))]
    failure = _class_of(kind, status, text, details)(
        text,
        provider=provider,
        status=status,
        kind=kind,
        code=_reason(details),
        retry_after_s=_retry_after(details, text),
    )
    # Gemini suggests a retry within seconds even if the daily quota is exhausted.
    if isinstance(failure, RateLimitError) and _is_daily(details):
        failure.is_retryable = False
    return failure


def _class_of(
    kind: str | None, status: int | None, text: str, details: list[Wire]
) -> type[ProviderError]:
    # Gemini reports a wrong key as INVALID_ARGUMENT with status 400.
    if _reason(details) == "API_KEY_INVALID":
        return AuthenticationError
    return refine_class(_BY_STATUS.get(kind or "") or class_of_status(status), status, text)


def _reason(details: list[Wire]) -> str | None:
    reasons = (maybe_text(detail.get("reason")) for detail in details)
    return next((reason for reason in reasons if reason), None)


def _retry_after(details: list[Wire], text: str) -> float | None:
    """Return the seconds to wait, which Gemini sends in the body, not in a header (T187)."""
    delays = (_SECONDS.fullmatch(str(detail.get("retryDelay"))) for detail in details)
    match = next(filter(None, delays), None) or _RETRY_IN.search(text)
    return float(match[1]) if match else None


def _is_daily(details: list[Wire]) -> bool:
    """Whether a daily quota is exhausted, so that a retry within seconds fails."""
    return any(
        "PerDay" in str(maybe_object(violation).get("quotaId"))
        for detail in details
        for violation in maybe_list(detail.get("violations"))
    )


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """Encode an error as the status and the body of a response."""
    status, kind = _STATUS_OF.get(type(error), (500, "INTERNAL"))
    if error.provider in HOSTS:
        status, kind = error.status or status, error.kind or kind
    elif error.status == NOT_FOUND:
        status, kind = NOT_FOUND, "NOT_FOUND"
    text = error.text if error.provider in HOSTS else worded_text(error, OVERFLOW)
    inner: Wire = {"code": status, "message": text, "status": kind}
    if error.retry_after_s is not None:
        # Clients of this protocol read the time to wait from the body, not from a header.
        inner["details"] = [{"@type": _RETRY_INFO, "retryDelay": f"{error.retry_after_s:g}s"}]
    return status, _write({"error": inner})
