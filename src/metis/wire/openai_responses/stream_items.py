"""Items of a stream of OpenAI Responses: collected in any order, reported one after the other.

The block index of stream events never decreases. Therefore, of several items that are open at the
same time, only the events of the first are emitted immediately. The others are delayed until the
items before them are complete.
"""

from collections import deque
from collections.abc import Sequence
from operator import is_not
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.streaming import (
    BlockAdded,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.openai_responses.items import OutputRun, is_plain_item
from metis.wire.openai_responses.tool_calls import CUSTOM, FUNCTION, read_call
from metis.wire.tool_ids import CallIds

_PARAGRAPH = "\n\n"
_MAX_DEPTH = 8
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class StreamItem:
    """An output item while its events are received."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.is_done = False
        self.is_renamed = False
        """Whether the id at the end differs from that at the start, which OpenRouter does."""
        self.first_index = -1
        """The index of its first block; -1 as long as its events are delayed."""
        self.block_count = 0
        self.text_pieces: dict[int, list[str]] = {}
        self.unreported_pieces: dict[int, list[str]] = {}
        """The pieces of texts of an item that is not a message."""
        self.part_types: dict[int, str] = {}
        self.parts: dict[int, Wire] = {}
        self.argument_pieces: list[str] = []
        self.summary_pieces: dict[int, list[str]] = {}
        self.last_summary = -1
        """The number of the last part of the summary."""
        self.reasoning_pieces: list[str] = []
        self.reported_thinking = 0
        """How many characters of thinking events contain."""
        self.summary_overlap = 0
        """How many characters of the reasoning text to skip, because events contain a summary."""
        self.tool_use_id = ""
        """The tool_use_id of a call; empty until its start event."""

    @property
    def kind(self) -> str:
        """The type of the item."""
        return maybe_text(self.wire.get("type")) or ""

    def announcement(self, part: int | None = None) -> Wire:
        """Return the original form for the start of the item, or of a part of its content."""
        form: Wire = {"id": self.wire.get("id")}
        if part is None:
            return form
        content = maybe_list(self.wire.get("content"))
        wire = maybe_object(content[part]) if self.is_done and part < len(content) else {}
        kind = wire.get("type") or self.part_types.get(part)
        return {**form, "part": kind or "output_text"}

    def add_summary(self, index: int, piece: str) -> str:
        """Add a piece of a summary; return the text that it appends to the readable text."""
        pieces = self.summary_pieces.get(index)
        addition = piece
        if pieces is None:
            pieces = self.summary_pieces[index] = []
            addition = piece if self.last_summary < 0 else _PARAGRAPH + piece
        pieces.append(piece)
        # The reasoning text replaces its summary, and text cannot be inserted in the middle.
        if self.reasoning_pieces or index < self.last_summary:
            return ""
        self.last_summary = index
        return addition

    def add_reasoning(self, piece: str) -> str:
        """Add a piece of the reasoning text; return the part that extends the emitted text."""
        if not self.reasoning_pieces:
            self.summary_overlap = self.reported_thinking
        self.reasoning_pieces.append(piece)
        skipped = min(self.summary_overlap, len(piece))
        self.summary_overlap -= skipped
        return piece[skipped:]

    def readable_text(self) -> str:
        """Return the readable text of thinking so far."""
        if self.reasoning_pieces:
            return "".join(self.reasoning_pieces)
        return _PARAGRAPH.join(self._summaries())

    def _summaries(self) -> list[str]:
        return ["".join(self.summary_pieces[index]) for index in sorted(self.summary_pieces)]

    def to_wire(self) -> Wire:
        """Return the item as received so far, for servers that do not send its final form."""
        if self.is_done:
            return self.wire
        wire = dict(self.wire)
        if self.text_pieces or self.parts or self.unreported_pieces:
            indexes = sorted({*self.text_pieces, *self.parts, *self.unreported_pieces})
            wire["content"] = [self._part(index) for index in indexes]
        if self.summary_pieces:
            texts = self._summaries()
            wire["summary"] = [{"type": "summary_text", "text": text} for text in texts]
        if self.reasoning_pieces:
            text = "".join(self.reasoning_pieces)
            wire["content"] = [{"type": "reasoning_text", "text": text}]
        if self.argument_pieces:
            key = "input" if self.kind == CUSTOM else "arguments"
            wire[key] = "".join(self.argument_pieces)
        return wire

    def add_final_keys(self, final: Wire) -> None:
        """Add keys of the final response that are missing or empty in a complete item.

        Existing values are not replaced: clients send back the values that they received first.
        """
        self.wire = _with_missing(self.wire, final)
        if self.wire.get("status") == "in_progress" and final.get("status"):
            self.wire = {**self.wire, "status": final["status"]}

    def free_pieces(self) -> None:
        """Release the pieces of a complete item, whose content is also in its final form."""
        self.text_pieces, self.unreported_pieces, self.summary_pieces = {}, {}, {}
        self.argument_pieces, self.reasoning_pieces = [], []

    def _part(self, index: int) -> Wire:
        part = dict(self.parts.get(index, {}))
        pieces = self.text_pieces.get(index) or self.unreported_pieces.get(index, ())
        text = "".join(pieces)
        if self.part_types.get(index) == "refusal" or part.get("type") == "refusal":
            return {**part, "type": "refusal", "refusal": part.get("refusal") or text}
        annotations = maybe_list(part.get("annotations"))
        keys: Wire = {"type": "output_text", **part, "annotations": annotations}
        return {**keys, "text": text or part.get("text") or ""}


class ItemReporter:
    """Emits the events of items one after the other, in the order in which they started."""

    def __init__(self, message_id: str, ids: CallIds, issuer: str) -> None:
        self.current: StreamItem | None = None
        """The item whose events are emitted immediately."""
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
        if item.kind != "message":
            # An item of another type is reported when it is complete, with this text in it.
            item.unreported_pieces.setdefault(index, []).append(piece)
            return
        if pieces is None:
            pieces = item.text_pieces[index] = []
            item.block_count += 1
            form = item.announcement(index)
        pieces.append(piece)
        if item is self.current and index == item.block_count - 1:
            first = item.first_index
            events.append(TextDelta(self._message_id, first + index, piece, original_form=form))

    def report_thinking(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        """Append the event for a piece of thinking that was added to an item."""
        if item is self.current and piece and item.kind == "reasoning":
            form = None if item.reported_thinking else item.announcement()
            index = item.first_index
            events.append(ThinkingDelta(self._message_id, index, piece, original_form=form))
            item.reported_thinking += len(piece)

    def add_arguments(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        """Add a piece of the arguments of a call."""
        item.argument_pieces.append(piece)
        self._report_arguments(item, piece, events)

    def _report_arguments(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        # The input of a custom tool is free text, but input deltas are pieces of JSON.
        if item is self.current and item.tool_use_id and item.kind == FUNCTION:
            events.append(
                ToolUseInputDelta(self._message_id, item.first_index, item.tool_use_id, piece)
            )

    def finish_item(self, item: StreamItem, wire: Wire, events: list[StreamEvent]) -> None:
        """Complete an item: append its remaining events, then those of the delayed items."""
        if item.is_done:
            return
        item.is_renamed = item.wire.get("id") != wire.get("id")
        item.wire, item.is_done = wire, True
        while self.current is not None and self.current.is_done:
            self._report_remaining(self.current, events)
            self.current.free_pieces()
            self.current = None
            if self._waiting:
                self._make_current(self._waiting.popleft(), events)

    def _make_current(self, item: StreamItem, events: list[StreamEvent]) -> None:
        """Start emitting the events of an item, beginning with the data received so far."""
        self.current = item
        item.first_index = self._next_index
        if item.is_done:
            item.text_pieces = {}  # no piece has an event: `_report_remaining` emits the whole text
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

    def _report_remaining(self, item: StreamItem, events: list[StreamEvent]) -> None:
        """Append the events for the content of a complete item that has none."""
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
        # Emitted deltas cannot be retracted if the final item contradicts them: then the final form
        # is reported in addition.
        is_contradicted = item.is_renamed or len(item.text_pieces) > len(run.blocks)
        for index, block in enumerate(run.blocks, item.first_index):
            match block:
                case TextBlock():
                    part = index - item.first_index
                    is_reported = self._report_remaining_text(item, part, block.text, events)
                    is_contradicted = is_contradicted or not is_reported
                case ThinkingBlock():
                    self._report_remaining_thinking(item, index, block, events)
                    if not block.text.startswith(item.readable_text()):
                        is_contradicted = True
                case ToolUseBlock():
                    wire_id = maybe_text(item.wire.get("call_id"))
                    start = ToolUseStart(
                        message_id, index, block.id, block.name, wire_id, item.wire
                    )
                    events.append(start)
                    end = ToolUseEnd(
                        message_id, index, block.id, block.input, block.invalid, item.wire
                    )
                    events.append(end)
                case RedactedThinkingBlock() if item.reported_thinking:
                    events.append(ThinkingDelta(message_id, index, "", block.data))
                case _:
                    events.append(BlockAdded(message_id, index, block, item.wire))
        if run.blocks and (is_contradicted or not is_plain_item(item.wire)):
            self._report_final_form(item, run.blocks[-1], events, is_open=len(events) > count)
        self._next_index = item.first_index + max(len(run.blocks), item.block_count)

    def _report_remaining_text(
        self, item: StreamItem, part: int, text: str, events: list[StreamEvent]
    ) -> bool:
        """Append the missing end of a text part; return whether its events now add up to `text`."""
        pieces = item.text_pieces.get(part)
        length = _common_length(pieces or (), text)
        is_incomplete = pieces is None or length < len(text)
        # Only the last part can be extended, because block indexes never decrease.
        is_closed = part < item.block_count - 1
        if pieces is None or (length >= 0 and is_incomplete and not is_closed):
            form = item.announcement(part) if pieces is None else None
            index = item.first_index + part
            events.append(TextDelta(self._message_id, index, text[length:], original_form=form))
        return length >= 0 and not (is_closed and is_incomplete)

    def _report_remaining_thinking(
        self, item: StreamItem, index: int, block: ThinkingBlock, events: list[StreamEvent]
    ) -> None:
        """Append the missing end and the signature of thinking."""
        remaining = block.text[item.reported_thinking :]
        if remaining or block.signature or not item.reported_thinking:
            form = None if item.reported_thinking else item.announcement()
            delta = ThinkingDelta(
                self._message_id,
                index,
                remaining,
                block.signature,
                original_form=form,
                id=block.id,
            )
            events.append(delta)

    def _report_final_form(
        self, item: StreamItem, block: ContentBlock, events: list[StreamEvent], *, is_open: bool
    ) -> None:
        """Add the final JSON of an item to its last delta, or append an empty delta with it."""
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


def _with_missing(wire: Any, final: Any, depth: int = 0) -> Any:
    """Return a JSON value with the keys of `final` that are missing or empty in it."""
    if depth > _MAX_DEPTH:
        return wire
    if isinstance(wire, dict) and isinstance(final, dict):
        one, other = cast("Wire", wire), cast("Wire", final)
        changes: Wire = {}
        for key, value in other.items():
            old = one.get(key)
            merged = value if old in _EMPTY else _with_missing(old, value, depth + 1)
            if merged is not old and merged not in _EMPTY:
                changes[key] = merged
        return {**one, **changes} if changes else one
    if isinstance(wire, list) and isinstance(final, list):
        items, others = cast("list[Any]", wire), cast("list[Any]", final)
        if len(items) == len(others):
            pairs = zip(items, others, strict=True)
            filled = [_with_missing(*pair, depth + 1) for pair in pairs]
            return filled if any(map(is_not, filled, items)) else items
    return cast("Any", wire)


def _common_length(pieces: Sequence[str], text: str) -> int:
    """Return the length of the prefix of a text that the pieces form; -1 if they differ."""
    length = 0
    for piece in pieces:
        if not text.startswith(piece, length):
            return -1
        length += len(piece)
    return length
