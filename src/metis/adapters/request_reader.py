"""Incremental decoding of client requests: each request costs only what is new in it.

Clients send their whole history with every request. A reader caches, for each tenant, the bytes of
recent requests and the messages that were decoded from them. If a request begins with the bytes of
an earlier one up to the end of a wire message, a parser would be in the same state at that
position. So the messages up to there are taken from the cache, and only the bytes behind them are
decoded. This holds for every JSON text; no assumption is made about keys, their order, white space
or duplicates.

A request whose bytes differ, or that is unusual or invalid, is decoded by
`Adapter.from_wire_request`.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from threading import Lock

import msgspec
from msgspec import Raw, Struct

from metis.adapters.adapter import Adapter
from metis.adapters.codecs import CODECS
from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.json_access import Wire
from metis.wire.request import RequestDraft, RequestSteps

MAX_BYTES = 32 * 1024 * 1024
"""How many bytes of requests a reader caches; the decoded messages take about twice as many."""
MAX_HISTORIES = 512
"""How many histories of one tenant and provider, with the same instructions and tools before the
messages, are compared with a request."""

_RESUMABLE_MESSAGES = 4
"""After how many of the last wire messages the state of the decoder is stored.

The next request may change the last messages, for example by moving its cache marks."""
# Each segment is compared separately, so that many of them would slow the comparison down.
_MAX_SEGMENTS = 24
_OVERHEAD = 3
"""The memory that a request takes, as a multiple of its bytes."""
_MESSAGE_BYTES = 1000
"""The memory that the objects of a message take beside its bytes."""
# No client can guess this value, so that an element with it is the one that was inserted here. It
# is a hash because ULIDs of one process are predictable from an earlier one.
_MARK = b'"' + sha256(new_ulid().encode()).hexdigest().encode() + b'"'
_SPACE = re.compile(rb"[ \t\r\n]*")
_read_keys = msgspec.json.Decoder(dict[str, Raw]).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
_read_value = msgspec.json.Decoder().decode

_Key = tuple[str, str, str, str | None, str | None, bool]


class _UnusualError(Exception):
    """The request has a form that only `Adapter.from_wire_request` can decode."""


_FAULTS = (_UnusualError, MetisError, ValueError, RecursionError)


class _Segment(Struct, frozen=True, gc=False):
    """Bytes up to the end of a wire message, and the state of the decoder behind them."""

    data: bytes
    wire_count: int
    message_count: int
    draft: RequestDraft


class _Envelope(Struct, frozen=True):
    """The parts of a request beside its messages: instructions, tools and options."""

    raw: dict[str, bytes]
    facts: tuple[str | None, str | None]
    """Path and model of the context, which some protocols read as options."""
    system: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    options: AdapterOptions


class _History(Struct):
    """A request that was decoded: its bytes in segments, and the values decoded from them."""

    key: _Key
    steps: RequestSteps
    head: bytes
    """The bytes up to and including the bracket before the first wire message."""
    segments: list[_Segment]
    tail: bytes
    """The bytes behind the last segment."""
    messages: tuple[Message, ...]
    envelope: _Envelope
    decoded: CanonicalRequest
    """The request without what the context adds: options of path and headers, stored seals."""
    size: int

    def matched(self, body: bytes) -> tuple[int, int]:
        """Return how many segments a body has after the head, and where the last of them ends."""
        position = len(self.head)
        for count, segment in enumerate(self.segments):
            if not body.startswith(segment.data, position):
                return count, position
            position += len(segment.data)
        return len(self.segments), position

    def is_repeated(
        self, body: bytes, count: int, position: int, facts: tuple[str | None, str | None]
    ) -> bool:
        """Whether a body that matches up to `position` is identical to this request."""
        return (
            0 < count == len(self.segments)
            and len(body) - position == len(self.tail)
            and body.endswith(self.tail)
            and facts == self.envelope.facts
        )


class _DecodedPrefix(Struct, frozen=True):
    """The part of a request that was decoded with an earlier one."""

    head: bytes
    messages: tuple[Message, ...] = ()
    segments: list[_Segment] = []
    envelope: _Envelope | None = None


class RequestReader:
    """Decodes requests of clients; messages that it has decoded before are the same objects again.

    Nothing that one tenant sent is used for another. A reader may be shared between threads and
    adapters. Ids and times of cached messages are those of their first decoding.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._lock = Lock()
        # Grouped by their heads, which are long and shared, so that each head is compared with a
        # request only once.
        self._histories: dict[_Key, dict[bytes, dict[int, _History]]] = {}
        self._order: dict[int, _History] = {}

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the cached requests."""
        return self._size

    def read(
        self, adapter: Adapter, tenant: str, body: bytes, context: RequestContext
    ) -> CanonicalRequest:
        """Return the result of `Adapter.from_wire_request`, but decode only what is new.

        Raises:
            DecodeError: the body is not a request of the adapter's protocol.
        """
        steps = CODECS[adapter.profile.protocol].request_steps
        mark = steps[0].response_mark
        context = adapter.complete_context(context)
        session_id = "" if context.is_stateless else context.session_id
        stores_seals = context.on_seals is not None
        names = (tenant, adapter.name, session_id, context.provider, context.issuer)
        key = (*names, stores_seals)
        history, count, position = self._longest_match(key, body)
        facts = (context.path, context.model)
        if history is not None and history.is_repeated(body, count, position, facts):
            return adapter.with_client_options(history.decoded, context)
        new_reader = partial(_BodyReader, adapter, context=context, key=key)
        new = None
        if history is not None and count:
            with suppress(*_FAULTS):
                new = new_reader(history.steps).continued(history, count, position, body)
        if new is None and mark in body and len(body) < self._max_bytes // _OVERHEAD:
            for candidate in steps:
                with suppress(*_FAULTS):
                    new = new_reader(candidate).first(body)
                    break
        if new is None:
            # This decodes unusual requests, and raises an error with the path of a fault.
            return adapter.from_wire_request(body, context)
        self._store(new, replaced=history if count else None)
        return adapter.with_client_options(new.decoded, context)

    def _longest_match(self, key: _Key, body: bytes) -> tuple[_History | None, int, int]:
        """Return the history with the longest prefix of a body; the newest among equals."""
        best: tuple[_History | None, int, int] = None, 0, 0
        with self._lock:
            candidates = [
                history
                for head, histories in self._histories.get(key, {}).items()
                if body.startswith(head)
                for history in reversed(histories.values())
            ]
        for history in candidates:
            count, position = history.matched(body)
            if position > best[2] and count:
                best = history, count, position
                if count == len(history.segments):
                    break
        return best

    def _store(self, new: _History, *, replaced: _History | None) -> None:
        with self._lock:
            if replaced is not None:
                self._drop(replaced)
            same_head = self._histories.setdefault(new.key, {}).setdefault(new.head, {})
            same_head[id(new)] = self._order[id(new)] = new
            self._size += new.size
            while len(same_head) > MAX_HISTORIES:
                self._drop(next(iter(same_head.values())))
            while self._size > self._max_bytes and self._order:
                self._drop(next(iter(self._order.values())))

    def _drop(self, history: _History) -> None:
        if self._order.pop(id(history), None) is None:
            return  # another thread was faster
        self._size -= history.size
        same_key = self._histories[history.key]
        del same_key[history.head][id(history)]
        if not same_key[history.head]:
            del same_key[history.head]
        if not same_key:
            del self._histories[history.key]


class _BodyReader:
    """Decodes the body of one request."""

    def __init__(
        self, adapter: Adapter, steps: RequestSteps, *, context: RequestContext, key: _Key
    ) -> None:
        self._adapter = adapter
        self._steps = steps
        self._context = context
        self._key = key

    def first(self, body: bytes) -> _History:
        """Return the history of a request that is decoded completely."""
        raw = _read_keys(body)
        wire_list = bytes(raw.pop(self._steps.key, b""))
        start = body.find(wire_list) if wire_list.startswith(b"[") else -1
        if start < 0:
            raise _UnusualError
        head = body[: start + 1]
        # `find` returns the first occurrence, which may be elsewhere in the body; then the marked
        # body does not have the mark under the key of the messages.
        marked = _read_keys(head + _MARK + b"]" + body[start + len(wire_list) :])
        if marked.get(self._steps.key) != Raw(b"[" + _MARK + b"]"):
            raise _UnusualError
        draft = self._steps.draft(self._context)
        ends = _MessageEnds(body, len(head), is_first=True)
        return self._finished(draft, raw, _read_list(wire_list), ends, _DecodedPrefix(head))

    def continued(self, history: _History, count: int, position: int, body: bytes) -> _History:
        """Return the history of a request that begins with segments of an earlier one."""
        raw = _read_keys(history.head + _MARK + body[position:])
        wires = _read_list(raw.pop(self._steps.key))
        # JSON objects may repeat a key, and the last value counts. Then the first list, which has
        # the mark, is not the list of messages.
        if not wires or wires[0] != Raw(_MARK):
            raise _UnusualError
        segments = history.segments[:count]
        last = segments[-1]
        draft = last.draft.paused()
        if draft is None:
            raise _UnusualError
        messages = history.messages[: last.message_count]
        ends = _MessageEnds(body, position, is_first=False)
        prefix = _DecodedPrefix(history.head, messages, segments, history.envelope)
        return self._finished(draft, raw, wires[1:], ends, prefix)

    def _finished(
        self,
        draft: RequestDraft,
        raw: dict[str, Raw],
        wires: Sequence[Raw],
        ends: "_MessageEnds",
        prefix: _DecodedPrefix,
    ) -> _History:
        steps, segments = self._steps, prefix.segments
        wire_count = segments[-1].wire_count if segments else 0
        resume_points: list[tuple[int, int, int, RequestDraft]] = []
        for index, wire in enumerate(wires):
            data = bytes(wire)
            steps.add(draft, data, wire_count + index)
            end = ends.next(data)
            if index >= len(wires) - _RESUMABLE_MESSAGES:
                paused = draft.paused()
                if paused is not None:
                    count = wire_count + index + 1
                    resume_points.append((end, count, len(prefix.messages) + draft.count, paused))
        if not steps.fits(draft):
            raise _UnusualError
        new = self._adapter.client_messages(draft.messages(), self._context)
        messages = (*prefix.messages, *new)
        body, start = ends.body, ends.start
        segments = [*segments]
        for end, count, message_count, paused in resume_points:
            segments.append(_Segment(body[start:end], count, message_count, paused))
            start = end
        segments = _merged(segments)
        envelope = self._envelope(raw, prefix.envelope)
        decoded = CanonicalRequest((*envelope.system, *messages), envelope.tools, envelope.options)
        size = _OVERHEAD * len(body) + _MESSAGE_BYTES * len(messages)
        tail = body[start:]
        return _History(
            self._key, steps, prefix.head, segments, tail, messages, envelope, decoded, size
        )

    def _envelope(self, raw: dict[str, Raw], earlier: _Envelope | None) -> _Envelope:
        values = {name: bytes(value) for name, value in raw.items()}
        facts = (self._context.path, self._context.model)
        if earlier is not None and earlier.raw == values and earlier.facts == facts:
            return earlier
        wire: Wire = {name: _read_value(value) for name, value in values.items()}
        names = set(wire)
        draft = self._steps.draft(self._context)
        self._steps.begin(draft, wire)
        system_names = names - set(wire)
        system: tuple[Message, ...] = draft.messages()
        # Calls and results in the instructions could pair with those of the messages, and so
        # change how the messages are decoded.
        if any(isinstance(b, ToolUseBlock | ToolResultBlock) for m in system for b in m.content):
            raise _UnusualError
        if earlier is not None and all(
            earlier.raw.get(name) == values[name] for name in system_names
        ):
            system = earlier.system if len(earlier.system) == len(system) else system
        else:
            system = self._adapter.client_messages(system, self._context)
        tools, options = self._steps.end(wire, self._context)
        if earlier is not None and earlier.raw.get("tools") == values.get("tools"):
            tools = earlier.tools
        return _Envelope(values, facts, system, tools, options)


class _MessageEnds:
    """Finds the end of each wire message of a list in the body."""

    def __init__(self, body: bytes, position: int, *, is_first: bool) -> None:
        self.body = body
        self.start = position
        self._position = position
        self._is_first = is_first

    def next(self, data: bytes) -> int:
        """Return the position after the next wire message, which has the bytes `data`."""
        position = _end_of_space(self.body, self._position)
        if not self._is_first:
            if self.body[position : position + 1] != b",":
                raise _UnusualError
            position = _end_of_space(self.body, position + 1)
        self._is_first = False
        if not self.body.startswith(data, position):
            raise _UnusualError
        self._position = position + len(data)
        return self._position


def _end_of_space(body: bytes, position: int) -> int:
    match = _SPACE.match(body, position)
    return position if match is None else match.end()


def _merged(segments: list[_Segment]) -> list[_Segment]:
    """Return segments with all old ones joined: clients change only recent messages."""
    if len(segments) <= _MAX_SEGMENTS:
        return segments
    old, recent = segments[: -2 * _RESUMABLE_MESSAGES], segments[-2 * _RESUMABLE_MESSAGES :]
    last = old[-1]
    data = b"".join([segment.data for segment in old])
    return [_Segment(data, last.wire_count, last.message_count, last.draft), *recent]
