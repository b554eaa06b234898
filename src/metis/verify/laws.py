"""The laws of an adapter, checked on a recorded exchange: nothing is lost on the way through."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis.adapters.adapter import Adapter
from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.codec import decode, encode
from metis.canonical.errors import MetisError, ProviderError
from metis.canonical.json_value import join_path
from metis.canonical.message import Message, Role
from metis.canonical.schema.subset import describe
from metis.projection.loss import Loss
from metis.streaming import Accumulator, MessageComplete, StreamError, StreamEvent
from metis.verify.recordings import SYNTHETIC, Recording
from metis.wire.call import CanonicalRequest, RequestContext

_Object = dict[str, Any]


def differences(before: Any, after: Any, path: str = "$") -> Iterator[str]:
    """What is not the same after as before; `1`, `1.0` and `true` are three different values."""
    if type(before) is not type(after):
        yield f"{path}: was {describe(before)}, is {describe(after)}"
    elif isinstance(before, dict):
        yield from _of_objects(cast("_Object", before), cast("_Object", after), path)
    elif isinstance(before, list):
        yield from _of_arrays(cast("list[Any]", before), cast("list[Any]", after), path)
    elif before != after:
        yield f"{path}: was {describe(before)}, is {describe(after)}"


def _of_objects(before: _Object, after: _Object, path: str) -> Iterator[str]:
    for key, value in before.items():
        if key in after:
            yield from differences(value, after[key], join_path(path, key))
        else:
            yield f"{join_path(path, key)}: is gone"
    yield from (f"{join_path(path, key)}: is new" for key in after if key not in before)


def _of_arrays(before: list[Any], after: list[Any], path: str) -> Iterator[str]:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        yield from differences(one, other, join_path(path, index))
    if len(before) != len(after):
        yield f"{path}: was {describe(before)}, is {describe(after)}"


_SMALL = 1 << 16
_STEP = 13
_MOST_DIFFERENCES = 3
_read = msgspec.json.Decoder().decode


class Law(StrEnum):
    """What has to hold for a recorded exchange."""

    PARSE = "parse"
    """Everything in it is read, and a refusal becomes a typed error."""
    REQUEST = "request round trip"
    """The request comes out as the same JSON after it was stored."""
    RESPONSE = "response round trip"
    """The response comes out as the same JSON after it was stored."""
    STREAM = "stream"
    """Cut anywhere, a stream gives the same events, whose sum is the answer."""
    ECHO = "echo"
    """What we would send back of an answer, and what a client did, are the same message."""


class Verdict(Struct, frozen=True):
    """How a law fared; without faults it holds."""

    law: Law
    faults: tuple[str, ...] = ()


class Findings(Struct, kw_only=True):
    """What was found out about one recording."""

    verdicts: list[Verdict] = []
    losses: list[Loss] = []
    """What the adapter itself would repair before it sends the request again."""
    notes: list[str] = []
    request: CanonicalRequest | None = None
    response: Message | None = None


def check_laws(
    recording: Recording, adapter: Adapter, earlier_responses: Mapping[str, Message] | None = None
) -> Findings:
    """Check every law that a recording has something to say about.

    `answers` are the answers of earlier recordings by their ids, for the law of the echo.
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
        _check_answer(recording, adapter, context, findings)
    except MetisError as error:
        if recording.recorded == SYNTHETIC:
            findings.notes.append(f"made by hand, and refused: {error}")
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
    stored = [decode(encode(message)) for message in request.messages]
    wire = adapter.to_wire(stored, request.tools, request.options)
    findings.losses = wire.losses
    # What was repaired is told as a change; only what changed in silence breaks the law.
    faults = () if wire.losses else _few(differences(body, _read(wire.body)))
    findings.verdicts.append(Verdict(Law.REQUEST, faults))


def _check_answer(
    recording: Recording, adapter: Adapter, context: RequestContext, findings: Findings
) -> None:
    body, stream = recording.body, recording.stream
    if body is not None:
        try:
            findings.response = adapter.from_wire_response(body, context)
        except ProviderError as error:
            findings.notes.append(f"answered with an error: {error}")
            return
        stored = decode(encode(findings.response))
        again = _read(adapter.to_wire_response(stored, context))
        faults = _few(differences(_read(body), again))
        findings.verdicts.append(Verdict(Law.RESPONSE, faults))
    elif stream is not None:
        _check_stream(stream, adapter, context, findings)


def _check_stream(
    stream: bytes, adapter: Adapter, context: RequestContext, findings: Findings
) -> None:
    whole = _events(adapter, context, [stream])
    size = 1 if len(stream) <= _SMALL else _STEP
    cut = _events(adapter, context, [stream[n : n + size] for n in range(0, len(stream), size)])
    faults: list[str] = []
    if _bare(whole) != _bare(cut):
        faults.append(f"pieces of {size} bytes give other events than the whole")
    end = whole[-1] if whole else None
    if isinstance(end, StreamError):
        findings.notes.append(f"the stream ended with an error: {end.text}")
    elif isinstance(end, MessageComplete):
        findings.response = end.message
        if _gist(_sum(whole)) != _gist(end.message.content):
            faults.append("the events do not add up to the answer")
        plain = adapter.from_wire_response(adapter.to_wire_response(end.message, context), context)
        if plain.content_digest() != end.message.content_digest():
            faults.append("the answer is another one as a plain response")
    else:
        faults.append("the stream has no end")
    findings.verdicts.append(Verdict(Law.STREAM, tuple(faults)))


def _events(
    adapter: Adapter, context: RequestContext, chunks: Sequence[bytes]
) -> list[StreamEvent]:
    decoder = adapter.stream_decoder(context)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [*events, *decoder.finish()]


def _bare(events: Sequence[StreamEvent]) -> list[tuple[str, list[object]]]:
    """Events without the ids that are new in each reading."""
    ids: dict[object, int] = {}
    bare: list[tuple[str, list[object]]] = []
    for event in events:
        values: list[object] = []
        for name in event.__struct_fields__[1:]:
            value: object = getattr(event, name)
            if name == "tool_use_id":
                value = ids.setdefault(value, len(ids))
            elif isinstance(value, Message):
                value = (value.content_digest(), value.metadata.stop_reason, value.metadata.usage)
            values.append(value)
        bare.append((event.type, values))
    return bare


def _sum(events: Sequence[StreamEvent]) -> tuple[ContentBlock, ...]:
    accumulator = Accumulator()
    for event in events:
        accumulator.add(event)
    return accumulator.content


def _gist(content: Sequence[ContentBlock]) -> tuple[str, str, list[tuple[str, object]]]:
    """What is said, thought and called, whatever it is cut into."""
    return (
        "".join(block.text for block in content if isinstance(block, TextBlock)),
        "".join(block.text for block in content if isinstance(block, ThinkingBlock)),
        [(block.name, block.input) for block in content if isinstance(block, ToolUseBlock)],
    )


def _check_echo(answer: Message, request: CanonicalRequest, adapter: Adapter) -> Verdict:
    """Compare answers as they go back: what a protocol has no place for there is not asked for."""
    wanted = {
        message.content_digest()
        for message in (answer, *_sent_back(answer, request, adapter))
        if message.role is Role.ASSISTANT
    }
    sent = (message for message in request.messages if message.role is Role.ASSISTANT)
    if any(message.content_digest() in wanted for message in sent):
        return Verdict(Law.ECHO)
    return Verdict(Law.ECHO, ("the answer that was sent back is another message",))


def _sent_back(answer: Message, request: CanonicalRequest, adapter: Adapter) -> tuple[Message, ...]:
    """A conversation with the answer in it, as the provider would read it."""
    asked = next((message for message in request.messages if message.role is Role.USER), None)
    around = () if asked is None else (asked,)
    wire = adapter.preview([*around, answer, *around])
    return adapter.from_wire_request(wire.body).messages


def _few(found: Iterator[str]) -> tuple[str, ...]:
    """The first of some faults; one broken part often breaks many."""
    few = tuple(islice(found, _MOST_DIFFERENCES))
    return (*few, "and more") if next(found, None) is not None else few
