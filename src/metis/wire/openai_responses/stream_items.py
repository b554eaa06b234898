"""Items of a stream of OpenAI Responses: collected as they come, and reported one after the other.

Stream events name blocks by their index, which never decreases. So of several items that come at
once only the first is reported as it grows. The others wait, and are then reported in one piece.
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
    """An output item that is coming in."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.is_done = False
        self.is_renamed = False
        """Whether it ended with another id than it began with, as OpenRouter lets some."""
        self.first_index = -1
        """The index of its first block; -1 while it waits for other items."""
        self.block_count = 0
        self.text_pieces: dict[int, list[str]] = {}
        self.part_types: dict[int, str] = {}
        self.parts: dict[int, Wire] = {}
        self.argument_pieces: list[str] = []
        self.summary_pieces: dict[int, list[str]] = {}
        self.last_summary = -1
        """The number of the last part of the summary."""
        self.reasoning_pieces: list[str] = []
        self.reported_thinking = 0
        """How many characters of thinking were reported."""
        self.summary_overlap = 0
        """How many characters of the reasoning text to skip: a summary was reported for them."""
        self.tool_use_id = ""
        """Our id of a call, once it was reported."""

    @property
    def kind(self) -> str:
        """The type of the item."""
        return maybe_text(self.wire.get("type")) or ""

    def announcement(self, part: int | None = None) -> Wire:
        """Return how the item, or a part of its content, was announced."""
        form: Wire = {"id": self.wire.get("id")}
        if part is None:
            return form
        content = maybe_list(self.wire.get("content"))
        wire = maybe_object(content[part]) if self.is_done and part < len(content) else {}
        kind = wire.get("type") or self.part_types.get(part)
        return {**form, "part": kind or "output_text"}

    def add_summary(self, index: int, piece: str) -> str:
        """Add a piece of a summary; return what it adds at the end of the readable text."""
        pieces = self.summary_pieces.get(index)
        addition = piece
        if pieces is None:
            pieces = self.summary_pieces[index] = []
            addition = piece if self.last_summary < 0 else _PARAGRAPH + piece
        pieces.append(piece)
        # The reasoning itself replaces its summary, and text in the middle cannot be reported.
        if self.reasoning_pieces or index < self.last_summary:
            return ""
        self.last_summary = index
        return addition

    def add_reasoning(self, piece: str) -> str:
        """Add a piece of the reasoning text; return what of it was not reported as a summary."""
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
        """Return the item as far as it has come, for servers that do not send it complete."""
        if self.is_done:
            return self.wire
        wire = dict(self.wire)
        if self.text_pieces or self.parts:
            indexes = sorted({*self.text_pieces, *self.parts})
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
        """Add what the final response says of a complete item, and the event that ended it did not.

        Where both say something the earlier counts: clients send back what they have read first.
        """
        self.wire = _with_missing(self.wire, final)
        if self.wire.get("status") == "in_progress" and final.get("status"):
            self.wire = {**self.wire, "status": final["status"]}

    def free_pieces(self) -> None:
        """Free the pieces of a complete item, so that a long response is in memory once."""
        self.text_pieces, self.summary_pieces = {}, {}
        self.argument_pieces, self.reasoning_pieces = [], []

    def _part(self, index: int) -> Wire:
        part = dict(self.parts.get(index, {}))
        text = "".join(self.text_pieces.get(index, ()))
        if self.part_types.get(index) == "refusal" or part.get("type") == "refusal":
            return {**part, "type": "refusal", "refusal": part.get("refusal") or text}
        notes = maybe_list(part.get("annotations"))
        keys: Wire = {"type": "output_text", **part, "annotations": notes}
        return {**keys, "text": text or part.get("text") or ""}


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
        item.is_renamed = item.wire.get("id") != wire.get("id")
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
        # Deltas that contradict the end of their item: events cannot take back what they said.
        is_other = item.is_renamed or len(item.text_pieces) > len(run.blocks)
        for index, block in enumerate(run.blocks, item.first_index):
            match block:
                case TextBlock():
                    pieces = item.text_pieces.get(index - item.first_index)
                    length = _common_length(pieces or (), block.text)
                    is_late = index - item.first_index < item.block_count - 1
                    is_missing = pieces is None or length < len(block.text)
                    # Only the last part can still grow.
                    is_other = is_other or length < 0 or (is_late and is_missing)
                    if pieces is None or (length >= 0 and is_missing and not is_late):
                        rest, part = block.text[length:], index - item.first_index
                        form = item.announcement(part) if pieces is None else None
                        events.append(TextDelta(message_id, index, rest, original_form=form))
                case ThinkingBlock():
                    rest = block.text[item.reported_thinking :]
                    is_other = is_other or not block.text.startswith(item.readable_text())
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
                    end = ToolUseEnd(
                        message_id, index, block.id, block.input, block.invalid, item.wire
                    )
                    events.append(end)
                case RedactedThinkingBlock() if item.reported_thinking:
                    events.append(ThinkingDelta(message_id, index, "", block.data))
                case _:
                    events.append(BlockAdded(message_id, index, block, item.wire))
        if run.blocks and (is_other or not is_plain_item(item.wire)):
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


def _with_missing(wire: Any, final: Any, depth: int = 0) -> Any:
    """Return a JSON value with the keys of another that it lacks, or has empty values for."""
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
    """Return how much of a text the pieces are, without joining them; -1 if they differ."""
    length = 0
    for piece in pieces:
        if not text.startswith(piece, length):
            return -1
        length += len(piece)
    return length
