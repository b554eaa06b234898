"""Stream decoder of OpenAI Responses: server-sent events in, stream events out.

The decoder collects the output items, from which the final message is decoded like that of a plain
response, so that both give the same message. The final form of an item is in the event that ends
it, or in the final response: the sealed part in `output_item.added` may be incomplete (T65).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming import StreamEvent
from metis.streaming.text_frames import UNREADABLE
from metis.wire.call import RequestContext
from metis.wire.errors import has_failed, stream_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.openai_errors import decode_error
from metis.wire.openai_responses.blocks import PROTOCOL, read_json
from metis.wire.openai_responses.response import (
    DEFAULT_PROVIDER,
    decode_body,
    decode_usage,
    response_call_ids,
)
from metis.wire.openai_responses.stream_items import ItemReporter, StreamItem
from metis.wire.openai_responses.tool_calls import CUSTOM, FUNCTION
from metis.wire.response import with_status
from metis.wire.stream_decoder import SseStreamDecoder

_FAILED_STATUSES = ("failed", "cancelled")


class ResponsesStreamDecoder(SseStreamDecoder):
    """Turns the bytes of one streamed response into events."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._provider = context.provider or DEFAULT_PROVIDER
        self._body: Wire = {}
        self._items: list[StreamItem] = []
        self._by_index: dict[int, StreamItem] = {}
        self._by_id: dict[str, StreamItem] = {}
        self._reporter: ItemReporter | None = None
        self._has_done_mark = False
        self._scope = self._message_id
        """The scope of call ids: the id of the response in its first event."""

    def _end_early(self, events: list[StreamEvent]) -> None:
        body = None if self._has_started else self._read_head()
        if body is not None and isinstance(body.get("output"), list) and not body.get("error"):
            self._decode_end({"response": body}, events)
        elif body is not None or (not self._has_started and has_failed(self._context)):
            error = body if body is not None else self._head
            self._fail(decode_error(error, self._context.status, self._provider), events)
        elif self._has_done_mark and self._items:
            # Some servers send `[DONE]` without a final response: it is complete (T131).
            self._decode_end({"response": {"status": "completed"}}, events)
        else:
            super()._end_early(events)

    def _read_head(self) -> Wire | None:
        """Return the JSON object of a body that is not a stream; None if there is none."""
        try:
            body = maybe_object(read_json(self._head))
        except (ValueError, RecursionError):
            return None
        return body if "output" in body or "error" in body else None

    def _decode_frame(self, name: bytes, data: bytes, events: list[StreamEvent]) -> None:
        # An unreadable line before the start belongs to a body that is not a stream.
        if name != UNREADABLE or self._has_started:
            self._decode_event(data, events)

    def _decode_event(self, data: bytes, events: list[StreamEvent]) -> None:
        """Decode the data of an event by its type; unknown types are skipped."""
        if self._end is not None:
            return
        if data.strip() == b"[DONE]":
            self._has_done_mark = True
            return
        wire = self._read_event(data, events)
        if wire is None:
            return
        decode = self._decoders.get(maybe_text(wire.get("type")) or "")
        if decode is not None:
            decode(self, wire, events)
        # Some servers send an error body instead of an event.
        elif wire.get("error") and "type" not in wire:
            self._decode_error(wire, events)

    def _decode_response(self, wire: Wire, events: list[StreamEvent]) -> None:
        # Later snapshots of the response have more keys and newer values.
        self._body |= maybe_object(wire.get("response"))
        self._begin_response(events)

    def _begin_response(self, events: list[StreamEvent]) -> ItemReporter:
        if self._reporter is None:
            response_id = maybe_text(self._body.get("id")) or None
            model = maybe_text(self._body.get("model"))
            self._scope = response_id or self._message_id
            ids = response_call_ids(self._context, self._scope, self._message_id)
            issuer = self._context.provider or PROTOCOL
            self._reporter = ItemReporter(self._message_id, ids, issuer)
            model_id = f"{self._provider}:{model}" if model else self._context.model
            form = dict(self._body)
            self._begin(events, model_id, response_id, protocol=PROTOCOL, original_form=form)
        return self._reporter

    def _decode_item_added(self, wire: Wire, events: list[StreamEvent]) -> None:
        item, index = dict(maybe_object(wire.get("item"))), maybe_count(wire.get("output_index"))
        earlier = self._by_id.get(maybe_text(item.get("id")) or "")
        # A repeated announcement must not start the item again without content.
        is_repeated = earlier is not None and earlier is self._by_index.get(
            -1 if index is None else index
        )
        if earlier is None or not is_repeated or earlier.is_done:
            self._add_item(item, index, events)

    def _add_item(self, wire: Wire, index: int | None, events: list[StreamEvent]) -> StreamItem:
        if wire.get("type") in (FUNCTION, CUSTOM):
            self._meter.add_call()
        else:
            self._meter.add_block()
        item = StreamItem(wire)
        self._items.append(item)
        self._by_index[len(self._items) - 1 if index is None else index] = item
        item_id = maybe_text(wire.get("id"))
        if item_id:
            self._by_id[item_id] = item
        self._begin_response(events).add_item(item, events)
        return item

    def _item_of(self, wire: Wire, kind: str, events: list[StreamEvent]) -> StreamItem:
        """Return the item that an event belongs to; an item without announcement is created."""
        # OpenAI sends an id and an index; other servers omit either, or the announcement.
        index, item_id = maybe_count(wire.get("output_index")), maybe_text(wire.get("item_id"))
        item = self._by_id.get(item_id or "")
        if item is None and index is not None:
            item = self._by_index.get(index)
        if item is None and index is None and item_id is None and self._items:
            item = self._items[-1]
        if item is not None:
            if kind and item.wire and "type" not in item.wire and not item.is_done:
                item.wire["type"] = kind
            return item
        new_item: Wire = {"type": kind}
        if kind == "message":
            new_item["role"] = "assistant"
        if item_id:
            new_item["id"] = item_id
        return self._add_item(new_item, index, events)

    def _decode_item_done(self, wire: Wire, events: list[StreamEvent]) -> None:
        final = dict(maybe_object(wire.get("item")))
        with_id = {**wire, "item_id": final.get("id") or wire.get("item_id")}
        item = self._item_of(with_id, maybe_text(final.get("type")) or "", events)
        # Some servers end an item twice, others reuse the index for a new one.
        if item.is_done and item.wire == final:
            return
        if item.is_done:
            item = self._add_item(final, maybe_count(wire.get("output_index")), events)
        if "type" not in final:
            # Some servers do not repeat the keys of the announcement.
            final = {**item.to_wire(), **final}
        self._begin_response(events).finish_item(item, final, events)

    def _decode_part(self, wire: Wire, events: list[StreamEvent]) -> None:
        item = self._item_of(wire, "message", events)
        if item.kind == "message" and not item.is_done:
            index = maybe_count(wire.get("content_index")) or 0
            item.parts[index] = dict(maybe_object(wire.get("part")))

    def _decode_text(self, wire: Wire, events: list[StreamEvent], *, kind: str) -> None:
        item = self._item_of(wire, "message", events)
        index = maybe_count(wire.get("content_index")) or 0
        if not item.is_done:
            item.part_types[index] = kind
            self._begin_response(events).add_text(item, index, _delta_of(wire), events)

    def _decode_annotation(self, wire: Wire, events: list[StreamEvent]) -> None:
        """Add an annotation to a text part, also if its item is already complete."""
        item = self._item_of(wire, "message", events)
        if not item.is_done:
            part = item.parts.setdefault(maybe_count(wire.get("content_index")) or 0, {})
            if not isinstance(part.get("annotations"), list):
                part["annotations"] = []
            maybe_list(part["annotations"]).append(wire.get("annotation"))
            return
        # Gateways may send citations after the text, when the upstream response is complete.
        content = maybe_list(item.wire.get("content"))
        index = maybe_count(wire.get("content_index")) or 0
        annotations = (
            maybe_object(content[index]).get("annotations") if index < len(content) else None
        )
        number = maybe_count(wire.get("annotation_index"))
        if isinstance(annotations, list) and (
            number is None or number >= len(maybe_list(annotations))
        ):
            maybe_list(annotations).append(wire.get("annotation"))

    def _decode_summary(self, wire: Wire, events: list[StreamEvent]) -> None:
        item = self._item_of(wire, "reasoning", events)
        if not item.is_done:
            index = maybe_count(wire.get("summary_index")) or 0
            addition = item.add_summary(index, _delta_of(wire))
            self._begin_response(events).report_thinking(item, addition, events)

    def _decode_reasoning(self, wire: Wire, events: list[StreamEvent]) -> None:
        item = self._item_of(wire, "reasoning", events)
        if not item.is_done:
            addition = item.add_reasoning(_delta_of(wire))
            self._begin_response(events).report_thinking(item, addition, events)

    def _decode_arguments(self, wire: Wire, events: list[StreamEvent], *, kind: str) -> None:
        item = self._item_of(wire, kind, events)
        if not item.is_done:
            piece = _delta_of(wire)
            self._meter.add_arguments(item, len(piece))
            self._begin_response(events).add_arguments(item, piece, events)

    def _decode_end(self, wire: Wire, events: list[StreamEvent]) -> None:
        # Some servers omit the final output, others the events before it (T136).
        self._decode_response(wire, events)
        output = self._finish_items(maybe_list(self._body.get("output")), events)
        tier = self._body.get("service_tier")
        self._add_usage(decode_usage(self._body.get("usage"), self._context, tier), events)
        status = self._body.get("status")
        if status in _FAILED_STATUSES or wire.get("type") == "response.failed":
            message = {"message": f"the response was {status or 'failed'}"}
            error = self._body if self._body.get("error") else message
            self._fail(decode_error(error, self._context.status, self._provider), events, output)
        else:
            self._end_with(self._decode_output(output, None), events)

    def _finish_items(self, output: list[Any], events: list[StreamEvent]) -> list[Any]:
        """Return the final items of the response, and end the items without an end event."""
        reporter = self._begin_response(events)
        items, final_items = tuple(self._items), list[StreamItem]()
        remaining: dict[StreamItem, None] = dict.fromkeys(items)
        # The unmatched items by type, the next one last: a linear search for each final item would
        # be quadratic.
        by_kind: dict[str, list[StreamItem]] = {}
        by_call: dict[str, StreamItem] = {}
        for item in reversed(items):
            by_kind.setdefault(item.kind, []).append(item)
            by_call[maybe_text(item.wire.get("call_id")) or ""] = item
        for index, final in enumerate(map(maybe_object, output)):
            item = self._by_id.get(maybe_text(final.get("id")) or "")
            # Some servers change the id of an item in the final response: then it is matched by
            # call id or type.
            if item is None and final.get("call_id"):
                item = by_call.get(maybe_text(final["call_id"]) or "")
            if item is None or item not in remaining:
                same_kind = by_kind.get(maybe_text(final.get("type")) or "", [])
                while same_kind and same_kind[-1] not in remaining:
                    same_kind.pop()
                item = same_kind[-1] if same_kind else None
            if item is None:
                item = self._add_item(dict(final), len(self._items) + index, events)
            else:
                del remaining[item]
            if item.is_done:
                item.add_final_keys(final)
            reporter.finish_item(item, final, events)
            final_items.append(item)
        for item in remaining:
            reporter.finish_item(item, item.to_wire(), events)
        # Events out of order may have started an item twice. Only the final one is used, because
        # OpenAI rejects a history with one id on two items with 400.
        ids = {maybe_text(item.wire.get("id")) for item in final_items} - {None}
        others = [item for item in remaining if maybe_text(item.wire.get("id")) not in ids]
        # Items that the final response omits are not removed: the client has received them, and a
        # call among them may already be running.
        return list(_with_unique_ids(_merged(final_items, others, items)))

    def _decode_error(self, wire: Wire, events: list[StreamEvent]) -> None:
        keys = {key: value for key, value in wire.items() if key != "type"}
        body = wire if isinstance(wire.get("error"), dict) else {"error": keys}
        self._fail(decode_error(body, self._context.status, self._provider), events)

    def _fail(
        self, error: ProviderError, events: list[StreamEvent], output: list[Any] | None = None
    ) -> None:
        self._begin_response(events)
        if output is None:
            output = self._finish_items([], events)
        message = self._decode_output(output, MessageStatus.ERROR)
        failed = with_status(message, MessageStatus.ERROR, StopReason.ERROR)
        self._end = stream_error(self._message_id, error, failed)
        events.append(self._end)

    def _build_message(self, status: MessageStatus) -> Message:
        return self._decode_output([item.to_wire() for item in self._items], status)

    def _decode_output(self, output: list[Any], status: MessageStatus | None) -> Message:
        return decode_body(
            {**self._body, "output": output},
            self._context,
            message_id=self._message_id,
            status=status,
            scope=self._scope,
        )

    # A table of the class: bound methods in each decoder would be reference cycles, and an ended
    # stream would stay in memory until a collection of the oldest generation.
    _decoders: ClassVar[Mapping[str, Callable[[Any, Wire, list[StreamEvent]], None]]] = {
        "response.created": _decode_response,
        "response.queued": _decode_response,
        "response.in_progress": _decode_response,
        "response.completed": _decode_end,
        "response.incomplete": _decode_end,
        "response.failed": _decode_end,
        "response.cancelled": _decode_end,
        "response.output_item.added": _decode_item_added,
        "response.output_item.done": _decode_item_done,
        "response.content_part.added": _decode_part,
        "response.content_part.done": _decode_part,
        "response.output_text.delta": partial(_decode_text, kind="output_text"),
        "response.output_text.annotation.added": _decode_annotation,
        "response.refusal.delta": partial(_decode_text, kind="refusal"),
        "response.reasoning_summary_text.delta": _decode_summary,
        "response.reasoning_text.delta": _decode_reasoning,
        "response.function_call_arguments.delta": partial(_decode_arguments, kind=FUNCTION),
        "response.custom_tool_call_input.delta": partial(_decode_arguments, kind=CUSTOM),
        "error": _decode_error,
    }


def _merged(
    final: Sequence[StreamItem], others: Iterable[StreamItem], order: Sequence[StreamItem]
) -> Iterator[StreamItem]:
    """Yield final items, and `others` at their positions in the stream, which `order` gives."""
    positions = {item: position for position, item in enumerate(order)}
    remaining = deque(others)
    for item in final:
        position = positions.get(item, len(order))
        while remaining and positions[remaining[0]] < position:
            yield remaining.popleft()
        yield item
    yield from remaining


def _delta_of(wire: Wire) -> str:
    return maybe_text(wire.get("delta")) or ""


def _with_unique_ids(items: Iterable[StreamItem]) -> Iterator[Wire]:
    """Yield items with unique ids: OpenAI rejects a history with repeated ids (T10)."""
    counts: dict[tuple[str, str], int] = {}
    for item in items:
        wire = item.wire
        # A tool output has the `call_id` of its call, so that only those of calls must be unique.
        for key in ("id", "call_id") if item.kind.endswith("_call") else ("id",):
            value = maybe_text(wire.get(key))
            if value is None:
                continue
            count = counts[key, value] = counts.get((key, value), 0) + 1
            if count > 1:
                wire = {**wire, key: f"{value}_{count}"}
        yield wire
