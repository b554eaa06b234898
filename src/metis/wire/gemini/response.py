"""Responses of Gemini: messages, usage, stop reasons, grounding and error bodies."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import Citation, ContentBlock, TextBlock, ThinkingBlock
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
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.canonical.value import raw_constructor
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.errors import class_of_status, class_of_text, has_failed
from metis.wire.errors import read_error as read_bare_error
from metis.wire.gemini.answer import Answer, read_common
from metis.wire.gemini.history import encode_parts
from metis.wire.gemini.key_names import HOSTS, PROTOCOL, field
from metis.wire.gemini.parts import PartDecoder, PartEncoder, original_form_of_parts
from metis.wire.gemini.request import CallPairing
from metis.wire.json_access import (
    Wire,
    maybe_count,
    maybe_list,
    maybe_object,
    maybe_text,
    read_object,
)
from metis.wire.original_form import original_form_of
from metis.wire.tool_ids import derived_id

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
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_RETRY_IN = re.compile(r"retry in (\d{1,9}(?:\.\d{1,9})?)s", re.IGNORECASE)
_write = msgspec.json.Encoder().encode
_read_any = msgspec.json.Decoder().decode


def read_error(body: bytes) -> Wire:
    """An error body; it may be wrapped in a list, and what is no JSON is its own text."""
    try:
        value = _read_any(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list) and value:
        return maybe_object(cast("list[Any]", value)[0])
    return read_bare_error(body)


def decode_error(wire: Wire, status: int | None = None, provider: str = PROTOCOL) -> ProviderError:
    """Our error for an error body; the provider's own words are kept."""
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
    if isinstance(failure, RateLimitError) and _is_daily(details):
        failure.is_retryable = False
    return failure


def _class_of(
    kind: str | None, status: int | None, text: str, details: list[Wire]
) -> type[ProviderError]:
    if _reason(details) == "API_KEY_INVALID":
        return AuthenticationError
    found = _BY_STATUS.get(kind or "")
    if found is InvalidRequestError:
        return class_of_text(text) or found
    return found or class_of_status(status)


def _reason(details: list[Wire]) -> str | None:
    return next((reason for each in details if (reason := maybe_text(each.get("reason")))), None)


def _retry_after(details: list[Wire], text: str) -> float | None:
    """How long to wait; it stands in the body, not in a header (T187)."""
    for detail in details:
        found = _SECONDS.fullmatch(str(detail.get("retryDelay")))
        if found:
            return float(found[1])
    told = _RETRY_IN.search(text)
    return float(told[1]) if told else None


def _is_daily(details: list[Wire]) -> bool:
    """Whether the quota of a day is used up: waiting some seconds does not help."""
    return any(
        "PerDay" in str(maybe_object(violation).get("quotaId"))
        for detail in details
        for violation in maybe_list(detail.get("violations"))
    )


def encode_error(error: ProviderError) -> tuple[int, bytes]:
    """The status and the body that say the same here."""
    status, kind = _STATUS_OF.get(type(error), (500, "INTERNAL"))
    if error.provider in HOSTS:
        status, kind = error.status or status, error.kind or kind
    body = {"error": {"code": status, "message": error.text, "status": kind}}
    return status, _write(body)


_make_usage = raw_constructor(Usage)

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
    "FUNCTION_CALL": StopReason.END_TURN,  # the word of other servers that speak this protocol
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    **dict.fromkeys(_BLOCKED, StopReason.CONTENT_FILTER),
    "MALFORMED_FUNCTION_CALL": StopReason.ERROR,
    "MALFORMED_RESPONSE": StopReason.ERROR,
    "MISSING_THOUGHT_SIGNATURE": StopReason.ERROR,
    "TOO_MANY_TOOL_CALLS": StopReason.ERROR,
    "UNEXPECTED_TOOL_CALL": StopReason.ERROR,
}
_WORDS: Mapping[StopReason, str] = {
    StopReason.MAX_TOKENS: "MAX_TOKENS",
    StopReason.CONTENT_FILTER: "SAFETY",
    StopReason.REFUSAL: "SAFETY",
    StopReason.ERROR: "OTHER",
    StopReason.CANCELLED: "OTHER",
    StopReason.UNKNOWN: "OTHER",
}
# The two hosts count their words differently from the sixth on.
_NUMBERS = (
    "FINISH_REASON_UNSPECIFIED",
    "STOP",
    "MAX_TOKENS",
    "SAFETY",
    "RECITATION",
    "OTHER",
)
_AI_STUDIO = (
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "MALFORMED_FUNCTION_CALL",
    "IMAGE_SAFETY",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
)
_VERTEX = ("BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL", "MODEL_ARMOR")


def finish_reason_name(value: Any, provider: str | None) -> str | None:
    """The word for the end of an answer; some hosts write the numbers of their enum."""
    if type(value) is not int:
        return maybe_text(value)
    words = (*_NUMBERS, *(_VERTEX if provider == "vertex" else _AI_STUDIO))
    return words[value] if 0 <= value < len(words) else str(value)


def decode_stop_reason(word: str | None, *, has_calls: bool) -> StopReason:
    """Our reason for the provider's word, which says nothing of calls (T163)."""
    reason = _STOP_REASONS.get(word or "", StopReason.UNKNOWN)
    return StopReason.TOOL_USE if has_calls and reason is StopReason.END_TURN else reason


def encode_stop_reason(reason: StopReason | None) -> str:
    """The provider's word for our reason; calls end with `STOP` as well."""
    return "STOP" if reason is None else _WORDS.get(reason, "STOP")


def decode_usage(body: Mapping[str, Any], context: RequestContext) -> Usage | None:
    """The usage of a response in disjoint buckets; absent usage is unknown, not zero (T153).

    The prompt includes what was cached (T142), the prompts of server-side tools come on top (T146),
    and thoughts stand beside the answer (T145). A count of zero is left out on the wire.
    """
    counts = maybe_object(field(body, "usageMetadata"))
    if not counts:
        return None
    prompt = _count(counts, "promptTokenCount")
    if not prompt and not _count(counts, "totalTokenCount"):
        return None
    cached = min(_count(counts, "cachedContentTokenCount"), prompt)
    thoughts = _count(counts, "thoughtsTokenCount")
    searches = _searches(body)
    return _make_usage(
        input_tokens=prompt - cached + _count(counts, "toolUsePromptTokenCount"),
        cached_input_tokens=cached,
        output_tokens=_count(counts, "candidatesTokenCount") + thoughts,
        reasoning_output_tokens=thoughts,
        cost_usd=_NOTHING,
        pricing_version=UNPRICED,
        latency_ms=context.latency_ms,
        service_tier=maybe_text(field(counts, "serviceTier")),
        server_tool_requests={"web_search": searches} if searches else None,
    )


_NOTHING = Decimal(0)


def _count(counts: Wire, name: str) -> int:
    return maybe_count(field(counts, name)) or 0


def _searches(body: Mapping[str, Any]) -> int:
    """How many searches an answer rests on."""
    candidates = maybe_list(body.get("candidates"))
    first = maybe_object(candidates[0]) if candidates else {}
    grounding = maybe_object(field(first, "groundingMetadata"))
    return len(maybe_list(field(grounding, "webSearchQueries"))) if grounding else 0


def encode_usage(usage: Usage | None) -> Wire | None:
    """The usage of a response in this protocol's words; None if it is unknown."""
    if usage is None:
        return None
    prompt, thoughts = usage.prompt_tokens, usage.reasoning_output_tokens
    wire: Wire = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(usage.output_tokens - thoughts, 0),
        "totalTokenCount": prompt + usage.output_tokens,
    }
    if usage.cached_input_tokens:
        wire["cachedContentTokenCount"] = usage.cached_input_tokens
    if thoughts:
        wire["thoughtsTokenCount"] = thoughts
    return wire


GROUNDING = "grounding"
"""The kind of a citation that comes from grounding."""

_SOURCES = ("web", "retrievedContext", "maps")


def with_citations(content: tuple[ContentBlock, ...], candidate: Wire) -> tuple[ContentBlock, ...]:
    """The blocks with the citations of a candidate on the texts that they support."""
    metadata = maybe_object(field(candidate, "groundingMetadata"))
    supports = maybe_list(field(metadata, "groundingSupports")) if metadata else []
    if not supports:
        return content
    blocks = list(content)
    chunks = [maybe_object(chunk) for chunk in maybe_list(field(metadata, "groundingChunks"))]
    found: dict[int, list[Citation]] = {}
    for support in map(maybe_object, supports):
        words = maybe_text(maybe_object(support.get("segment")).get("text"))
        place = _place(blocks, words) if words else None
        if place is not None and words is not None:
            index, start = place
            own = _citations(support, chunks, words, start)
            found.setdefault(index, []).extend(own)
    for index, citations in found.items():
        block = blocks[index]
        if isinstance(block, TextBlock):
            blocks[index] = replace(block, citations=tuple(citations))
    return tuple(blocks)


def _place(blocks: list[ContentBlock], words: str) -> tuple[int, int] | None:
    """The first text that holds words, and where."""
    for index, block in enumerate(blocks):
        if type(block) is TextBlock:
            start = block.text.find(words)
            if start >= 0:
                return index, start
    return None


def _citations(support: Wire, chunks: list[Wire], words: str, start: int) -> Iterator[Citation]:
    for number in maybe_list(field(support, "groundingChunkIndices")):
        if type(number) is int and 0 <= number < len(chunks):
            source = _source(chunks[number])
            yield Citation(
                kind=GROUNDING,
                cited_text=words,
                url=maybe_text(source.get("uri")),
                title=maybe_text(source.get("title")),
                start=start,
                end=start + len(words),
                raw=chunks[number],
            )


def _source(chunk: Wire) -> dict[str, Any]:
    return next(
        (maybe_object(field(chunk, name)) for name in _SOURCES if field(chunk, name)), Wire()
    )


_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
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
    envelope = original_form_of(message, PROTOCOL).get("response", {})
    candidate = first_candidate(envelope)
    word = finish_reason_name(field(candidate, "finishReason"), context.provider)
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
    answer = read_common(parts, scope, provider) or _response_read_any(
        parts, scope, provider, spelling
    )
    content = answer.content
    if answer.ids:
        spelling["ids"] = answer.ids
    if "groundingMetadata" in candidate or "grounding_metadata" in candidate:
        content = with_citations(content, candidate)
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


def _response_read_any(parts: list[Any], scope: str, provider: str, spelling: Wire) -> Answer:
    """What parts of any kind say; how they were written is noted if we would write otherwise."""
    names = CallPairing(scope)
    blocks: list[ContentBlock] = []
    is_usual = PartDecoder(provider, names, is_model=True).decode(parts, blocks)
    content, ids = tuple(blocks), names.take_new_wire_ids()
    if not is_usual:
        spelling |= original_form_of_parts(
            parts, PartEncoder(ids.get, names.tool_names).encode(content)
        )
    return Answer(content, ids, bool(names.tool_names))


def call_scope(context: RequestContext, answer: str) -> str:
    """What ids of calls hold for: an id that comes again in another answer is another (T09)."""
    return f"{context.session_id}\0{answer}"


def _stop_reason(wire: Wire, candidate: Wire, provider: str, *, has_calls: bool) -> StopReason:
    word = finish_reason_name(field(candidate, "finishReason"), provider)
    if word is None and field(maybe_object(field(wire, "promptFeedback")), "blockReason"):
        return StopReason.CONTENT_FILTER
    return decode_stop_reason(word, has_calls=has_calls)


def encode_response(message: Message, context: RequestContext) -> bytes:
    """The response body for a message."""
    spelling = original_form_of(message, PROTOCOL)
    known = cast("Mapping[str, str]", spelling.get("ids", {}))
    envelope = spelling.get("response")
    # A client pairs calls and results by id where it gets one; the provider's own calls may have
    # none, others always get one.
    wire_id = known.get if envelope else _derived
    parts = encode_parts(_unsealed(message), spelling, PartEncoder(wire_id, {}))
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
