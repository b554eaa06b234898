"""Output items of a stream while they are incomplete, and the events that report them."""

from collections.abc import Mapping, Sequence
from typing import Any

from metis.canonical.blocks import RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolUseBlock
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
from metis.wire.openai_responses.items import OutputRun
from metis.wire.openai_responses.tool_calls import CUSTOM, FUNCTION, read_call
from metis.wire.tool_ids import CallIds

_BETWEEN = "\n\n"


class StreamItem:
    """One output item that is still coming in."""

    __slots__ = (
        "arguments",
        "base",
        "blocks",
        "call_id",
        "clear",
        "kinds",
        "last",
        "parts",
        "settled",
        "spoken",
        "summary",
        "texts",
        "thought",
        "wire",
    )

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.base = -1
        """The index of its first block; none yet while it waits for its turn."""
        self.blocks = 0
        self.texts: dict[int, list[str]] = {}
        self.kinds: dict[int, str] = {}
        self.parts: dict[int, Wire] = {}
        self.arguments: list[str] = []
        self.summary: dict[int, list[str]] = {}
        self.last = -1
        """The number of the last part of the summary."""
        self.clear: list[str] = []
        self.thought = 0
        """How many characters of a thought were told."""
        self.spoken = 0
        """How many characters of a summary were told, in whose place its words come now."""
        self.call_id = ""
        """Our id of a call that was told of."""
        self.settled = False

    @property
    def kind(self) -> str:
        """The kind of the item."""
        return maybe_text(self.wire.get("type")) or ""

    def add_summary(self, index: int, piece: str) -> str:
        """Add a piece of a summary; what it adds to the end of what can be read of the thought."""
        pieces = self.summary.get(index)
        if pieces is None:
            pieces = self.summary[index] = []
            added = piece if self.last < 0 else _BETWEEN + piece
        else:
            added = piece
        pieces.append(piece)
        if self.clear or index < self.last:
            return ""  # the words themselves speak, or others stand behind it
        self.last = index
        return added

    def add_clear(self, piece: str) -> str:
        """Add a piece of the words themselves; what was told of a summary is not told again."""
        if not self.clear:
            self.spoken = self.thought
        self.clear.append(piece)
        known = min(self.spoken, len(piece))
        self.spoken -= known
        return piece[known:]

    def readable(self) -> str:
        """What can be read of a thought so far."""
        if self.clear:
            return "".join(self.clear)
        return _BETWEEN.join("".join(self.summary[index]) for index in sorted(self.summary))

    def whole(self) -> Wire:
        """The item as far as it has come, for servers that do not send it whole."""
        if self.settled:
            return self.wire
        wire = dict(self.wire)
        if self.texts or self.parts:
            wire["content"] = [self._part(index) for index in sorted({*self.texts, *self.parts})]
        if self.summary:
            found = ("".join(self.summary[index]) for index in sorted(self.summary))
            wire["summary"] = [{"type": "summary_text", "text": text} for text in found]
        if self.clear:
            wire["content"] = [{"type": "reasoning_text", "text": "".join(self.clear)}]
        if self.arguments:
            wire["input" if self.kind == CUSTOM else "arguments"] = "".join(self.arguments)
        return wire

    def forget_pieces(self) -> None:
        """Let go of what came piece by piece: the whole item has it all, and is held once."""
        self.texts, self.summary = {}, {}
        self.arguments, self.clear = [], []

    def _part(self, index: int) -> Wire:
        part = dict(self.parts.get(index, {}))
        text = "".join(self.texts.get(index, ()))
        if self.kinds.get(index) == "refusal" or part.get("type") == "refusal":
            return {**part, "type": "refusal", "refusal": part.get("refusal") or text}
        notes = maybe_list(part.get("annotations"))
        own: Wire = {"type": "output_text", **part, "annotations": notes}
        return {**own, "text": text or part.get("text") or ""}


class ItemReporter:
    """Tells of growing items, one after the other, in the order in which they came."""

    def __init__(self, message_id: str, ids: CallIds, issuer: str) -> None:
        self.front: StreamItem | None = None
        self._id = message_id
        self._ids = ids
        self._issuer = issuer
        self._waiting: list[StreamItem] = []
        self._ready: dict[int, Wire] = {}
        self._next = 0

    def add(self, item: StreamItem, events: list[StreamEvent]) -> None:
        """An item begins."""
        if self.front is None:
            self._lead(item, events)
        else:
            self._waiting.append(item)

    def text(self, item: StreamItem, index: int, piece: str, events: list[StreamEvent]) -> None:
        """More text of a message."""
        pieces = item.texts.get(index)
        if pieces is None:
            pieces = item.texts[index] = []
            item.blocks += 1
        pieces.append(piece)
        if item is self.front and index == item.blocks - 1:
            events.append(TextDelta(self._id, item.base + index, piece))

    def thought(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        """More of a thought; it is in the item already."""
        if item is self.front and piece:
            events.append(ThinkingDelta(self._id, item.base, piece))
            item.thought += len(piece)

    def arguments(self, item: StreamItem, piece: str, events: list[StreamEvent]) -> None:
        """More of the arguments of a call."""
        item.arguments.append(piece)
        if item is self.front and item.call_id and item.kind == FUNCTION:
            events.append(ToolUseInputDelta(self._id, item.base, item.call_id, piece))

    def settle(self, item: StreamItem, wire: Wire, events: list[StreamEvent]) -> None:
        """An item is whole: tell what was not told of it, then of those that waited for it."""
        if item.settled:
            return
        item.wire, item.settled = wire, True
        self._ready[id(item)] = wire
        while self.front is not None and id(self.front) in self._ready:
            done = self.front
            self._tell_rest(done, self._ready.pop(id(done)), events)
            done.forget_pieces()
            self.front = None
            if self._waiting:
                self._lead(self._waiting.pop(0), events)

    def _lead(self, item: StreamItem, events: list[StreamEvent]) -> None:
        """Make an item the one that is told of, and tell what had come of it."""
        self.front = item
        item.base = self._next
        if item.settled:
            item.texts = {}  # nothing was told of it yet: all of it is the rest
            return
        if item.kind in (FUNCTION, CUSTOM):
            self._start_call(item, item.wire, events)
            if item.call_id and item.arguments and item.kind == FUNCTION:
                piece = "".join(item.arguments)
                events.append(ToolUseInputDelta(self._id, item.base, item.call_id, piece))
        for index, pieces in sorted(item.texts.items()):
            events.append(TextDelta(self._id, item.base + index, "".join(pieces)))
        self.thought(item, item.readable(), events)

    def _start_call(self, item: StreamItem, wire: Wire, events: list[StreamEvent]) -> None:
        theirs, name = maybe_text(wire.get("call_id")), maybe_text(wire.get("name"))
        if theirs and name and not item.call_id:
            item.call_id = self._ids.of_call(theirs)
            events.append(ToolUseStart(self._id, item.base, item.call_id, name))

    def _tell_rest(self, item: StreamItem, wire: Wire, events: list[StreamEvent]) -> None:
        """The events that are missing for an item that is whole now."""
        read = read_call(wire) if item.call_id else None
        if read is not None:
            _, final, invalid = read
            events.append(ToolUseEnd(self._id, item.base, item.call_id, final, invalid))
            self._next = item.base + 1
            return
        run = OutputRun(self._ids, self._issuer)
        run.take(wire)
        for index, block in enumerate(run.blocks):
            place = item.base + index
            match block:
                case TextBlock():
                    self._rest_of_text(item, index, block.text, events)
                case ThinkingBlock():
                    self._rest_of_thought(item, block, events)
                case ToolUseBlock():
                    events.append(ToolUseStart(self._id, place, block.id, block.name))
                    events.append(ToolUseEnd(self._id, place, block.id, block.input, block.invalid))
                case RedactedThinkingBlock() if item.thought:
                    events.append(ThinkingDelta(self._id, place, "", block.data))
                case _:
                    events.append(BlockAdded(self._id, place, block))
        self._next = item.base + max(len(run.blocks), item.blocks)

    def _rest_of_text(
        self, item: StreamItem, index: int, text: str, events: list[StreamEvent]
    ) -> None:
        pieces = item.texts.get(index)
        told = _reported_length(pieces or (), text)
        if pieces is None or 0 <= told < len(text):
            events.append(TextDelta(self._id, item.base + index, text[told:]))

    def _rest_of_thought(
        self, item: StreamItem, block: ThinkingBlock, events: list[StreamEvent]
    ) -> None:
        rest = block.text[item.thought :]
        if rest or block.signature or not item.thought:
            events.append(ThinkingDelta(self._id, item.base, rest, block.signature))


def _reported_length(pieces: Sequence[str], text: str) -> int:
    """How much of a text was told in pieces, without making one of them; -1 if it says other."""
    place = 0
    for piece in pieces:
        if not text.startswith(piece, place):
            return -1
        place += len(piece)
    return place


def delta_of(wire: Mapping[str, Any]) -> str:
    """The text of a delta event; a server that sends none says nothing."""
    return maybe_text(wire.get("delta")) or ""


def item_of(wire: Wire) -> Wire:
    """The item that an event carries."""
    return dict(maybe_object(wire.get("item")))
