"""The laws of an adapter, and their check on a recorded exchange."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters import Adapter, CanonicalRequest, Loss, RequestContext, get
from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.codec import decode, encode
from metis.canonical.errors import MetisError, ProviderError
from metis.canonical.message import Message, Role
from metis.streaming import Accumulator, MessageComplete, StreamError, StreamEvent
from metis.verify.edits import edit_faults
from metis.verify.json_differences import differences
from metis.verify.limits import error_faults, limit_faults
from metis.verify.recordings import PROTOCOL_NAMES, SYNTHETIC, Recording, adapter_for
from metis.verify.seals import conversation_with, seal_faults, seals_of
from metis.verify.served import (
    broken_call_faults,
    served_faults,
    translated_faults,
    written_stream_faults,
)
from metis.verify.stable import stable_faults

_SMALL_BYTES = 1 << 16
"""Streams up to this size are split at every byte; longer ones into larger pieces, for speed."""
# An odd size, so that the pieces end at varying positions of lines and characters.
_PIECE_BYTES = 13
_MAX_DIFFERENCES = 3
_decode = msgspec.json.Decoder().decode


class Law(StrEnum):
    """A property that must hold for a recorded exchange."""

    PARSE = "parse"
    """Request and response can be decoded; an error body becomes a typed error."""
    REQUEST = "request round trip"
    """After storing and loading, the request is encoded as the same JSON."""
    RESPONSE = "response round trip"
    """After storing and loading, the response is encoded as the same JSON."""
    STREAM = "stream"
    """A stream gives the same events however it is split, and they add up to the response."""
    WRITTEN = "stream writing"
    """A stream that is encoded again decodes to the same response, with all its keys."""
    SERVED = "served responses"
    """In every protocol, plain and streamed response have the same content, except for losses."""
    BROKEN_CALLS = "broken calls"
    """In every protocol, a call with truncated arguments never looks like a complete one."""
    EDITS = "edits"
    """After an edit of one block, the other blocks are sent back unchanged."""
    SEALS = "seals"
    """Clients of other protocols get seals only in envelopes, and return them unchanged."""
    STABLE = "stable bytes"
    """For every provider the request always gives the same bytes, and extends shorter requests."""
    LIMITS = "ranges and limits"
    """Other providers receive options within their ranges, or a typed error is raised first."""
    ERRORS = "errors"
    """Clients of every protocol decode an error to the same class, with its text."""
    ECHO = "echo"
    """A client sent a response back as the same message that metis would send."""


SERVING_LAWS = frozenset(
    {
        Law.WRITTEN,
        Law.SERVED,
        Law.BROKEN_CALLS,
        Law.EDITS,
        Law.SEALS,
        Law.STABLE,
        Law.LIMITS,
        Law.ERRORS,
    }
)
"""The laws of the serving side: the responses for clients and requests for other providers."""


class Verdict(Struct, frozen=True):
    """The result for one law; the law holds if there are no faults."""

    law: Law
    faults: tuple[str, ...] = ()


class Findings(Struct, kw_only=True):
    """The results for one recording."""

    verdicts: list[Verdict] = []
    losses: list[Loss] = []
    """The losses of sending the recorded request again."""
    notes: list[str] = []
    request: CanonicalRequest | None = None
    response: Message | None = None


def check_laws(
    recording: Recording, adapter: Adapter, earlier_responses: Mapping[str, Message] | None = None
) -> Findings:
    """Check all laws that apply to a recording.

    `earlier_responses` are the responses of earlier recordings by id, for the echo law.
    """
    findings = Findings()
    context = RequestContext(session_id="verify", status=recording.status)
    faults: list[str] = []
    if recording.request is not None:
        try:
            findings.request = adapter.from_wire_request(recording.request, context)
            _check_request(recording.request, findings.request, adapter, findings)
        except MetisError as error:
            faults.append(f"the request: {error}")
    try:
        _check_response(recording, adapter, context, findings)
    except MetisError as error:
        if recording.recorded == SYNTHETIC:
            findings.notes.append(f"written by hand, and refused: {error}")
        else:
            faults.append(f"the response: {error}")
    if findings.request is not None and recording.echo == "verbatim":
        earlier = (earlier_responses or {}).get(recording.echo_of or "")
        if earlier is not None:
            findings.verdicts.append(_check_echo(earlier, findings.request, adapter))
    findings.verdicts.insert(0, Verdict(Law.PARSE, tuple(faults)))
    return findings


def _check_request(
    body: dict[str, Any], request: CanonicalRequest, adapter: Adapter, findings: Findings
) -> None:
    """Check the laws of requests: round trip, edits, stable bytes and limits."""
    stored = [decode(encode(message)) for message in request.messages]
    wire = adapter.to_wire(stored, request.tools, request.options)
    findings.losses = wire.losses
    # Reported losses explain differences; only a difference without any loss violates the law.
    faults = () if wire.losses else _first_few(differences(body, _decode(wire.body)))
    findings.verdicts.append(Verdict(Law.REQUEST, faults))
    edited = edit_faults(adapter, request.messages, request.tools, request.options)
    findings.verdicts.append(Verdict(Law.EDITS, _first_few(edited)))
    stable = stable_faults(adapter, body, _clients())
    findings.verdicts.append(Verdict(Law.STABLE, _first_few(stable)))
    limits = limit_faults(adapter, request, _clients())
    findings.verdicts.append(Verdict(Law.LIMITS, _first_few(limits)))


def _check_response(
    recording: Recording, adapter: Adapter, context: RequestContext, findings: Findings
) -> None:
    """Check the laws of a plain response, or those of an error or a stream."""
    body, stream = recording.body, recording.stream
    if body is not None:
        try:
            findings.response = adapter.from_wire_response(body, context)
        except ProviderError as error:
            findings.notes.append(f"answered with an error: {error}")
            faults = _first_few(error_faults(error, _clients()))
            findings.verdicts.append(Verdict(Law.ERRORS, faults))
            return
        stored = decode(encode(findings.response))
        encoded = _decode(adapter.to_wire_response(stored, context))
        faults = _first_few(differences(_decode(body), encoded))
        findings.verdicts.append(Verdict(Law.RESPONSE, faults))
        events = adapter.response_events(findings.response, context)
        _check_served(findings, adapter, findings.response, events, context)
    elif stream is not None:
        _check_stream(stream, adapter, context, findings)


def _check_stream(
    stream: bytes, adapter: Adapter, context: RequestContext, findings: Findings
) -> None:
    """Check that a stream can be split anywhere, and that its events add up to the response."""
    events = _events(adapter, context, [stream])
    size = 1 if len(stream) <= _SMALL_BYTES else _PIECE_BYTES
    pieces = _events(adapter, context, [stream[n : n + size] for n in range(0, len(stream), size)])
    faults: list[str] = []
    if _without_ids(events) != _without_ids(pieces):
        faults.append(f"pieces of {size} bytes give other events than the whole")
    end = events[-1] if events else None
    if isinstance(end, StreamError):
        findings.notes.append(f"the stream ended with an error: {end.text}")
    elif isinstance(end, MessageComplete):
        findings.response = end.message
        if _essence(_accumulated(events)) != _essence(end.message.content):
            faults.append("the events do not add up to the response")
        plain = adapter.from_wire_response(adapter.to_wire_response(end.message, context), context)
        if plain.content_digest() != end.message.content_digest():
            faults.append("the plain response has another content")
    else:
        faults.append("the stream has no end")
    findings.verdicts.append(Verdict(Law.STREAM, tuple(faults)))
    written = _first_few(written_stream_faults(adapter, context, events))
    findings.verdicts.append(Verdict(Law.WRITTEN, written))
    if findings.response is not None:
        _check_served(findings, adapter, findings.response, events, context)


def _check_served(
    findings: Findings,
    adapter: Adapter,
    message: Message,
    events: Iterable[StreamEvent],
    context: RequestContext,
) -> None:
    """Check the response that clients of each protocol receive."""
    sent = tuple(events)
    clients = _clients()
    context = replace(context, status=None)
    served = (
        fault
        for client in clients
        for fault in (
            *served_faults(client, context, message, sent),
            *translated_faults(client, context, message),
        )
    )
    findings.verdicts.append(Verdict(Law.SERVED, _first_few(served)))
    if any(type(block) is ToolUseBlock for block in message.content):
        broken = (
            fault
            for client in clients
            for fault in broken_call_faults(adapter, client, context, message)
        )
        findings.verdicts.append(Verdict(Law.BROKEN_CALLS, _first_few(broken)))
    edited = edit_faults(adapter, conversation_with([message]), places=range(1, 2))
    findings.verdicts.append(Verdict(Law.EDITS, _first_few(edited)))
    if seals_of(message):
        sealed = (
            fault
            for client in clients
            for fault in seal_faults(adapter, client, context, message, sent)
        )
        findings.verdicts.append(Verdict(Law.SEALS, _first_few(sealed)))


def _clients() -> list[Adapter]:
    """Return an adapter of each protocol."""
    return [get(name) for name in map(adapter_for, PROTOCOL_NAMES) if name is not None]


def _events(
    adapter: Adapter, context: RequestContext, chunks: Sequence[bytes]
) -> list[StreamEvent]:
    decoder = adapter.stream_decoder(context)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [*events, *decoder.finish()]


def _without_ids(events: Sequence[StreamEvent]) -> list[tuple[str, list[object]]]:
    """Return the events as comparable values, without generated ids."""
    # Each decoding creates new ids, so that they are replaced by numbers.
    ids: dict[object, int] = {}
    plain: list[tuple[str, list[object]]] = []
    for event in events:
        values: list[object] = []
        for name in event.__struct_fields__[1:]:
            value: object = getattr(event, name)
            if name == "tool_use_id":
                value = ids.setdefault(value, len(ids))
            elif isinstance(value, Message):
                value = (value.content_digest(), value.metadata.stop_reason, value.metadata.usage)
            values.append(value)
        plain.append((event.type, values))
    return plain


def _accumulated(events: Sequence[StreamEvent]) -> tuple[ContentBlock, ...]:
    accumulator = Accumulator()
    for event in events:
        accumulator.add(event)
    return accumulator.content


def _essence(content: Sequence[ContentBlock]) -> tuple[str, str, list[tuple[str, object]]]:
    # The message of a stream may split text into other blocks than its events.
    return (
        "".join(block.text for block in content if isinstance(block, TextBlock)),
        "".join(block.text for block in content if isinstance(block, ThinkingBlock)),
        [(block.name, block.input) for block in content if isinstance(block, ToolUseBlock)],
    )


def _check_echo(response: Message, request: CanonicalRequest, adapter: Adapter) -> Verdict:
    # Parts that the protocol cannot send back, such as the usage, are not compared.
    expected = {
        message.content_digest()
        for message in (response, *_sent_back(response, request, adapter))
        if message.role is Role.ASSISTANT
    }
    sent = (message for message in request.messages if message.role is Role.ASSISTANT)
    if any(message.content_digest() in expected for message in sent):
        return Verdict(Law.ECHO)
    return Verdict(Law.ECHO, ("the response that was sent back is another message",))


def _sent_back(
    response: Message, request: CanonicalRequest, adapter: Adapter
) -> tuple[Message, ...]:
    user = next((message for message in request.messages if message.role is Role.USER), None)
    prompt = () if user is None else (user,)
    wire = adapter.preview([*prompt, response, *prompt])
    return adapter.from_wire_request(wire.body).messages


def _first_few(faults: Iterator[str]) -> tuple[str, ...]:
    # One broken part often causes many other faults, which would hide it.
    first = tuple(islice(faults, _MAX_DIFFERENCES))
    return (*first, "and more") if next(faults, None) is not None else first
