"""Streams of Ollama, decoded: one JSON object a line becomes stream events."""

from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import ArtifactBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming.events import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.streaming.text_frames import NdjsonParser
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, read_error, stream_error
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.ollama.blocks import (
    PROTOCOL,
    CallIds,
    decode_any_call,
    read_json,
    read_plain_line,
    write_json,
)
from metis.wire.ollama.errors import decode_error
from metis.wire.ollama.response import call_scope, decode_body, decode_usage

_HEAD_BYTES = 1 << 18
"""How much is kept of an answer that does not look like a stream."""
_FOLDED = frozenset({"message", "response", "thinking", "logprobs"})

_Spoken = type[TextDelta] | type[ThinkingDelta]


class OllamaStreamDecoder:
    """Reads the stream of one answer; feed it as the bytes come, then finish."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._provider = context.provider or PROTOCOL
        self._lines = NdjsonParser()
        self._id = new_ulid()
        self._ids = CallIds(call_scope(context, self._id))
        self._body: Wire = {}
        self._message: Wire = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Any] = []
        self._logprobs: list[Any] = []
        self._is_completion = False
        self._kind: _Spoken | None = None
        self._index = -1
        self._head = b""
        """What came before the answer began, in case that it is no stream at all."""
        self._is_begun = False
        self._end: MessageComplete | StreamError | None = None

    @property
    def message(self) -> Message:
        """The answer: whole after the end of the stream, before it as far as it has come."""
        if self._end is not None and self._end.message is not None:
            return self._end.message
        return self._build(MessageStatus.PARTIAL)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        events: list[StreamEvent] = []
        if not self._is_begun and len(self._head) < _HEAD_BYTES:
            self._head += chunk
        for line in self._lines.feed(chunk):
            if self._end is not None:
                break
            try:
                plain = read_plain_line(line)
            except (ValueError, RecursionError):
                self._take_line(line, events)
                continue
            if not self._is_begun:
                self._begin(plain.model, events)
            said = plain.message
            if said is not None:
                thought, text = said.thinking, said.content
            else:
                thought, text = plain.thinking, plain.response
                self._is_completion = True
            if thought:
                self._think(thought, events)
            if not text:
                continue
            self._texts.append(text)
            if self._kind is not TextDelta:
                self._open(TextDelta)
            events.append(TextDelta(self._id, self._index, text))
        return events

    def finish(self) -> list[StreamEvent]:
        """The last events; a stream that broke off ends in an error that keeps what came (T131)."""
        events: list[StreamEvent] = []
        for line in self._lines.finish():
            if self._end is None:
                self._take_line(line, events)
        if self._end is None:
            self._take_rest(events)
        return events

    def _take_line(self, line: bytes, events: list[StreamEvent]) -> None:
        """Take a line of any kind; before the answer has begun it may be part of another body."""
        try:
            wire = maybe_object(read_json(line))
        except (ValueError, RecursionError) as error:
            if self._is_begun:
                text = f"a line of the stream is not JSON: {error}"
                self._fail(NetworkError(text, provider=self._provider), events)
            return
        if wire:
            self._take(wire, events)

    def _take_rest(self, events: list[StreamEvent]) -> None:
        """End a stream that has no end: an error body of several lines, or a broken stream."""
        if not self._is_begun and self._head.strip():
            wire = read_error(self._head, "error")
            if has_failed(self._context) or "message" in wire or "response" in wire:
                self._take(wire, events)
        if self._end is None:
            text = "the stream ended before the answer was complete"
            self._fail(NetworkError(text, provider=self._provider), events)

    def _take(self, wire: Wire, events: list[StreamEvent]) -> None:
        if "error" in wire or has_failed(self._context):
            self._fail(decode_error(wire, self._context.status, self._provider), events)
            return
        self._begin(maybe_text(wire.get("model")), events)
        if "message" in wire:
            self._take_message(maybe_object(wire["message"]), events)
        else:
            self._is_completion = self._is_completion or "response" in wire
            self._say(wire.get("thinking"), wire.get("response"), events)
        self._logprobs += maybe_list(wire.get("logprobs"))
        self._body |= {key: value for key, value in wire.items() if key not in _FOLDED}
        if wire.get("done") is True:
            self._complete(events)

    def _take_message(self, message: Wire, events: list[StreamEvent]) -> None:
        self._say(message.get("thinking"), message.get("content"), events)
        for call in maybe_list(message.get("tool_calls")):
            self._calls.append(call)
            self._call(call, events)
        for key, value in message.items():
            if key not in ("thinking", "content", "tool_calls"):
                self._message[key] = value

    def _say(self, thought: Any, text: Any, events: list[StreamEvent]) -> None:
        if isinstance(thought, str) and thought:
            self._think(thought, events)
        if isinstance(text, str) and text:
            self._texts.append(text)
            self._open(TextDelta)
            events.append(TextDelta(self._id, self._index, text))

    def _think(self, thought: str, events: list[StreamEvent]) -> None:
        self._thoughts.append(thought)
        self._open(ThinkingDelta)
        events.append(ThinkingDelta(self._id, self._index, thought))

    def _open(self, kind: _Spoken | None) -> None:
        if kind is None or self._kind is not kind:
            self._kind = kind
            self._index += 1

    def _call(self, wire: Any, events: list[StreamEvent]) -> None:
        """A call, which always comes whole."""
        block = decode_any_call(wire, self._ids)
        self._open(None)
        index = self._index
        if not isinstance(block, ToolUseBlock):
            events.append(BlockAdded(self._id, index, block))
            return
        given = block.invalid.raw if block.invalid else write_json(block.input).decode()
        events += (
            ToolUseStart(self._id, index, block.id, block.name),
            ToolUseInputDelta(self._id, index, block.id, given),
            ToolUseEnd(self._id, index, block.id, block.input, block.invalid),
        )

    def _begin(self, model: str | None, events: list[StreamEvent]) -> None:
        if self._is_begun:
            return
        self._is_begun, self._head = True, b""
        self._body["model"] = model
        known = self._context.model or (f"{self._provider}:{model}" if model else None)
        events.append(MessageStart(self._id, known))

    def _complete(self, events: list[StreamEvent]) -> None:
        usage = decode_usage(self._body, self._context)
        if usage is not None:
            events.append(UsageUpdate(self._id, usage))
        message = self._build(MessageStatus.COMPLETE)
        for block in message.content:
            if isinstance(block, ArtifactBlock):
                self._open(None)
                events.append(BlockAdded(self._id, self._index, block))
        reason = message.metadata.stop_reason or StopReason.UNKNOWN
        self._end = MessageComplete(self._id, reason, message)
        events.append(self._end)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        self._begin(None, events)
        message = self._build(MessageStatus.ERROR)
        metadata = replace(message.metadata, stop_reason=StopReason.ERROR)
        self._end = stream_error(self._id, error, replace(message, metadata=metadata))
        events.append(self._end)

    def _build(self, status: MessageStatus) -> Message:
        """The message of the body that a plain response would have."""
        text, thought = "".join(self._texts), "".join(self._thoughts)
        body = {key: value for key, value in self._body.items() if value is not None}
        if self._logprobs:
            body["logprobs"] = self._logprobs
        said: Wire = {"thinking": thought} if thought else {}
        if self._is_completion:
            body |= {"response": text, **said}
        else:
            said |= {"tool_calls": list(self._calls)} if self._calls else {}
            body["message"] = {"role": "assistant", **self._message, "content": text, **said}
        return decode_body(body, self._context, message_id=self._id, status=status)
