"""Stream decoder of Chat Completions: chunks as server-sent events in, stream events out.

The block index of events never decreases. Therefore the events of a call that starts before the
previous call is complete are delayed (T126), and text after the start of a call is delayed until
all calls have ended.
"""

from collections.abc import Sequence

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
)
from metis.canonical.errors import NetworkError, ProviderError, ServerError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.streaming.arguments import parse_arguments
from metis.streaming.events import (
    BlockAdded,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.streaming.text_frames import UNREADABLE
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, stream_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.openai_chat.assistant import (
    DETAILS_KEY,
    TEXT_KEYS,
    call_signature,
    decode_content_parts,
    decode_reasoning_details,
    thinking_text,
)
from metis.wire.openai_chat.blocks import PROTOCOL, read_json
from metis.wire.openai_chat.chunk_fold import (
    CallFold,
    ChoiceFold,
    fold_body,
    merge_envelope,
    other_chunks,
    text_of_part,
    thinking_keys,
)
from metis.wire.openai_chat.response import DEFAULT_PROVIDER, decode_body, decode_usage
from metis.wire.openai_errors import decode_error
from metis.wire.response import with_status
from metis.wire.seals import is_envelope
from metis.wire.stream_decoder import SseStreamDecoder
from metis.wire.tool_ids import CallIds

DeltaType = type[TextDelta] | type[ThinkingDelta]
"""The events that carry text."""
_PART_EVENTS: dict[str, DeltaType] = {"text": TextDelta, "thinking": ThinkingDelta}


class EventOrder:
    """Emits the events of one response in the order of its blocks."""

    def __init__(
        self, message_id: str, ids: CallIds, calls: list[CallFold], issuer: str = PROTOCOL
    ) -> None:
        self.index = -1
        self._issuer = issuer
        self.open_kind: DeltaType | str | None = None
        """The kind of the open block; None between blocks."""
        self.open_call: CallFold | None = None
        """The call whose fragments become events without delay."""
        self._message_id = message_id
        self._ids = ids
        self._calls = calls
        self._ended_calls = 0
        self._reported_data: set[str] = set()
        self._reported_parts: list[OpaqueBlock] = []
        self._late_texts: list[tuple[DeltaType, str, DeltaType | str, Wire | None]] = []
        self._open_form: Wire | None = None

    def add_text(
        self,
        event: DeltaType,
        text: str,
        events: list[StreamEvent],
        kind: DeltaType | str | None = None,
        original_form: Wire | None = None,
    ) -> None:
        """Append the event for a text; a new kind of text starts a new block."""
        kind = kind or event
        if self.open_call is not None or self._ended_calls:
            self._late_texts.append((event, text, kind, original_form))
            return
        is_new = self.open_kind is not kind
        if is_new:
            self.open_kind = kind
            self.index += 1
        if original_form is not None and (is_new or original_form != self._open_form):
            self._open_form = original_form
            events.append(event(self._message_id, self.index, text, original_form=original_form))
        else:
            events.append(event(self._message_id, self.index, text))

    def add_signature(
        self, thinking: ThinkingBlock, events: list[StreamEvent], *, is_new: bool
    ) -> None:
        """Append the event for the signature of open thinking.

        The signature of closed thinking is only in the message. `is_new` states that the signature
        belongs to thinking without text, which has no event yet.
        """
        if is_new and self.open_call is None and not self._ended_calls:
            self._next_index()
            self.open_kind = ThinkingDelta
        if self.open_kind is ThinkingDelta:
            delta = ThinkingDelta(
                self._message_id,
                self.index,
                "",
                thinking.signature,
                thinking.format,
                id=thinking.id,
            )
            events.append(delta)

    def add_redacted(self, block: RedactedThinkingBlock, events: list[StreamEvent]) -> None:
        """Append the event for redacted thinking; after calls `add_unreported` does that."""
        if self.open_call is None and not self._ended_calls:
            events.append(BlockAdded(self._message_id, self._next_index(), block))
            self._reported_data.add(block.data)

    def add_part(self, block: OpaqueBlock, part: Wire, events: list[StreamEvent]) -> None:
        """Append the event for a content part other than text or thinking, such as a reference."""
        if self.open_call is None and not self._ended_calls:
            form = {"content": [part]}
            events.append(BlockAdded(self._message_id, self._next_index(), block, form))
            self._reported_parts.append(block)

    def add_unreported(self, content: Sequence[ContentBlock], events: list[StreamEvent]) -> None:
        """Append events for the blocks of the final message that have none."""
        for block in content:
            if isinstance(block, RedactedThinkingBlock) and block.data in self._reported_data:
                continue
            if isinstance(block, OpaqueBlock) and block in self._reported_parts:
                self._reported_parts.remove(block)
                continue
            if isinstance(block, ArtifactBlock | OpaqueBlock | RedactedThinkingBlock):
                events.append(BlockAdded(self._message_id, self._next_index(), block))

    def add_arguments(self, call: CallFold, piece: str, events: list[StreamEvent]) -> None:
        """Append the event for a piece of arguments of the open call, and start the next calls."""
        if call is self.open_call and piece:
            self._report_arguments(call, piece, events)
        while self._ended_calls < len(self._calls):
            call = self._calls[self._ended_calls]
            if not call.name or not (call.wire_id or call.pieces or call.is_legacy):
                return
            self._start_call(call, events)
            # More fragments may follow for the last call, or if the arguments are incomplete.
            if call is self._calls[-1] or call.is_custom or not call.is_complete:
                return
            self._end_call(call, events)
            self._ended_calls += 1

    def finish(self, events: list[StreamEvent]) -> None:
        """End every call, then append the delayed texts."""
        for call in self._calls[self._ended_calls :]:
            if call.name:
                self._start_call(call, events)
                self._end_call(call, events)
        self.open_call = self.open_kind = None
        self._ended_calls = 0
        for event, text, kind, original_form in self._late_texts:
            self.add_text(event, text, events, kind, original_form)

    def _next_index(self) -> int:
        self.open_kind = None
        self.index += 1
        return self.index

    def _start_call(self, call: CallFold, events: list[StreamEvent]) -> None:
        """Append the start event of a call, once, with the arguments received so far."""
        if call.tool_use_id:
            return
        name_or_id = call.name if call.is_legacy else call.wire_id
        call.tool_use_id = self._ids.of_call(name_or_id, is_id=bool(call.wire_id))
        signature = call_signature(call.extra_keys)
        if signature is not None and not is_envelope(signature):
            seal = ThinkingBlock("", signature, format=SIGNATURE_ON_NEXT, issuer=self._issuer)
            events.append(BlockAdded(self._message_id, self._next_index(), seal))
        call.block_index = self._next_index()
        self.open_call = call
        events.append(
            ToolUseStart(
                self._message_id,
                call.block_index,
                call.tool_use_id,
                call.name,
                call.wire_id or None,
                call.announcement(),
            )
        )
        if call.pieces:
            self._report_arguments(call, call.arguments, events)

    def _report_arguments(self, call: CallFold, piece: str, events: list[StreamEvent]) -> None:
        # The input of a custom tool is free text, but input deltas are pieces of JSON.
        if not call.is_custom:
            events.append(
                ToolUseInputDelta(self._message_id, call.block_index, call.tool_use_id, piece)
            )

    def _end_call(self, call: CallFold, events: list[StreamEvent]) -> None:
        final_input, invalid = parse_arguments(call.arguments)
        if call.is_custom:
            final_input, invalid = {"input": call.arguments}, None
        events.append(
            ToolUseEnd(self._message_id, call.block_index, call.tool_use_id, final_input, invalid)
        )


class ChatStreamDecoder(SseStreamDecoder):
    """Turns the bytes of one streamed response into events."""

    # A server may answer with a plain response, which is decoded from the head and must fit.
    head_bytes = 1 << 20

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._provider = context.provider or DEFAULT_PROVIDER
        self._issuer = context.provider or PROTOCOL
        self._envelope: Wire = {}
        self._usage: Wire = {}
        self._first = ChoiceFold(self._meter)
        self._choices: dict[int, ChoiceFold] = {0: self._first}
        self._ids = CallIds(context.session_id, self._message_id)
        self._order = EventOrder(self._message_id, self._ids, self._first.calls, self._issuer)
        self._details: set[str] = set()
        """The identities of typed thinking parts that have an event."""

    def _decode_remaining(self, events: list[StreamEvent]) -> None:
        super()._decode_remaining(events)
        if not self._has_started and self._end is None:
            self._decode_head(events)

    def _end_early(self, events: list[StreamEvent]) -> None:
        if self._first.finish_reason is None:
            # A truncated text must not be stored as a complete response (T131).
            self._fail(NetworkError(STREAM_CUT_OFF, provider=self._provider), events)
        else:
            self._complete(events)

    def _decode_frame(self, name: bytes, data: bytes, events: list[StreamEvent]) -> None:
        if self._end is not None or not data.strip():
            return
        # An unreadable line before the start belongs to a body that is not a stream.
        if name == UNREADABLE and not self._has_started:
            return
        if data.strip() == b"[DONE]":
            # `[DONE]` marks a complete response even without a finish reason (T131).
            self._complete(events)
            return
        wire = self._read_event(data, events)
        if wire is not None:
            self._decode_chunk(wire, events, is_error=name == b"error")

    def _decode_head(self, events: list[StreamEvent]) -> None:
        """Decode a body that is not a stream: an error, or a plain response."""
        try:
            wire = maybe_object(read_json(self._head))
        except (ValueError, RecursionError):
            return
        if wire:
            self._decode_chunk(wire, events, is_error="choices" not in wire)

    def _decode_chunk(self, wire: Wire, events: list[StreamEvent], *, is_error: bool) -> None:
        """Merge a chunk into the response, and append its events; an error ends the stream."""
        # OpenRouter sends an error object inside a stream with status 200 (T132).
        is_error = is_error or bool(wire.get("error")) or wire.get("object") == "error"
        if not is_error and "choices" not in wire and "usage" not in wire:
            return
        merge_envelope(self._envelope, self._usage, wire)
        choices = [maybe_object(choice) for choice in maybe_list(wire.get("choices"))]
        has_usage = bool(wire.get("usage") or wire.get("x_groq"))
        if choices or is_error or has_usage:
            self._begin_response(events)
        for choice in choices:
            self._decode_choice(choice, events)
            is_error = is_error or bool(choice.get("error"))
        if has_usage:
            tier = self._envelope.get("service_tier")
            self._add_usage(decode_usage(self._usage, self._context, tier), events)
        if is_error:
            source = next((choice for choice in choices if choice.get("error")), wire)
            self._fail(decode_error(source, self._context.status, self._provider), events)

    def _decode_choice(self, choice: Wire, events: list[StreamEvent]) -> None:
        """Merge a choice; only the first choice has events, others are in the message."""
        index = maybe_count(choice.get("index")) or 0
        fold = self._choices.get(index)
        if fold is None:
            self._meter.add_block()
            fold = self._choices[index] = ChoiceFold(self._meter)
        fold.add_choice(choice)
        delta = maybe_object(choice.get("delta"))
        if not delta and fold.is_empty:
            # A plain response, or a host that sends the complete message in one chunk.
            delta = maybe_object(choice.get("message"))
        fold.add_delta(delta)
        if fold is self._first:
            self._report_delta(delta, events)
        else:
            for call in maybe_list(delta.get("tool_calls")):
                fold.call_of(maybe_object(call)).add(maybe_object(call))
            if delta.get("function_call"):
                fold.legacy_call().add({"function": delta["function_call"]})

    def _report_delta(self, delta: Wire, events: list[StreamEvent]) -> None:
        """Append the events of a delta, in the order of the blocks that it belongs to."""
        self._report_thinking(delta, events)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self._order.add_text(TextDelta, content, events)
        else:
            for part in map(maybe_object, maybe_list(content)):
                self._report_part(part, events)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            form = {"refusal": ""}
            self._order.add_text(TextDelta, refusal, events, "refusal", form)
        for call in maybe_list(delta.get("tool_calls")):
            self._decode_call(maybe_object(call), events)
        if delta.get("function_call"):
            legacy_call = self._first.legacy_call()
            piece = legacy_call.add({"function": delta["function_call"]})
            self._order.add_arguments(legacy_call, piece, events)

    def _report_part(self, part: Wire, events: list[StreamEvent]) -> None:
        """Append the events of a content part, which only Mistral sends."""
        event = _PART_EVENTS.get(str(part.get("type")))
        if event is None:
            for block in decode_content_parts([part], self._issuer)[0]:
                if isinstance(block, OpaqueBlock):
                    self._order.add_part(block, part, events)
            return
        keys = {key: value for key, value in part.items() if key not in ("text", "thinking")}
        text = text_of_part(part)
        if text or len(keys) > 1:
            self._order.add_text(event, text, events, original_form={"content": [keys]})
        for chunk in other_chunks(part):
            form = {"content": [{**keys, "thinking": [chunk]}]}
            self._order.add_text(event, "", events, original_form=form)

    def _report_thinking(self, delta: Wire, events: list[StreamEvent]) -> None:
        """Append the events of the thinking, signatures and redacted parts in a delta."""
        details = decode_reasoning_details(maybe_list(delta.get(DETAILS_KEY)), self._issuer)
        # Some hosts send the same text under two keys: it becomes one event (T52).
        texts = (maybe_text(delta.get(key)) for key in TEXT_KEYS)
        text = next(filter(None, texts), None) or thinking_text(details)
        if text:
            form = thinking_keys(delta)
            self._order.add_text(ThinkingDelta, text, events, original_form=form)
        for wire in map(maybe_object, maybe_list(delta.get(DETAILS_KEY))):
            for detail in decode_reasoning_details([wire], self._issuer):
                if isinstance(detail, RedactedThinkingBlock):
                    self._order.add_redacted(detail, events)
                    continue
                identity = f"{wire.get('type')} {wire.get('index')}"
                if detail.signature:
                    is_new = not detail.text and identity not in self._details
                    self._order.add_signature(detail, events, is_new=is_new)
                self._details.add(identity)

    def _decode_call(self, fragment: Wire, events: list[StreamEvent]) -> None:
        call = self._first.call_of(fragment)
        self._order.add_arguments(call, call.add(fragment), events)

    def _begin_response(self, events: list[StreamEvent]) -> None:
        if self._has_started:
            return
        response_id = maybe_text(self._envelope.get("id")) or None
        model = maybe_text(self._envelope.get("model"))
        self._ids.enter_response(response_id or self._message_id)
        self._begin(
            events,
            f"{self._provider}:{model}" if model else self._context.model,
            response_id,
            protocol=PROTOCOL,
            original_form=dict(self._envelope),
        )

    def _build_message(self, status: MessageStatus) -> Message:
        folds = [self._choices[index] for index in sorted(self._choices)]
        body = fold_body(self._envelope, self._usage, folds)
        return decode_body(body, self._context, message_id=self._message_id, status=status)

    def _final_message(self, status: MessageStatus, events: list[StreamEvent]) -> Message:
        """Build the final message, and append events for its blocks that have none."""
        self._begin_response(events)
        self._order.finish(events)
        message = self._build_message(status)
        self._order.add_unreported(message.content, events)
        return message

    def _complete(self, events: list[StreamEvent]) -> None:
        if self._first.finish_reason == "error":
            text = "the provider ended the response with an error"
            self._fail(ServerError(text, provider=self._provider), events)
            return
        self._end_with(self._final_message(MessageStatus.COMPLETE, events), events)

    def _fail(self, error: ProviderError, events: list[StreamEvent]) -> None:
        message = self._final_message(MessageStatus.ERROR, events)
        failed = with_status(message, MessageStatus.ERROR, StopReason.ERROR)
        self._end = stream_error(self._message_id, error, failed)
        events.append(self._end)
