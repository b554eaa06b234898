"""Streams of Chat Completions, decoded: bytes to stream events."""

from collections.abc import Sequence
from typing import Any

from metis.canonical.blocks import ArtifactBlock, ContentBlock, OpaqueBlock, RedactedThinkingBlock
from metis.canonical.errors import NetworkError, ProviderError, ServerError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming.arguments import parse_arguments
from metis.streaming.events import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.streaming.text_frames import SseParser
from metis.wire.call import RequestContext
from metis.wire.errors import stream_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.openai_chat.assistant import (
    DETAILS_KEY,
    TEXT_KEYS,
    decode_reasoning_details,
    thinking_text,
)
from metis.wire.openai_chat.blocks import PROTOCOL, read_json
from metis.wire.openai_chat.chunk_fold import (
    CallFold,
    ChoiceFold,
    fold_body,
    merge_envelope,
    text_of,
)
from metis.wire.openai_chat.fast import PlainDelta, read_plain_chunk
from metis.wire.openai_chat.response import DEFAULT_PROVIDER, decode_body, decode_usage, with_status
from metis.wire.openai_chat.stream_encoder import ChatStreamEncoder
from metis.wire.openai_errors import decode_error
from metis.wire.tool_ids import CallIds

__all__ = ["ChatStreamDecoder", "ChatStreamEncoder"]

DeltaType = type[TextDelta] | type[ThinkingDelta]
"""The events that carry text."""


class EventOrder:
    """Turns what comes in into events in order; `kind` is what the open block is made of."""

    def __init__(self, message_id: str, ids: CallIds, calls: list[CallFold]) -> None:
        self.index = -1
        self.kind: DeltaType | str | None = None
        self.front: CallFold | None = None
        """The call whose fragments are passed on at once."""
        self._message_id = message_id
        self._ids = ids
        self._calls = calls
        self._ended = 0
        self._shown: set[str] = set()
        self._late: list[tuple[DeltaType, str, DeltaType | str]] = []

    def say(
        self,
        event: DeltaType,
        text: str,
        events: list[StreamEvent],
        kind: DeltaType | str | None = None,
    ) -> None:
        """More text, of the open block or of a new one."""
        kind = kind or event
        if self.front is not None or self._ended:
            self._late.append((event, text, kind))
            return
        self._open(kind)
        events.append(event(self._message_id, self.index, text))

    def sign(self, signature: str, events: list[StreamEvent]) -> None:
        """The signature of the thought that is open; for a closed one it comes with the message."""
        if self.kind is ThinkingDelta:
            events.append(ThinkingDelta(self._message_id, self.index, "", signature))

    def add(self, block: RedactedThinkingBlock, events: list[StreamEvent]) -> None:
        """A sealed thought, if calls have not begun; else it comes at the end."""
        if self.front is None and not self._ended:
            events.append(BlockAdded(self._message_id, self.next_index(), block))
            self._shown.add(block.data)

    def add_rest(self, content: Sequence[ContentBlock], events: list[StreamEvent]) -> None:
        """The blocks of a whole answer that no event has told of."""
        for block in content:
            if isinstance(block, RedactedThinkingBlock) and block.data in self._shown:
                continue
            if isinstance(block, ArtifactBlock | OpaqueBlock | RedactedThinkingBlock):
                events.append(BlockAdded(self._message_id, self.next_index(), block))

    def take_piece(self, call: CallFold, piece: str, events: list[StreamEvent]) -> None:
        """More of the arguments of a call; they are in the call already."""
        if call is self.front and piece:
            self._pass_on(call, piece, events)
        self._advance(events)

    def end(self, events: list[StreamEvent]) -> None:
        """Nothing more will come: end every call, then say what had to wait."""
        for call in self._calls[self._ended :]:
            if call.name:
                self._start(call, events)
                self._end(call, events)
        self.front = None
        self._ended, late = 0, self._late
        self.kind = None
        for event, text, kind in late:
            self.say(event, text, events, kind)

    def next_index(self) -> int:
        """The index of a block that comes whole."""
        self.kind = None
        self.index += 1
        return self.index

    def _open(self, kind: DeltaType | str) -> None:
        if self.kind is not kind:
            self.kind = kind
            self.index += 1

    def _advance(self, events: list[StreamEvent]) -> None:
        while self._ended < len(self._calls):
            call = self._calls[self._ended]
            if not call.name or not (call.id or call.pieces or call.is_legacy):
                return
            self._start(call, events)
            if call is self._calls[-1] or call.is_custom or not call.is_whole:
                return
            self._end(call, events)
            self._ended += 1

    def _start(self, call: CallFold, events: list[StreamEvent]) -> None:
        if call.ours:
            return
        call.ours = self._ids.of_call(call.name if call.is_legacy else call.id, is_id=bool(call.id))
        call.block_index = self.next_index()
        self.front = call
        own = call.id or None
        events.append(ToolUseStart(self._message_id, call.block_index, call.ours, call.name, own))
        if call.pieces:
            self._pass_on(call, call.text, events)

    def _pass_on(self, call: CallFold, piece: str, events: list[StreamEvent]) -> None:
        if not call.is_custom:
            event = ToolUseInputDelta(self._message_id, call.block_index, call.ours, piece)
            events.append(event)

    def _end(self, call: CallFold, events: list[StreamEvent]) -> None:
        final, invalid = parse_arguments(call.text)
        if call.is_custom:
            final, invalid = {"input": call.text}, None
        event = ToolUseEnd(self._message_id, call.block_index, call.ours, final, invalid)
        events.append(event)


_HEAD_BYTES = 1 << 20
"""How much is kept of an answer that does not look like a stream."""


class ChatStreamDecoder:
    """Reads the stream of one answer; feed it as the bytes come, then finish."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._provider = context.provider or DEFAULT_PROVIDER
        self._issuer = context.provider or PROTOCOL
        self._parser = SseParser()
        self._message_id = new_ulid()
        self._envelope: Wire = {}
        self._usage: Wire = {}
        self._first = ChoiceFold()
        self._choices: dict[int, ChoiceFold] = {0: self._first}
        self._ids = CallIds(context.session_id, self._message_id)
        self._order = EventOrder(self._message_id, self._ids, self._first.calls)
        self._head = b""
        self._is_plain = False
        """Whether chunks may take the short road: the stream has begun and is not over."""
        self._is_begun = self._is_over = False
        self._final: Message | None = None

    @property
    def message(self) -> Message:
        """The answer: whole after the end of the stream, before it as far as it has come."""
        return self._final or self._build(MessageStatus.PARTIAL)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that come with these bytes."""
        events: list[StreamEvent] = []
        if not self._is_begun and len(self._head) < _HEAD_BYTES:
            self._head += chunk
        for name, data in self._parser.feed(chunk):
            if name or not self._is_plain:
                self._take_frame(name, data, events)
                continue
            try:
                delta = read_plain_chunk(data).choices[0].delta
            except (ValueError, RecursionError):
                self._take_frame(name, data, events)
                continue
            order = self._order
            text = delta.content
            if (
                text
                and order.kind is TextDelta
                and delta.tool_calls is None
                and not (delta.reasoning_content or delta.reasoning)
            ):
                self._first.content.append(text)
                events.append(TextDelta(self._message_id, order.index, text))
            else:
                self._take_plain(delta, order, events)
        return events

    def finish(self) -> list[StreamEvent]:
        """The events of the end; a stream that broke off ends in an error (T131)."""
        events: list[StreamEvent] = []
        for name, data in self._parser.finish():
            self._take_frame(name, data, events)
        if not self._is_begun and not self._is_over:
            self._take_head(events)
        if self._is_over:
            return events
        if self._first.finish_reason is None:
            self._fail(NetworkError("the stream broke off", provider=self._provider), events)
        else:
            self._complete(events)
        return events

    def _take_plain(self, delta: PlainDelta, order: EventOrder, events: list[StreamEvent]) -> None:
        """Take in a delta that goes on with text, a clear thought or the arguments of a call."""
        first = self._first
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            if delta.reasoning_content:
                first.clear["reasoning_content"].append(thought)
            if delta.reasoning:
                first.clear["reasoning"].append(delta.reasoning)
            if order.kind is ThinkingDelta:
                events.append(ThinkingDelta(self._message_id, order.index, thought))
            else:
                order.say(ThinkingDelta, thought, events)
        if delta.content:
            first.content.append(delta.content)
            order.say(TextDelta, delta.content, events)
        if delta.tool_calls is None:
            return
        fragment = delta.tool_calls[0]
        piece = fragment.function.arguments
        call = first.at_index.get(fragment.index)
        if call is not None and call is order.front and call is first.calls[-1]:
            if piece:
                call.pieces.append(piece)
                event = ToolUseInputDelta(self._message_id, call.block_index, call.ours, piece)
                events.append(event)
        else:
            wire: Wire = {"index": fragment.index, "function": {"arguments": piece}}
            self._take_call(wire, events)

    def _take_frame(self, name: bytes, data: bytes, events: list[StreamEvent]) -> None:
        if self._is_over or not data.strip():
            return
        if data.strip() == b"[DONE]":
            self._complete(events)
            return
        try:
            wire = read_json(data)
        except (ValueError, RecursionError) as error:
            text = f"a chunk of the stream is not JSON: {error}"
            self._fail(NetworkError(text, provider=self._provider), events)
            return
        self._take_chunk(maybe_object(wire), events, is_error=name == b"error")

    def _take_head(self, events: list[StreamEvent]) -> None:
        """Read an answer that is no stream at all: an error, or a plain response."""
        try:
            wire = maybe_object(read_json(self._head))
        except (ValueError, RecursionError):
            wire: Wire = {}
        if wire:
            self._take_chunk(wire, events, is_error="choices" not in wire)

    def _take_chunk(self, wire: Wire, events: list[StreamEvent], *, is_error: bool) -> None:
        is_error = is_error or bool(wire.get("error")) or wire.get("object") == "error"
        if not is_error and "choices" not in wire and "usage" not in wire:
            return
        merge_envelope(self._envelope, self._usage, wire)
        choices = [maybe_object(choice) for choice in maybe_list(wire.get("choices"))]
        if choices or is_error:
            self._begin(events)
        for choice in choices:
            self._take_choice(choice, events)
            is_error = is_error or bool(choice.get("error"))
        if wire.get("usage") or wire.get("x_groq"):
            self._tell_usage(events)
        if is_error:
            source = next((choice for choice in choices if choice.get("error")), wire)
            self._fail(decode_error(source, self._context.status, self._provider), events)

    def _take_choice(self, choice: Wire, events: list[StreamEvent]) -> None:
        place = maybe_count(choice.get("index")) or 0
        fold = self._choices.setdefault(place, ChoiceFold())
        fold.take_choice(choice)
        delta = maybe_object(choice.get("delta"))
        if not delta and fold.is_empty:
            # A plain response, or a host that sends the whole message at once.
            delta = maybe_object(choice.get("message"))
        fold.take_delta(delta)
        if fold is self._first:
            self._show(delta, events)
        else:
            for call in maybe_list(delta.get("tool_calls")):
                fold.call_of(maybe_object(call)).take(maybe_object(call))

    def _show(self, delta: Wire, events: list[StreamEvent]) -> None:
        """The events of a delta, in the order of the blocks that it belongs to."""
        self._show_thoughts(delta, events)
        content = delta.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in map(maybe_object, maybe_list(parts)):
            kinds = {"text": TextDelta, "thinking": ThinkingDelta}
            kind, text = kinds.get(str(part.get("type"))), text_of(part)
            if kind is not None and text:
                self._order.say(kind, text, events)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._order.say(TextDelta, refusal, events, kind="refusal")
        for call in maybe_list(delta.get("tool_calls")):
            self._take_call(maybe_object(call), events)
        if delta.get("function_call"):
            legacy = self._first.legacy_call()
            piece = legacy.take({"function": delta["function_call"]})
            self._order.take_piece(legacy, piece, events)

    def _show_thoughts(self, delta: Wire, events: list[StreamEvent]) -> None:
        """The clear text of a thought, which may be told under two names at once (T52)."""
        details = decode_reasoning_details(maybe_list(delta.get(DETAILS_KEY)), self._issuer)
        told = [delta.get(name) for name in TEXT_KEYS]
        text = next(
            (text for text in told if isinstance(text, str) and text), thinking_text(details)
        )
        if text:
            self._order.say(ThinkingDelta, text, events)
        for detail in details:
            if isinstance(detail, RedactedThinkingBlock):
                self._order.add(detail, events)
            elif detail.signature:
                self._order.sign(detail.signature, events)

    def _take_call(self, wire: Wire, events: list[StreamEvent]) -> None:
        call = self._first.call_of(wire)
        self._order.take_piece(call, call.take(wire), events)

    def _tell_usage(self, events: list[StreamEvent]) -> None:
        tier: Any = self._envelope.get("service_tier")
        usage = decode_usage(self._usage, self._context, tier)
        if usage is not None:
            events.append(UsageUpdate(self._message_id, usage))

    def _begin(self, events: list[StreamEvent]) -> None:
        if self._is_begun:
            return
        self._is_begun = self._is_plain = True
        self._ids.enter_response(maybe_text(self._envelope.get("id")) or self._message_id)
        self._head = b""
        metadata = self._build(MessageStatus.PARTIAL).metadata
        response_id = metadata.response_id
        event = MessageStart(self._message_id, metadata.model, response_id, protocol=PROTOCOL)
        events.insert(0, event)

    def _build(self, status: MessageStatus) -> Message:
        folds = [self._choices[index] for index in sorted(self._choices)]
        body = fold_body(self._envelope, self._usage, folds)
        return decode_body(body, self._context, message_id=self._message_id, status=status)

    def _end(self, status: MessageStatus, events: list[StreamEvent]) -> Message:
        self._begin(events)
        self._is_over, self._is_plain = True, False
        self._order.end(events)
        self._final = self._build(status)
        self._order.add_rest(self._final.content, events)
        return self._final

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._first.finish_reason == "error":
            text = "the provider ended the answer with an error"
            self._fail(ServerError(text, provider=self._provider), events)
            return
        message = self._end(MessageStatus.COMPLETE, events)
        reason = message.metadata.stop_reason or StopReason.UNKNOWN
        events.append(MessageComplete(self._message_id, reason, message))

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        message = self._end(MessageStatus.ERROR, events)
        self._final = with_status(message, MessageStatus.ERROR, StopReason.ERROR)
        events.append(stream_error(self._message_id, error, self._final))
