"""Streams of OpenAI Responses, decoded: bytes to stream events."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from metis.canonical.errors import NetworkError, ProviderError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming import (
    MessageComplete,
    MessageStart,
    SseParser,
    StreamError,
    StreamEvent,
    TextDelta,
    UsageUpdate,
)
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, stream_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.openai_errors import decode_error
from metis.wire.openai_responses import types
from metis.wire.openai_responses.blocks import PROTOCOL
from metis.wire.openai_responses.response import (
    DEFAULT_PROVIDER,
    decode_body,
    decode_usage,
    response_call_ids,
    with_status,
)
from metis.wire.openai_responses.stream_items import ItemReporter, StreamItem, delta_of, item_of
from metis.wire.openai_responses.tool_calls import CUSTOM, FUNCTION

_read_delta = msgspec.json.Decoder(
    types.TextDelta | types.ArgumentsDelta | types.SummaryDelta
).decode
_read_event = msgspec.json.Decoder(dict[str, Any]).decode
_HEAD_BYTES = 65536
_DONE = b"[DONE]"
_FAILED = ("failed", "cancelled")


class ResponsesStreamDecoder:
    """Turns the bytes of a streamed answer into events; `message` is what has come so far."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._frames = SseParser()
        self._id = new_ulid()
        self._body: Wire = {}
        self._items: list[StreamItem] = []
        self._by_index: dict[int, StreamItem] = {}
        self._by_name: dict[str, StreamItem] = {}
        self._teller: ItemReporter | None = None
        self._end: MessageComplete | StreamError | None = None
        self._was_marked = False
        self._scope = self._id
        """What its calls are of: the answer by the name that it had when it began."""
        self._head = b""
        """What came before the answer began, in case that it is no stream at all."""
        self._takers: Mapping[str, Callable[[Wire, list[StreamEvent]], None]] = {
            "response.created": self._take_response,
            "response.queued": self._take_response,
            "response.in_progress": self._take_response,
            "response.completed": self._take_end,
            "response.incomplete": self._take_end,
            "response.failed": self._take_end,
            "response.cancelled": self._take_end,
            "response.output_item.added": self._take_added,
            "response.output_item.done": self._take_done,
            "response.content_part.added": self._take_part,
            "response.content_part.done": self._take_part,
            "response.output_text.delta": self._take_text,
            "response.output_text.annotation.added": self._take_note,
            "response.refusal.delta": self._take_refusal,
            "response.reasoning_summary_text.delta": self._take_summary,
            "response.reasoning_text.delta": self._take_clear,
            "response.function_call_arguments.delta": self._take_arguments,
            "response.custom_tool_call_input.delta": self._take_input,
            "error": self._take_error,
        }

    @property
    def message(self) -> Message:
        """The message as far as it has come; whole once the stream has ended."""
        if self._end is not None and self._end.message is not None:
            return self._end.message
        return self._message([item.whole() for item in self._items], MessageStatus.PARTIAL)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        events: list[StreamEvent] = []
        if self._teller is None and len(self._head) < _HEAD_BYTES:
            self._head += chunk
        for _, data in self._frames.feed(chunk):
            try:
                event = _read_delta(data)
            except (ValueError, RecursionError):
                self._take(data, events)
                continue
            item, teller = self._by_index.get(event.output_index), self._teller
            if item is None or teller is None or self._end is not None or item.settled:
                self._take(data, events)
            elif type(event) is types.TextDelta:
                pieces = item.texts.get(event.content_index)
                if pieces is not None and item is teller.front:
                    pieces.append(event.delta)
                    place = item.base + event.content_index
                    events.append(TextDelta(self._id, place, event.delta))
                else:
                    teller.text(item, event.content_index, event.delta, events)
            elif type(event) is types.ArgumentsDelta:
                teller.arguments(item, event.delta, events)
            else:
                self._take(data, events)
        return events

    def finish(self) -> list[StreamEvent]:
        """The last events; a stream that broke off ends in an error that keeps what came."""
        events: list[StreamEvent] = []
        for _, data in self._frames.finish():
            self._take(data, events)
        if self._end is None:
            self._end_early(events)
        return events

    def _end_early(self, events: list[StreamEvent]) -> None:
        """The stream ended without a last word: it was none, it was marked, or it was cut off."""
        body = self._plain_body() if self._teller is None else None
        if body is not None and isinstance(body.get("output"), list) and not body.get("error"):
            self._take_end({"response": body}, events)
        elif body is not None:
            self._fail(decode_error(body, self._context.status, self._provider), events)
        elif self._teller is None and has_failed(self._context):
            self._fail(decode_error(self._head, self._context.status, self._provider), events)
        elif self._was_marked and self._items:
            self._take_end({"response": {"status": "completed"}}, events)
        else:
            text = "the stream ended before the answer was complete"
            self._fail(NetworkError(text, provider=self._provider), events)

    def _plain_body(self) -> Wire | None:
        """The JSON object that came in place of a stream."""
        try:
            found = _read_event(self._head)
        except (ValueError, RecursionError):
            return None
        return found if "output" in found or "error" in found else None

    @property
    def _provider(self) -> str:
        return self._context.provider or DEFAULT_PROVIDER

    def _take(self, data: bytes, events: list[StreamEvent]) -> None:
        """Take an event of any kind."""
        if self._end is not None:
            return
        if data.strip() == _DONE:
            self._was_marked = True
            return
        try:
            wire = _read_event(data)
        except (ValueError, RecursionError) as error:
            self._fail(NetworkError(f"the stream holds what is no event: {error}"), events)
            return
        take = self._takers.get(maybe_text(wire.get("type")) or "")
        if take is not None:
            take(wire, events)
        elif wire.get("error") and "type" not in wire:
            self._take_error(wire, events)

    def _take_response(self, wire: Wire, events: list[StreamEvent]) -> None:
        body = maybe_object(wire.get("response"))
        self._body |= body
        self._begin(events)

    def _begin(self, events: list[StreamEvent]) -> ItemReporter:
        """Say that an answer begins, once."""
        if self._teller is None:
            name = maybe_text(self._body.get("id")) or None
            model = maybe_text(self._body.get("model"))
            own = f"{self._provider}:{model}" if model else self._context.model
            self._scope = name or self._id
            ids = response_call_ids(self._context, self._scope, self._id)
            self._teller = ItemReporter(self._id, ids, self._context.provider or PROTOCOL)
            events.append(MessageStart(self._id, own, name))
        return self._teller

    def _take_added(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._add(item_of(wire), maybe_count(wire.get("output_index")), events)

    def _add(self, item: Wire, index: int | None, events: list[StreamEvent]) -> StreamItem:
        growing = StreamItem(item)
        self._items.append(growing)
        self._by_index[len(self._items) - 1 if index is None else index] = growing
        name = maybe_text(item.get("id"))
        if name:
            self._by_name[name] = growing
        self._begin(events).add(growing, events)
        return growing

    def _find(self, wire: Wire, kind: str, events: list[StreamEvent]) -> StreamItem:
        """The item that an event speaks of; one that was never announced begins here."""
        index, name = maybe_count(wire.get("output_index")), maybe_text(wire.get("item_id"))
        found = self._by_name.get(name or "")
        if found is None and index is not None:
            found = self._by_index.get(index)
        if found is None and index is None and name is None and self._items:
            found = self._items[-1]
        if found is not None:
            return found
        item: Wire = {"type": kind}
        if kind == "message":
            item["role"] = "assistant"
        if name:
            item["id"] = name
        return self._add(item, index, events)

    def _take_done(self, wire: Wire, events: list[StreamEvent]) -> None:
        item = item_of(wire)
        named = {**wire, "item_id": item.get("id") or wire.get("item_id")}
        growing = self._find(named, maybe_text(item.get("type")) or "", events)
        if growing.settled and growing.wire == item:
            return  # told twice
        if growing.settled:
            growing = self._add(item, maybe_count(wire.get("output_index")), events)
        if "type" not in item:
            item = {**growing.whole(), **item}  # a server that does not repeat what it announced
        self._begin(events).settle(growing, item, events)

    def _take_part(self, wire: Wire, events: list[StreamEvent]) -> None:
        growing = self._find(wire, "message", events)
        if growing.kind == "message" and not growing.settled:
            index = maybe_count(wire.get("content_index")) or 0
            growing.parts[index] = dict(maybe_object(wire.get("part")))

    def _take_text(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._say(wire, "output_text", events)

    def _take_refusal(self, wire: Wire, events: list[StreamEvent]) -> None:
        self._say(wire, "refusal", events)

    def _say(self, wire: Wire, kind: str, events: list[StreamEvent]) -> None:
        growing = self._find(wire, "message", events)
        index = maybe_count(wire.get("content_index")) or 0
        if not growing.settled:
            growing.kinds[index] = kind
            self._begin(events).text(growing, index, delta_of(wire), events)

    def _take_note(self, wire: Wire, events: list[StreamEvent]) -> None:
        growing = self._find(wire, "message", events)
        if not growing.settled:
            part = growing.parts.setdefault(maybe_count(wire.get("content_index")) or 0, {})
            part["annotations"] = [*maybe_list(part.get("annotations")), wire.get("annotation")]

    def _take_summary(self, wire: Wire, events: list[StreamEvent]) -> None:
        growing = self._find(wire, "reasoning", events)
        if not growing.settled:
            index = maybe_count(wire.get("summary_index")) or 0
            added = growing.add_summary(index, delta_of(wire))
            self._begin(events).thought(growing, added, events)

    def _take_clear(self, wire: Wire, events: list[StreamEvent]) -> None:
        growing = self._find(wire, "reasoning", events)
        if not growing.settled:
            added = growing.add_clear(delta_of(wire))
            self._begin(events).thought(growing, added, events)

    def _take_arguments(self, wire: Wire, events: list[StreamEvent]) -> None:
        growing = self._find(wire, FUNCTION, events)
        if not growing.settled:
            self._begin(events).arguments(growing, delta_of(wire), events)

    def _take_input(self, wire: Wire, events: list[StreamEvent]) -> None:
        growing = self._find(wire, CUSTOM, events)
        if not growing.settled:
            self._begin(events).arguments(growing, delta_of(wire), events)

    def _take_end(self, wire: Wire, events: list[StreamEvent]) -> None:
        """The final response; servers may leave its output out, or the events before it (T136)."""
        self._take_response(wire, events)
        output = self._settle_all(maybe_list(self._body.get("output")), events)
        usage = decode_usage(self._body.get("usage"), self._context, self._body.get("service_tier"))
        if usage is not None:
            events.append(UsageUpdate(self._id, usage))
        if self._body.get("status") in _FAILED or wire.get("type") == "response.failed":
            self._fail(self._failure(), events, output)
            return
        message = self._message(output, None)
        reason = message.metadata.stop_reason or StopReason.UNKNOWN
        self._end = MessageComplete(self._id, reason, message)
        events.append(self._end)

    def _failure(self) -> ProviderError:
        if self._body.get("error"):
            return decode_error(self._body, self._context.status, self._provider)
        word = self._body.get("status") or "failed"
        return decode_error({"message": f"the answer was {word}"}, None, self._provider)

    def _settle_all(self, output: list[Any], events: list[StreamEvent]) -> list[Any]:
        """The items of the answer; those that no event has ended end here."""
        teller = self._begin(events)
        left, whole = list(self._items), list[Any]()
        for index, final in enumerate(maybe_object(item) for item in output):
            growing = self._by_name.get(maybe_text(final.get("id")) or "")
            if growing is None or growing not in left:
                growing = next((item for item in left if item.kind == final.get("type")), None)
            if growing is None:
                growing = self._add(dict(final), len(self._items) + index, events)
            else:
                left.remove(growing)
            teller.settle(growing, final, events)
            whole.append(growing.wire)
        for growing in left:
            teller.settle(growing, growing.whole(), events)
        return whole or [growing.wire for growing in self._items]

    def _take_error(self, wire: Wire, events: list[StreamEvent]) -> None:
        inner = {key: value for key, value in wire.items() if key != "type"}
        body = wire if isinstance(wire.get("error"), dict) else {"error": inner}
        self._fail(decode_error(body, self._context.status, self._provider), events)

    def _fail(
        self, error: ProviderError, events: list[StreamEvent], output: list[Any] | None = None
    ) -> None:
        self._begin(events)
        if output is None:
            output = self._settle_all([], events)
        message = self._message(output, MessageStatus.ERROR)
        failed = with_status(message, MessageStatus.ERROR, StopReason.ERROR)
        self._end = stream_error(self._id, error, failed)
        events.append(self._end)

    def _message(self, output: list[Any], status: MessageStatus | None) -> Message:
        body = {**self._body, "output": output}
        return decode_body(
            body, self._context, message_id=self._id, status=status, scope=self._scope
        )
