"""Accumulator: builds the content of a response from its stream events.

Sessions do not need it, because stream decoders build the message themselves. `metis verify`
compares both results, and programs that consume events can use it.
"""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import (
    Citation,
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
    """Builds the content of one response from its events; `content` is available at any time.

    A call that has not ended has the arguments received so far: as input if they are a complete
    JSON object, else as invalid input with the raw text.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.final_event: MessageComplete | StreamError | None = None
        self._blocks: dict[int, _PartialBlock] = {}

    def add(self, event: StreamEvent) -> None:
        """Add one event."""
        match event:
            case TextDelta():
                partial = self._partial(event.content_block_index, "text")
                partial.pieces.append(event.text)
                partial.citations += event.citations
            case ThinkingDelta():
                partial = self._partial(event.content_block_index, "thinking")
                partial.pieces.append(event.text)
                # Only one delta has the signature; later ones without it do not remove it.
                partial.signature = event.signature or partial.signature
            case ToolUseStart():
                partial = self._partial(event.content_block_index, "tool_use")
                partial.tool_use_id, partial.tool_name = event.tool_use_id, event.tool_name
            case ToolUseInputDelta():
                self._partial(event.content_block_index, "tool_use").pieces.append(
                    event.partial_json
                )
            case ToolUseEnd():
                partial = self._partial(event.content_block_index, "tool_use")
                partial.final_input = event.final_input, event.invalid
            case BlockAdded():
                self._partial(event.content_block_index, "complete").complete_block = event.block
            case UsageUpdate():
                self.usage = event.usage
            case MessageComplete() | StreamError():
                self.final_event = event
            case MessageStart():
                pass

    @property
    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks so far, in the order of their indexes."""
        return tuple(self._blocks[index].block() for index in sorted(self._blocks))

    def partial_input(self, index: int) -> dict[str, Any]:
        """Return the arguments so far of the call at an index, for display only."""
        partial = self._blocks.get(index)
        return (
            partial_arguments("".join(partial.pieces))
            if partial and partial.kind == "tool_use"
            else {}
        )

    def _partial(self, index: int, kind: str) -> "_PartialBlock":
        partial = self._blocks.get(index)
        if partial is None:
            partial = self._blocks[index] = _PartialBlock(kind)
        return partial


class _PartialBlock:
    """One block while its events are received."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.citations: tuple[Citation, ...] = ()
        self.signature: str | None = None
        self.tool_use_id = self.tool_name = ""
        self.final_input: tuple[Mapping[str, Any], InvalidInput | None] | None = None
        self.complete_block: ContentBlock | None = None

    def block(self) -> ContentBlock:
        if self.complete_block is not None:
            return self.complete_block
        text = "".join(self.pieces)
        if self.kind == "thinking":
            return ThinkingBlock(text=text, signature=self.signature)
        if self.kind == "tool_use":
            arguments, invalid = self.final_input or parse_arguments(text)
            return ToolUseBlock(self.tool_use_id, self.tool_name, arguments, invalid)
        return TextBlock(text, self.citations)
