"""The order of events: what the canonical form asks for, whatever order the chunks have.

The index of the block never decreases. So a call that begins before the one before it is whole
waits for it (T126), and text that comes after a call has begun waits for the end of the calls.
"""

from collections.abc import Sequence

from metis.canonical.blocks import ArtifactBlock, ContentBlock, OpaqueBlock, RedactedThinkingBlock
from metis.streaming.arguments import read_arguments
from metis.streaming.events import (
    BlockAdded,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.wire.openai_chat.fold import CallFold
from metis.wire.tool_ids import CallIds

Spoken = type[TextDelta] | type[ThinkingDelta]
"""The events that carry text."""


class EventOrder:
    """Turns what comes in into events in order; `kind` is what the open block is made of."""

    def __init__(self, message_id: str, ids: CallIds, calls: list[CallFold]) -> None:
        self.index = -1
        self.kind: Spoken | str | None = None
        self.front: CallFold | None = None
        """The call whose fragments are passed on at once."""
        self._message_id = message_id
        self._ids = ids
        self._calls = calls
        self._ended = 0
        self._shown: set[str] = set()
        self._late: list[tuple[Spoken, str, Spoken | str]] = []

    def say(
        self, event: Spoken, text: str, events: list[StreamEvent], kind: Spoken | str | None = None
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

    def _open(self, kind: Spoken | str) -> None:
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
        final, invalid = read_arguments(call.text)
        if call.is_custom:
            final, invalid = {"input": call.text}, None
        event = ToolUseEnd(self._message_id, call.block_index, call.ours, final, invalid)
        events.append(event)
