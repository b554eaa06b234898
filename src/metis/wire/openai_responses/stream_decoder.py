"""Streams of OpenAI Responses, decoded: bytes to stream events.

The decoder collects the items of the wire, and the final message is decoded from them as from a
plain response, so that the two cannot differ. The final form of an item is that of the event that
ends it, or of the final response: the sealed part in `output_item.added` may be incomplete (T65).

Stream events name blocks by their index, which never decreases. So of several items that come at
once only the first is reported as it grows. The others wait, and are then reported in one piece.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.errors import ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus, StopReason
from metis.streaming import (
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
from metis.wire.errors import has_failed, stream_error
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.openai_errors import decode_error
from metis.wire.openai_responses.blocks import PROTOCOL, read_json
from metis.wire.openai_responses.items import OutputRun, StreamItem, is_plain_item
from metis.wire.openai_responses.response import (
    DEFAULT_PROVIDER,
    decode_body,
    decode_usage,
    response_call_ids,
)
from metis.wire.openai_responses.tool_calls import CUSTOM, FUNCTION, read_call
from metis.wire.response import with_status
from metis.wire.stream_decoder import SseStreamDecoder
from metis.wire.tool_ids import CallIds

_FAILED_STATUSES = ("failed", "cancelled")


class ItemReporter:
    """Reports items one after the other, in the order in which they began."""

    def __init__(self, message_id: str, ids: CallIds, issuer: str) -> None:
        self.current: StreamItem | None = None
        """The item that is reported as it grows."""
        self._message_id = message_id
        self._ids = ids
        self._issuer = issuer
        self._waiting: deque[StreamItem] = deque()
        self._next_index = 0

    def add_item(self, item: StreamItem, events: list[StreamEvent]) -> None:
        """Add an item that begins."""
        if self.current is None:
            self._make_current(item, events)
        else:
            self._waiting.append(item)

    def add_text(self, item: StreamItem, index: int, piece: str, events: list[StreamEvent]) -> None:
        """Add a piece of a text in a message."""
        pieces = item.text_pieces.get(index)
        form: Wire | None = None
        if pieces is None:
            pieces = item.text_pieces[index] = []
            item.block_count += 1
            form = item.announcement(index)
        pieces.append(piece)
        if item is self.current and index == item.block_count - 1:
            first = item.first_index
            events.append(TextDelta(self._message_id, first + index, piece, original_form=form))

    def report_thinking(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        """Report a piece of thinking that was added to an item."""
        if item is self.current and piece:
            form = None if item.reported_thinking else item.announcement()
            index = item.first_index
            events.append(ThinkingDelta(self._message_id, index, piece, original_form=form))
            item.reported_thinking += len(piece)

    def add_arguments(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        """Add a piece of the arguments of a call."""
        item.argument_pieces.append(piece)
        self._report_arguments(item, piece, events)

    def _report_arguments(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        # The input of a custom tool is free text, and deltas are pieces of JSON.
        if item is self.current and item.tool_use_id and item.kind == FUNCTION:
            events.append(
                ToolUseInputDelta(self._message_id, item.first_index, item.tool_use_id, piece)
            )

    def finish_item(self, item: StreamItem, wire: Wire, events: list[StreamEvent]) -> None:
        """Report the rest of an item that is complete, then the items that waited for it."""
        if item.is_done:
            return
        item.wire, item.is_done = wire, True
        while self.current is not None and self.current.is_done:
            self._report_rest(self.current, events)
            self.current.free_pieces()
            self.current = None
            if self._waiting:
                self._make_current(self._waiting.popleft(), events)

    def _make_current(self, item: StreamItem, events: list[StreamEvent]) -> None:
        """Begin to report an item, with all that has come of it."""
        self.current = item
        item.first_index = self._next_index
        if item.is_done:
            item.text_pieces = {}  # none of them was reported: `_report_rest` has it all to do
            return
        if item.kind in (FUNCTION, CUSTOM):
            self._start_call(item, events)
            if item.argument_pieces:
                self._report_arguments(item, "".join(item.argument_pieces), events)
        for index, pieces in sorted(item.text_pieces.items()):
            form, block, text = item.announcement(index), item.first_index + index, "".join(pieces)
            events.append(TextDelta(self._message_id, block, text, original_form=form))
        self.report_thinking(item, item.readable_text(), events)

    def _start_call(self, item: StreamItem, events: list[StreamEvent]) -> None:
        wire_id, name = maybe_text(item.wire.get("call_id")), maybe_text(item.wire.get("name"))
        if wire_id and name:
            item.tool_use_id = self._ids.of_call(wire_id)
            events.append(
                ToolUseStart(
                    self._message_id, item.first_index, item.tool_use_id, name, wire_id, item.wire
                )
            )

    def _report_rest(self, item: StreamItem, events: list[StreamEvent]) -> None:
        """Report what is missing of an item that is complete."""
        message_id = self._message_id
        call = read_call(item.wire) if item.tool_use_id else None
        if call is not None:
            _, final_input, invalid = call
            index, tool_use_id = item.first_index, item.tool_use_id
            end = ToolUseEnd(message_id, index, tool_use_id, final_input, invalid, item.wire)
            events.append(end)
            self._next_index = item.first_index + 1
            return
        run = OutputRun(self._ids, self._issuer)
        run.add(item.wire)
        count = len(events)
        for index, block in enumerate(run.blocks, item.first_index):
            match block:
                case TextBlock():
                    pieces = item.text_pieces.get(index - item.first_index)
                    length = _common_length(pieces or (), block.text)
                    if pieces is None or 0 <= length < len(block.text):
                        rest, part = block.text[length:], index - item.first_index
                        form = item.announcement(part) if pieces is None else None
                        events.append(TextDelta(message_id, index, rest, original_form=form))
                case ThinkingBlock():
                    rest = block.text[item.reported_thinking :]
                    if rest or block.signature or not item.reported_thinking:
                        form = None if item.reported_thinking else item.announcement()
                        delta = ThinkingDelta(
                            message_id,
                            index,
                            rest,
                            block.signature,
                            original_form=form,
                            id=block.id,
                        )
                        events.append(delta)
                case ToolUseBlock():
                    wire_id = maybe_text(item.wire.get("call_id"))
                    start = ToolUseStart(
                        message_id, index, block.id, block.name, wire_id, item.wire
                    )
                    events.append(start)
                    end = ToolUseEnd(message_id, index, block.id, block.input, block.invalid)
                    events.append(end)
                case RedactedThinkingBlock() if item.reported_thinking:
                    events.append(ThinkingDelta(message_id, index, "", block.data))
                case _:
                    events.append(BlockAdded(message_id, index, block, item.wire))
        if run.blocks and not is_plain_item(item.wire):
            self._report_final_form(item, run.blocks[-1], events, is_open=len(events) > count)
        self._next_index = item.first_index + max(len(run.blocks), item.block_count)

    def _report_final_form(
        self, item: StreamItem, block: ContentBlock, events: list[StreamEvent], *, is_open: bool
    ) -> None:
        """Report how the provider spelled an item at its end, with its last delta or after it."""
        form, last = {"item": item.wire}, events[-1] if is_open else None
        index = item.first_index + max(item.block_count - 1, 0)
        if isinstance(last, TextDelta | ThinkingDelta):
            events[-1] = replace(last, original_form={**(last.original_form or {}), **form})
        elif is_open:
            return
        elif isinstance(block, TextBlock):
            events.append(TextDelta(self._message_id, index, "", original_form=form))
        else:
            events.append(ThinkingDelta(self._message_id, index, "", original_form=form))


def _common_length(pieces: Sequence[str], text: str) -> int:
    """Return how much of a text the pieces are, without joining them; -1 if they differ."""
    length = 0
    for piece in pieces:
        if not text.startswith(piece, length):
            return -1
        length += len(piece)
    return length


class ResponsesStreamDecoder(SseStreamDecoder):
    """Decodes the stream of one response: feed it the bytes as they come, then finish."""

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
        """The response that its calls belong to, by the id that it had when it began."""

    def _end_early(self, events: list[StreamEvent]) -> None:
        body = None if self._has_begun else self._read_head()
        if body is not None and isinstance(body.get("output"), list) and not body.get("error"):
            self._decode_end({"response": body}, events)
        elif body is not None or (not self._has_begun and has_failed(self._context)):
            error = body if body is not None else self._head
            self._fail(decode_error(error, self._context.status, self._provider), events)
        elif self._has_done_mark and self._items:
            # Some servers end with `[DONE]` alone: complete, without a final response (T131).
            self._decode_end({"response": {"status": "completed"}}, events)
        else:
            super()._end_early(events)

    def _read_head(self) -> Wire | None:
        """Return the JSON object of a body that is not a stream."""
        try:
            body = maybe_object(read_json(self._head))
        except (ValueError, RecursionError):
            return None
        return body if "output" in body or "error" in body else None

    def _decode_frame(self, name: bytes, data: bytes, events: list[StreamEvent]) -> None:
        # Before the response begins, such a line belongs to a body that is not a stream.
        if name != UNREADABLE or self._has_begun:
            self._decode_event(data, events)

    def _decode_event(self, data: bytes, events: list[StreamEvent]) -> None:
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
        # Some servers send a bare error body in place of an event.
        elif wire.get("error") and "type" not in wire:
            self._decode_error(wire, events)

    def _decode_response(self, wire: Wire, events: list[StreamEvent]) -> None:
        # Later snapshots of the response have more keys, and newer values of the same.
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
        item = dict(maybe_object(wire.get("item")))
        self._add_item(item, maybe_count(wire.get("output_index")), events)

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
        """Return the item of an event; one that was never announced begins here."""
        # OpenAI sends both; other servers leave out the id, the index, or the announcement.
        index, item_id = maybe_count(wire.get("output_index")), maybe_text(wire.get("item_id"))
        item = self._by_id.get(item_id or "")
        if item is None and index is not None:
            item = self._by_index.get(index)
        if item is None and index is None and item_id is None and self._items:
            item = self._items[-1]
        if item is not None:
            return item
        new: Wire = {"type": kind}
        if kind == "message":
            new["role"] = "assistant"
        if item_id:
            new["id"] = item_id
        return self._add_item(new, index, events)

    def _decode_item_done(self, wire: Wire, events: list[StreamEvent]) -> None:
        final = dict(maybe_object(wire.get("item")))
        named = {**wire, "item_id": final.get("id") or wire.get("item_id")}
        item = self._item_of(named, maybe_text(final.get("type")) or "", events)
        # Some servers end an item twice, others reuse the index for a new one.
        if item.is_done and item.wire == final:
            return
        if item.is_done:
            item = self._add_item(final, maybe_count(wire.get("output_index")), events)
        if "type" not in final:
            # Some servers do not repeat what they announced.
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
        item = self._item_of(wire, "message", events)
        if not item.is_done:
            part = item.parts.setdefault(maybe_count(wire.get("content_index")) or 0, {})
            if not isinstance(part.get("annotations"), list):
                part["annotations"] = []
            maybe_list(part["annotations"]).append(wire.get("annotation"))
            return
        # Translating servers know citations only when the whole text has come.
        content = maybe_list(item.wire.get("content"))
        index = maybe_count(wire.get("content_index")) or 0
        notes = maybe_object(content[index]).get("annotations") if index < len(content) else None
        number = maybe_count(wire.get("annotation_index"))
        if isinstance(notes, list) and (number is None or number >= len(maybe_list(notes))):
            maybe_list(notes).append(wire.get("annotation"))

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
        # Some servers leave out the final output, others the events before it (T136).
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
        """Return the final items of the response; items that no event has ended end here."""
        reporter = self._begin_response(events)
        items, final_items = tuple(self._items), list[StreamItem]()
        remaining: dict[StreamItem, None] = dict.fromkeys(items)
        # Per type the items that may remain, the next one last: a search through all of them for
        # each final item would take quadratic time.
        by_kind: dict[str, list[StreamItem]] = {}
        by_call: dict[str, StreamItem] = {}
        for item in reversed(items):
            by_kind.setdefault(item.kind, []).append(item)
            by_call[maybe_text(item.wire.get("call_id")) or ""] = item
        for index, final in enumerate(map(maybe_object, output)):
            item = self._by_id.get(maybe_text(final.get("id")) or "")
            # Some servers give an item a new id in the final response: then its call or its type
            # decides.
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
            reporter.finish_item(item, final, events)
            final_items.append(item)
        for item in remaining:
            reporter.finish_item(item, item.to_wire(), events)
        # Events out of order may have begun an item twice: the final one counts, since OpenAI
        # answers 400 to a history with one id on two items.
        ids = {maybe_text(item.wire.get("id")) for item in final_items} - {None}
        others = [item for item in remaining if maybe_text(item.wire.get("id")) not in ids]
        # A final response that leaves items out does not revoke them: a client has read them, and a
        # call among them may run already.
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

    # Of the class, as bound methods in each decoder would be reference cycles: an ended stream
    # would stay in memory until a collection of the oldest generation.
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
    """Yield final items, and those that are missing among them where they were in the stream."""
    positions = {item: position for position, item in enumerate(order)}
    waiting = deque(others)
    for item in final:
        position = positions.get(item, len(order))
        while waiting and positions[waiting[0]] < position:
            yield waiting.popleft()
        yield item
    yield from waiting


def _delta_of(wire: Wire) -> str:
    return maybe_text(wire.get("delta")) or ""


def _with_unique_ids(items: Iterable[StreamItem]) -> Iterator[Wire]:
    """Yield items; one with the id of an earlier one gets another, as OpenAI refuses both (T10)."""
    counts: dict[tuple[str, str], int] = {}
    for item in items:
        wire = item.wire
        # A result has the id of its call; only calls must differ.
        for key in ("id", "call_id") if item.kind.endswith("_call") else ("id",):
            value = maybe_text(wire.get(key))
            if value is None:
                continue
            count = counts[key, value] = counts.get((key, value), 0) + 1
            if count > 1:
                wire = {**wire, key: f"{value}_{count}"}
        yield wire
