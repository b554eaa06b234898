"""Stream decoder of Ollama: lines of JSON objects in, stream events out.

The lines are merged into the body of a plain response, from which the final message is decoded, so
that a streamed and a plain response give the same message.
"""

from typing import Any

from metis.canonical.blocks import ArtifactBlock, ToolUseBlock
from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.canonical.schema.subset import describe
from metis.streaming.events import (
    BlockAdded,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.streaming.text_frames import NdjsonParser
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, read_error
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.ollama.blocks import (
    GENERATE_PATH,
    PROTOCOL,
    PendingCalls,
    decode_any_call,
    decode_artifact,
    read_json,
    write_json,
)
from metis.wire.ollama.response import call_scope, decode_body, decode_error, decode_usage
from metis.wire.response import with_status
from metis.wire.stream_decoder import BaseStreamDecoder

_FIRST_KEYS = ("model", "created_at")
_DELTA_KEYS = frozenset({"message", "response", "thinking", "logprobs"})
"""The keys of a line whose values are appended to those of earlier lines."""
_STREAM_KEYS = frozenset({"message", "response", "done", "error"})
"""Every line of a stream has at least one of these keys."""
_DeltaType = type[TextDelta] | type[ThinkingDelta]


class OllamaStreamDecoder(BaseStreamDecoder):
    """Turns the bytes of one streamed response into events."""

    # A server may answer with a plain response, which is decoded from the head and must fit.
    head_bytes = 1 << 18

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._provider = context.provider or PROTOCOL
        self._lines = NdjsonParser(context.limits)
        self._pending_calls = PendingCalls(call_scope(context, self._message_id))
        self._body: Wire = {}
        self._message_keys: Wire = {}
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[Any] = []
        self._images: list[Any] = []
        self._logprobs: list[Any] = []
        self._is_completion = False
        self._open_kind: _DeltaType | None = None
        self._index = -1
        self._unread_line: str | None = None
        """The fault of an unreadable line before the start of the response."""

    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        self._store_head(chunk)
        for line in self._lines.feed(chunk):
            self._decode_line(line, events)

    def _decode_remaining(self, events: list[StreamEvent]) -> None:
        for line in self._lines.finish():
            self._decode_line(line, events)

    def _end_early(self, events: list[StreamEvent]) -> None:
        if not self._has_started and self._head.strip():
            # An error body or a plain response may be JSON of several lines.
            wire = read_error(self._head, "error")
            if has_failed(self._context) or "message" in wire or "response" in wire:
                self._decode_object(wire, events)
        if self._end is None:
            super()._end_early(events)

    def _decode_line(self, line: bytes, events: list[StreamEvent]) -> None:
        """Decode one line; an unreadable line ends a stream that has started."""
        if self._end is not None:
            return
        fault = self._unread_line
        wire: Wire = {}
        try:
            value = read_json(line)
            wire = maybe_object(value)
            fault = fault if isinstance(value, dict) else f"{describe(value)} is not an object"
        except (ValueError, RecursionError) as error:
            fault = fault or str(error)
        if fault is None:
            if wire:
                self._decode_object(wire, events)
            return
        # Before the start the line may be part of a JSON body of several lines: see `_end_early`.
        # If a line of a stream follows, the unreadable line was a damaged line of the stream.
        self._unread_line = fault
        if self._has_started or not _STREAM_KEYS.isdisjoint(wire):
            text = f"a line of the stream is not JSON: {fault}"
            self._fail(NetworkError(text, provider=self._provider), events)

    def _decode_object(self, wire: Wire, events: list[StreamEvent]) -> None:
        """Decode the object of a line: an error, a piece of a chat or of a completion."""
        if "error" in wire or has_failed(self._context):
            self._fail(decode_error(wire, self._context.status, self._provider), events)
            return
        if not self._has_started:
            first = {key: value for key, value in wire.items() if key in _FIRST_KEYS}
            is_known = "message" in wire or "response" in wire
            self._is_completion = (
                "message" not in wire if is_known else self._context.path == GENERATE_PATH
            )
            kind = "response" if self._is_completion else "message"
            self._begin_response(maybe_text(wire.get("model")), events, {**first, kind: None})
        if "message" in wire:
            self._decode_message(maybe_object(wire["message"]), events)
        else:
            self._add_texts(wire.get("thinking"), wire.get("response"), events)
        self._logprobs += maybe_list(wire.get("logprobs"))
        self._body |= {key: value for key, value in wire.items() if key not in _DELTA_KEYS}
        if wire.get("done") is True:
            self._complete(events)

    def _decode_message(self, message: Wire, events: list[StreamEvent]) -> None:
        """Append the events of the message in a line, and collect its content."""
        self._add_texts(message.get("thinking"), message.get("content"), events)
        images = maybe_list(message.get("images"))
        for image in filter(None, map(maybe_text, images)):
            self._open_block(None)
            events.append(BlockAdded(self._message_id, self._index, decode_artifact(image)))
        self._images += images
        for call in maybe_list(message.get("tool_calls")):
            self._meter.add_call()
            self._calls.append(call)
            self._report_call(call, events)
        for key, value in message.items():
            if key not in ("thinking", "content", "images", "tool_calls"):
                self._message_keys[key] = value

    def _add_texts(self, thinking: Any, text: Any, events: list[StreamEvent]) -> None:
        if isinstance(thinking, str) and thinking:
            self._add_thinking(thinking, events)
        if isinstance(text, str) and text:
            self._texts.append(text)
            self._open_block(TextDelta)
            events.append(TextDelta(self._message_id, self._index, text))

    def _add_thinking(self, thinking: str, events: list[StreamEvent]) -> None:
        self._thinking.append(thinking)
        self._open_block(ThinkingDelta)
        events.append(ThinkingDelta(self._message_id, self._index, thinking))

    def _open_block(self, kind: _DeltaType | None) -> None:
        """Start a new block, unless the open block has the same kind of deltas."""
        if kind is None or self._open_kind is not kind:
            if kind is not None:
                self._meter.add_block()
            self._open_kind = kind
            self._index += 1

    def _report_call(self, wire: Any, events: list[StreamEvent]) -> None:
        """Append the events of a call, which Ollama sends complete in one line."""
        block = decode_any_call(wire, self._pending_calls)
        self._open_block(None)
        message_id, index = self._message_id, self._index
        if not isinstance(block, ToolUseBlock):
            events.append(BlockAdded(message_id, index, block, {"tool_calls": [wire]}))
            return
        arguments = block.invalid.raw if block.invalid else write_json(block.input).decode()
        events += (
            ToolUseStart(message_id, index, block.id, block.name, original_form=wire),
            ToolUseInputDelta(message_id, index, block.id, arguments),
            ToolUseEnd(message_id, index, block.id, block.input, block.invalid),
        )

    def _begin_response(
        self, model: str | None, events: list[StreamEvent], original_form: Wire | None = None
    ) -> None:
        if not self._has_started:
            self._body["model"] = model
            model_id = self._context.model or f"{self._provider}:{model or 'unknown'}"
            self._begin(events, model_id, protocol=PROTOCOL, original_form=original_form)

    def _complete(self, events: list[StreamEvent]) -> None:
        self._add_usage(decode_usage(self._body, self._context), events)
        message = self._build_message(MessageStatus.COMPLETE)
        # Ollama sends the image of a completion with the last line.
        for block in message.content if self._is_completion else ():
            if isinstance(block, ArtifactBlock):
                self._open_block(None)
                events.append(BlockAdded(self._message_id, self._index, block))
        self._end_with(message, events)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        self._begin_response(None, events)
        super()._fail(error, events)

    def _failed_message(self) -> Message:
        message = self._build_message(MessageStatus.ERROR)
        return with_status(message, MessageStatus.ERROR, StopReason.ERROR)

    def _build_message(self, status: MessageStatus) -> Message:
        text, thinking = "".join(self._texts), "".join(self._thinking)
        # The model is None if the first line of the stream is an error.
        body = {key: value for key, value in self._body.items() if value is not None}
        if self._logprobs:
            body["logprobs"] = self._logprobs
        keys: Wire = {"thinking": thinking} if thinking else {}
        if self._is_completion:
            body |= {"response": text, **keys}
        else:
            keys |= {"images": list(self._images)} if self._images else {}
            keys |= {"tool_calls": list(self._calls)} if self._calls else {}
            body["message"] = {"role": "assistant", **self._message_keys, "content": text, **keys}
        return decode_body(body, self._context, message_id=self._message_id, status=status)
