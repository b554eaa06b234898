"""Streamer: the events of an answer as gpt2099 shows them, block by block."""

from collections.abc import Iterator

import msgspec

from metis.streaming import (
    BlockAdded,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.wire.shape import Wire

_write = msgspec.json.Encoder().encode


class Streamer:
    """Knows which block was shown last, so that a new one is told once."""

    def __init__(self) -> None:
        self._shown: int | None = None
        self._spelled: set[str] = set()
        """The calls of which some arguments were shown."""

    def take(self, event: StreamEvent) -> Iterator[Wire]:
        """What an event adds: the start of a block, more of its content, or nothing."""
        match event:
            case TextDelta():
                yield from self._begun(event.content_block_index, {"type": "text"})
                yield from _added(event.text)
            case ThinkingDelta():
                yield from self._begun(event.content_block_index, {"type": "thinking"})
                yield from _added(event.text)
            case ToolUseStart():
                start = {"type": "tool_use", "name": event.tool_name}
                yield from self._begun(event.content_block_index, start)
            case ToolUseInputDelta():
                self._spelled.add(event.tool_use_id)
                yield from _added(event.partial_json)
            case ToolUseEnd() if event.tool_use_id not in self._spelled:
                # Some providers give a call as a whole.
                yield from _added(_write(event.final_input).decode())
            case BlockAdded():
                yield from self._begun(event.content_block_index, {"type": event.block.type})
            case _:
                return

    def _begun(self, index: int, start: Wire) -> Iterator[Wire]:
        if index != self._shown:
            self._shown = index
            yield start


def _added(text: str) -> Iterator[Wire]:
    if text:
        yield {"content": text}
