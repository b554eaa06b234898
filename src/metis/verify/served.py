"""The laws of the serving side: what a client reads of a recorded response, plain and streamed."""

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
from metis.canonical.errors import MetisError, NetworkError
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
    """Return the events of a stream that comes in one piece."""
    decoder = adapter.stream_decoder(context)
    return [*decoder.feed(data), *decoder.finish()]


def write_stream(
    adapter: Adapter, context: RequestContext, events: Sequence[StreamEvent]
) -> tuple[bytes, list[Loss]]:
    """Return the bytes with which a provider streams these events, and the losses."""
    encoder = adapter.stream_encoder(context)
    data = b"".join(map(encoder.encode, events)) + encoder.finish()
    return data, encoder.losses


def written_stream_faults(
    adapter: Adapter, context: RequestContext, events: Sequence[StreamEvent]
) -> Iterator[str]:
    """Yield what differs if a stream is written in its own protocol and read again."""
    try:
        data, losses = write_stream(adapter, context, events)
        again = read_stream(adapter, context, data)
    except MetisError as error:
        yield f"the stream cannot be written: {error}"
        return
    yield from (f"lost in its own protocol: {loss}" for loss in losses)
    before, after = events[-1], again[-1]
    if isinstance(before, MessageComplete) and isinstance(after, MessageComplete):
        yield from message_faults(adapter, context, before.message, after.message)
    elif isinstance(before, StreamError) and isinstance(after, StreamError):
        # A broken connection is not an error of a provider: clients read it as a failed response.
        is_same_class = before.error_class in (after.error_class, NetworkError.__name__)
        if not is_same_class or before.text != after.text:
            yield f"the error was {before.error_class}, is {after.error_class}: {after.text}"
        if _content_of(before.message) != _content_of(after.message):
            yield "what had come before the error is another content"
    else:
        yield f"the end was {before.type}, is {after.type}"


def message_faults(
    adapter: Adapter, context: RequestContext, before: Message, after: Message
) -> Iterator[str]:
    """Yield the differences of two responses of one provider, with every key of their bodies."""
    for name in _METADATA:
        values = getattr(before.metadata, name), getattr(after.metadata, name)
        if values[0] != values[1]:
            yield f"$.metadata.{name}: was {values[0]}, is {values[1]}"
    ids = [list(provider_tool_ids(message).values()) for message in (before, after)]
    if ids[0] != ids[1]:
        yield f"the ids of calls were {ids[0]}, are {ids[1]}"
    if _content_of(before) != _content_of(after):
        yield "the content is another one"
    bodies = [_decode(adapter.encode_response(each, context).body) for each in (before, after)]
    yield from differences(*bodies)


def served_faults(
    adapter: Adapter, context: RequestContext, message: Message, events: Sequence[StreamEvent]
) -> Iterator[str]:
    """Yield what a client reads in a plain response and not in a stream, or the other way.

    Parts of which a loss says that one of both cannot hold them may differ.
    """
    try:
        plain = adapter.encode_response(message, context)
        data, losses = write_stream(adapter, context, events)
        read = adapter.from_wire_response(plain.body, context)
        end = read_stream(adapter, context, data)[-1]
    except MetisError as error:
        yield f"to {adapter.name}: {error}"
        return
    if not isinstance(end, MessageComplete):
        # A response without content, or with an error, is a failed one: a stream says so.
        if message.metadata.status is MessageStatus.COMPLETE:
            yield f"to {adapter.name}: the stream ended with {end.type}"
        return
    first, second = _summary(read), _summary(end.message)
    # What only one of both cannot hold may differ; what both have lost is in neither.
    lost = {kind for kind, _ in _places(plain.losses) ^ _places(losses)}
    # Some hosts name another id at the end; what was sent at the start cannot be taken back.
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
    """Yield what a client does not read of a response, although no loss says so."""
    try:
        served = adapter.encode_response(message, context)
        read = adapter.from_wire_response(served.body, context)
    except MetisError as error:
        if message.metadata.status is MessageStatus.COMPLETE:
            yield f"to {adapter.name}: {error}"
        return
    lost = Counter(loss.block_type for loss in served.losses)
    sent, received = _contents(message), _contents(read)
    for name, values in sent.items():
        # Each loss stands for one part of its kind.
        missing = [value for value in values if value not in received[name]]
        if len(missing) > lost[name]:
            yield f"to {adapter.name}: {name} is lost without a word: {_short(missing[0])}"
    paths = {loss.path for loss in served.losses}
    before, after = message.metadata, read.metadata
    for name in _COUNTS:
        counts = [getattr(each.usage, name, None) for each in (before, after)]
        if counts[0] and counts[0] != counts[1] and f"$.metadata.usage.{name}" not in paths:
            yield f"to {adapter.name}: usage.{name}: was {counts[0]}, is {counts[1]}"
    is_same = before.stop_reason in (after.stop_reason, None, StopReason.UNKNOWN)
    is_failed = before.status is not MessageStatus.COMPLETE
    is_reported = lost["tool_use"] > 0 or "$.metadata.stop_reason" in paths
    if not (is_same or is_failed or is_reported):
        yield f"to {adapter.name}: stop_reason: was {before.stop_reason}, is {after.stop_reason}"


def _contents(message: Message) -> dict[str, list[object]]:
    """Return the parts of a response by the kind that losses name; texts without blanks."""
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
            # Kinds have other names in other protocols.
            citation.url or "without a page"
            for block in content
            if type(block) is TextBlock
            for citation in block.citations
        ],
    }


def _places(losses: Sequence[Loss]) -> set[tuple[str, str]]:
    return {(loss.block_type, loss.path) for loss in losses}


def _summary(message: Message) -> dict[str, object]:
    """Return what a client reads of a message, by the kind of blocks."""
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
    """Yield how a client would read calls of a provider's response as whole if they were cut off.

    `adapter` is that of the client.
    """
    cut = cut_off(message)
    try:
        plain = adapter.encode_response(cut, context)
        read = adapter.from_wire_response(plain.body, context)
        data, losses = write_stream(adapter, context, provider.response_events(cut, context))
        end = read_stream(adapter, context, data)[-1]
    except MetisError as error:
        yield f"to {adapter.name}: {error}"
        return
    yield from _whole_calls(f"to {adapter.name}, plain", cut, read, plain.losses)
    if isinstance(end, MessageComplete):
        yield from _whole_calls(f"to {adapter.name}, streamed", cut, end.message, losses)


def cut_off(message: Message) -> Message:
    """Return a response with calls as if the model had reached its limit while it wrote them."""
    content = tuple(
        replace(block, input={}, invalid=_CUT) if type(block) is ToolUseBlock else block
        for block in message.content
    )
    status, reason = MessageStatus.COMPLETE, StopReason.MAX_TOKENS
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, content=content, metadata=metadata)


def _whole_calls(place: str, sent: Message, read: Message, losses: Sequence[Loss]) -> Iterator[str]:
    expected = sum(type(block) is ToolUseBlock for block in sent.content)
    calls = [block for block in read.content if type(block) is ToolUseBlock]
    for call in calls:
        if call.invalid is None or call.invalid.raw != _CUT_ARGUMENTS:
            yield f"{place}: {call.name} was cut off, and is a call with {_short(call.input)}"
    lost = sum(loss.block_type == "tool_use" for loss in losses)
    if len(calls) + lost < expected:
        yield f"{place}: {expected - len(calls) - lost} calls are lost without a word"
    if read.metadata.stop_reason is not StopReason.MAX_TOKENS:
        yield f"{place}: the stop reason is {read.metadata.stop_reason}"


def _content_of(message: Message | None) -> object:
    # The ids of calls are derived from the message where a protocol has none.
    return message and message.content_digest()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits on a line
