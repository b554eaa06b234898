"""The laws of the serving side: what clients decode from plain and streamed responses."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.adapters import Adapter, Loss, RequestContext
from metis.canonical.blocks import (
    ArtifactBlock,
    InvalidInput,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.errors import MetisError, NetworkError, OtherProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming import MessageComplete, MessageStart, StreamError, StreamEvent
from metis.verify.json_differences import differences
from metis.wire.original_form import provider_tool_ids, write_sorted

_METADATA = ("stop_reason", "usage", "response_id", "model", "status")
_COUNTS = (
    "prompt_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_creation_input_tokens",
    "reasoning_output_tokens",
    "reported_cost_usd",
    "server_tool_requests",
    "service_tier",
)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_CUT_ARGUMENTS = '{"cut_off": "in the mid'
_CUT = InvalidInput(_CUT_ARGUMENTS, "unexpected end")


def read_stream(adapter: Adapter, context: RequestContext, data: bytes) -> list[StreamEvent]:
    """Return the events of a stream that is fed as one chunk."""
    decoder = adapter.stream_decoder(context)
    return [*decoder.feed(data), *decoder.finish()]


def write_stream(
    adapter: Adapter, context: RequestContext, events: Sequence[StreamEvent]
) -> tuple[bytes, list[Loss]]:
    """Encode events as a stream; return its bytes and the losses."""
    encoder = adapter.stream_encoder(context)
    data = b"".join(map(encoder.encode, events)) + encoder.finish()
    return data, encoder.losses


def written_stream_faults(
    adapter: Adapter, context: RequestContext, events: Sequence[StreamEvent]
) -> Iterator[str]:
    """Yield the differences after a stream is encoded in its own protocol and decoded again."""
    try:
        data, losses = write_stream(adapter, context, events)
        decoded = read_stream(adapter, context, data)
    except MetisError as error:
        yield f"the stream cannot be written: {error}"
        return
    yield from (f"lost in its own protocol: {loss}" for loss in losses)
    before, after = events[-1], decoded[-1]
    if isinstance(before, MessageComplete) and isinstance(after, MessageComplete):
        yield from message_faults(adapter, context, before.message, after.message)
    elif isinstance(before, StreamError) and isinstance(after, StreamError):
        # No protocol has an error type for a broken connection, nor for an error without a class:
        # both become a server error.
        unnamed = (NetworkError.__name__, OtherProviderError.__name__)
        is_same_class = before.error_class in (after.error_class, *unnamed)
        if not is_same_class or before.text != after.text:
            yield f"the error was {before.error_class}, is {after.error_class}: {after.text}"
        if _content_of(before.message) != _content_of(after.message):
            yield "the content before the error differs"
    else:
        yield f"the end was {before.type}, is {after.type}"


def message_faults(
    adapter: Adapter, context: RequestContext, before: Message, after: Message
) -> Iterator[str]:
    """Yield the differences of two responses of one provider, including those of their bodies."""
    for name in _METADATA:
        values = getattr(before.metadata, name), getattr(after.metadata, name)
        if values[0] != values[1]:
            yield f"$.metadata.{name}: was {values[0]}, is {values[1]}"
    ids = [list(provider_tool_ids(message).values()) for message in (before, after)]
    if ids[0] != ids[1]:
        yield f"the ids of calls were {ids[0]}, are {ids[1]}"
    if _content_of(before) != _content_of(after):
        yield "the content differs"
    bodies = [
        _decode(adapter.encode_response(message, context).body) for message in (before, after)
    ]
    yield from differences(*bodies)


def served_faults(
    adapter: Adapter, context: RequestContext, message: Message, events: Sequence[StreamEvent]
) -> Iterator[str]:
    """Yield the differences between the plain and the streamed response that a client decodes.

    Parts with a loss in only one of both may differ.
    """
    try:
        plain = adapter.encode_response(message, context)
        data, losses = write_stream(adapter, context, events)
        decoded = adapter.from_wire_response(plain.body, context)
        end = read_stream(adapter, context, data)[-1]
    except MetisError as error:
        yield f"to {adapter.name}: {error}"
        return
    if not isinstance(end, MessageComplete):
        # The stream of a failed response, such as one without content, ends with an error.
        if message.metadata.status is MessageStatus.COMPLETE:
            yield f"to {adapter.name}: the stream ended with {end.type}"
        return
    first, second = _summary(decoded), _summary(end.message)
    # A loss in only one of both explains a difference; a loss in both causes none.
    lost = {kind for kind, _ in _lost_parts(plain.losses) ^ _lost_parts(losses)}
    # Some hosts send another id at the end, when that of the start has already been sent.
    if isinstance(events[0], MessageStart):
        is_same_id = events[0].response_id == message.metadata.response_id
        lost |= set[str]() if is_same_id else {"response_id"}
    for name in first:
        if first[name] != second[name] and name not in lost:
            yield (
                f"to {adapter.name}: {name}: plain {_short(first[name])},"
                f" streamed {_short(second[name])}"
            )


def translated_faults(adapter: Adapter, context: RequestContext, message: Message) -> Iterator[str]:
    """Yield the parts of a response that a client does not receive and no loss reports."""
    try:
        served = adapter.encode_response(message, context)
        decoded = adapter.from_wire_response(served.body, context)
    except MetisError as error:
        if message.metadata.status is MessageStatus.COMPLETE:
            yield f"to {adapter.name}: {error}"
        return
    lost = Counter(loss.block_type for loss in served.losses)
    sent, received = _contents(message), _contents(decoded)
    for name, values in sent.items():
        # Each loss reports one part of its kind.
        missing = [value for value in values if value not in received[name]]
        if len(missing) > lost[name]:
            yield f"to {adapter.name}: {name} is lost without a report: {_short(missing[0])}"
    paths = {loss.path for loss in served.losses}
    before, after = message.metadata, decoded.metadata
    for name in _COUNTS:
        counts = [getattr(metadata.usage, name, None) for metadata in (before, after)]
        if counts[0] and counts[0] != counts[1] and f"$.metadata.usage.{name}" not in paths:
            yield f"to {adapter.name}: usage.{name}: was {counts[0]}, is {counts[1]}"
    is_same = before.stop_reason in (after.stop_reason, None, StopReason.UNKNOWN)
    # Most protocols have no stop reason for a failed response, and a lost call changes the reason.
    is_failed = before.status is not MessageStatus.COMPLETE
    is_reported = lost["tool_use"] > 0 or "$.metadata.stop_reason" in paths
    if not (is_same or is_failed or is_reported):
        yield f"to {adapter.name}: stop_reason: was {before.stop_reason}, is {after.stop_reason}"


def _contents(message: Message) -> dict[str, list[object]]:
    """Return the parts of a response by block type; texts without whitespace."""
    content = message.content
    texts = "".join(block.text for block in content if type(block) is TextBlock)
    thinking = "".join(block.text for block in content if type(block) is ThinkingBlock)
    return {
        "text": ["".join(texts.split())],
        "thinking": ["".join(thinking.split())],
        "tool_use": [
            (block.name, write_sorted(block.input))
            for block in content
            if type(block) is ToolUseBlock
        ],
        "artifact": [block.source.data for block in content if type(block) is ArtifactBlock],
        "citation": [
            # Protocols have different names for kinds, so that only the URL is compared.
            citation.url or "without a page"
            for block in content
            if type(block) is TextBlock
            for citation in block.citations
        ],
    }


def _lost_parts(losses: Sequence[Loss]) -> set[tuple[str, str]]:
    return {(loss.block_type, loss.path) for loss in losses}


def _summary(message: Message) -> dict[str, object]:
    """Return the content and metadata that a client decodes, by block type and field."""
    content, metadata = message.content, message.metadata
    texts = [block for block in content if type(block) is TextBlock]
    calls = [block for block in content if type(block) is ToolUseBlock]
    wire_ids = provider_tool_ids(message)
    return {
        "text": "".join(block.text for block in texts),
        "citation": [
            citation.raw or (citation.kind, citation.url, citation.title)
            for block in texts
            for citation in block.citations
        ],
        "thinking": [
            (block.text, block.signature) for block in content if type(block) is ThinkingBlock
        ],
        "tool_use": [
            (wire_ids.get(call.id), call.name, call.input, call.invalid and call.invalid.raw)
            for call in calls
        ],
        "other blocks": [
            (block.issuer, block.kind, block.data) if type(block) is OpaqueBlock else _encode(block)
            for block in content
            if type(block) not in (TextBlock, ThinkingBlock, ToolUseBlock)
        ],
        **{name: getattr(metadata, name) for name in _METADATA},
    }


def broken_call_faults(
    provider: Adapter, adapter: Adapter, context: RequestContext, message: Message
) -> Iterator[str]:
    """Yield the calls with truncated arguments that a client would decode as complete calls.

    `adapter` is that of the client. The arguments of all calls in `message` are truncated first.
    """
    truncated = cut_off(message)
    try:
        plain = adapter.encode_response(truncated, context)
        decoded = adapter.from_wire_response(plain.body, context)
        events = provider.response_events(truncated, context)
        data, losses = write_stream(adapter, context, events)
        end = read_stream(adapter, context, data)[-1]
    except MetisError as error:
        yield f"to {adapter.name}: {error}"
        return
    yield from _call_faults(f"to {adapter.name}, plain", truncated, decoded, plain.losses)
    if isinstance(end, MessageComplete):
        yield from _call_faults(f"to {adapter.name}, streamed", truncated, end.message, losses)


def cut_off(message: Message) -> Message:
    """Return a response whose calls have truncated arguments, as at the token limit."""
    content = tuple(
        replace(block, input={}, invalid=_CUT) if type(block) is ToolUseBlock else block
        for block in message.content
    )
    status, reason = MessageStatus.COMPLETE, StopReason.MAX_TOKENS
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, content=content, metadata=metadata)


def _call_faults(
    place: str, sent: Message, decoded: Message, losses: Sequence[Loss]
) -> Iterator[str]:
    """Yield truncated calls that look complete, missing calls, and a wrong stop reason."""
    expected = sum(type(block) is ToolUseBlock for block in sent.content)
    calls = [block for block in decoded.content if type(block) is ToolUseBlock]
    for call in calls:
        if call.invalid is None or call.invalid.raw != _CUT_ARGUMENTS:
            yield f"{place}: {call.name} was cut off, but is a call with {_short(call.input)}"
    lost = sum(loss.block_type == "tool_use" for loss in losses)
    if len(calls) + lost < expected:
        yield f"{place}: {expected - len(calls) - lost} calls are lost without a report"
    if decoded.metadata.stop_reason is not StopReason.MAX_TOKENS:
        yield f"{place}: the stop reason is {decoded.metadata.stop_reason}"


def _content_of(message: Message | None) -> object:
    # The digest ignores call ids, which depend on the message in protocols without ids.
    return message and message.content_digest()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits on a line
