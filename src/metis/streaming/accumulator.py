"""Accumulator: adds up the stream events of one response to its content."""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import (
    ContentBlock,
    InvalidInput,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.metadata import Usage
from metis.streaming.arguments import parse_arguments, partial_arguments
from metis.streaming.events import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)


class Accumulator:
    """Adds up the events of one answer; `content` can be asked for at any moment.

    A call that has not ended counts with the arguments that came so far: as input if they are a
    JSON object already, else as invalid input with the raw text.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.final_event: MessageComplete | StreamError | None = None
        self._parts: dict[int, _Part] = {}

    def add(self, event: StreamEvent) -> None:
        """Take one event into account."""
        match event:
            case TextDelta():
                self._part(event.content_block_index, "text").pieces.append(event.text)
            case ThinkingDelta():
                part = self._part(event.content_block_index, "thinking")
                part.pieces.append(event.text)
                part.signature = event.signature or part.signature
            case ToolUseStart():
                part = self._part(event.content_block_index, "tool_use")
                part.tool_use_id, part.tool_name = event.tool_use_id, event.tool_name
            case ToolUseInputDelta():
                self._part(event.content_block_index, "tool_use").pieces.append(event.partial_json)
            case ToolUseEnd():
                part = self._part(event.content_block_index, "tool_use")
                part.ending = event.final_input, event.invalid
            case BlockAdded():
                self._part(event.content_block_index, "whole").whole = event.block
            case UsageUpdate():
                self.usage = event.usage
            case MessageComplete() | StreamError():
                self.final_event = event
            case MessageStart():
                pass

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks so far, in the order of their indexes."""
        return tuple(self._parts[index].block() for index in sorted(self._parts))

    def partial_input(self, index: int) -> dict[str, Any]:
        """What the arguments of the call at an index say so far: a view, never an input."""
        part = self._parts.get(index)
        return partial_arguments("".join(part.pieces)) if part and part.kind == "tool_use" else {}

    def _part(self, index: int, kind: str) -> "_Part":
        part = self._parts.get(index)
        if part is None:
            part = self._parts[index] = _Part(kind)
        return part


class _Part:
    """One block that is coming in."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.signature: str | None = None
        self.tool_use_id = self.tool_name = ""
        self.ending: tuple[Mapping[str, Any], InvalidInput | None] | None = None
        self.whole: ContentBlock | None = None

    def block(self) -> ContentBlock:
        if self.whole is not None:
            return self.whole
        text = "".join(self.pieces)
        if self.kind == "thinking":
            return ThinkingBlock(text=text, signature=self.signature)
        if self.kind == "tool_use":
            arguments, invalid = self.ending or parse_arguments(text)
            return ToolUseBlock(self.tool_use_id, self.tool_name, arguments, invalid)
        return TextBlock(text)
