"""Output of the simulated model: its tokens, its message and its stream events."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    InvalidInput,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, StopReason, Usage
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.wire.call import UNPRICED, AdapterOptions, RequestContext
from metis.wire.json_access import maybe_count

_PIECE = re.compile(r"\s*(?:\w{1,8}|[^\w\s])|\s+")
_write = msgspec.json.Encoder(order="deterministic").encode


def split_tokens(text: str) -> list[str]:
    """A text in pieces that are its tokens; joined they are the text again.

    >>> pieces("Hello, simulated world!")
    ['Hello', ',', ' simulate', 'd', ' world', '!']
    """
    return _PIECE.findall(text)


def output_text(block: ContentBlock) -> str:
    """What a model had to write for a block."""
    match block:
        case TextBlock() | ThinkingBlock():
            return block.text
        case ToolUseBlock():
            return arguments_text(block)
        case RedactedThinkingBlock():
            return block.data
        case _:
            return ""


def arguments_text(call: ToolUseBlock) -> str:
    """The arguments of a call as they are written, valid or not."""
    return _write(call.input).decode() if call.invalid is None else call.invalid.raw


def count_tokens(content: Sequence[ContentBlock]) -> int:
    """How many tokens some blocks are."""
    return sum(len(split_tokens(output_text(block))) for block in content)


def truncate(content: Sequence[ContentBlock], most: int) -> tuple[tuple[ContentBlock, ...], bool]:
    """As much of the blocks as a number of tokens allows, and whether that is all of them."""
    kept: list[ContentBlock] = []
    for block in content:
        said = split_tokens(output_text(block))
        if len(said) <= most:
            kept.append(block)
            most -= len(said)
            continue
        part = _part(block, "".join(said[:most]))
        return (*kept, *part), False
    return tuple(kept), True


def _part(block: ContentBlock, text: str) -> list[ContentBlock]:
    """The beginning of a block; a thought that is not whole has no signature."""
    match block:
        case TextBlock() if text:
            return [TextBlock(text)]
        case ThinkingBlock() if text:
            return [ThinkingBlock(text, issuer=block.issuer)]
        case ToolUseBlock():
            invalid = InvalidInput(raw=text, error="the answer ended here")
            return [ToolUseBlock(block.id, block.name, {}, invalid)]
        case _:
            return []


def cut_at_stop_sequence(
    content: Sequence[ContentBlock], stops: Sequence[Any]
) -> tuple[tuple[ContentBlock, ...], bool]:
    """The blocks up to the first stop sequence in a text, and whether one was met."""
    for index, block in enumerate(content):
        if not isinstance(block, TextBlock):
            continue
        places = [block.text.find(stop) for stop in stops if isinstance(stop, str) and stop]
        places = [at for at in places if at >= 0]
        if places:
            text = block.text[: min(places)]
            return (*content[:index], *([TextBlock(text)] if text else [])), True
    return tuple(content), False


class ModelOutput(Struct, frozen=True, kw_only=True):
    """The content of an answer, and why it ends; a reason that is not told follows from it."""

    content: tuple[ContentBlock, ...] = ()
    stop_reason: StopReason | None = None
    hidden_thinking: str = ""
    """A thought that is counted, but not shown."""

    @classmethod
    def from_text(cls, text: str) -> "ModelOutput":
        """An answer in words."""
        return cls(content=(TextBlock(text),))

    @property
    def final_stop_reason(self) -> StopReason:
        """Why it ends."""
        if self.stop_reason is not None:
            return self.stop_reason
        has_calls = any(isinstance(block, ToolUseBlock) for block in self.content)
        return StopReason.TOOL_USE if has_calls else StopReason.END_TURN

    def within_limits(self, options: AdapterOptions) -> "ModelOutput":
        """The same within the limits of a request: its stop sequences and its length."""
        content, is_stopped = cut_at_stop_sequence(self.content, options.stop_sequences or ())
        reason = StopReason.STOP_SEQUENCE if is_stopped else self.stop_reason
        longest = maybe_count(options.max_output_tokens)
        if longest is not None:
            most = max(0, longest - len(split_tokens(self.hidden_thinking)))
            content, is_whole = truncate(content, most)
            reason = reason if is_whole else StopReason.MAX_TOKENS
        return replace(self, content=content, stop_reason=reason)

    def to_message(self, context: RequestContext, message_id: str, input_tokens: int) -> Message:
        """The message that this answer is."""
        thoughts = [block for block in self.content if isinstance(block, ThinkingBlock)]
        hidden = len(split_tokens(self.hidden_thinking))
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=count_tokens(self.content) + hidden,
            reasoning_output_tokens=count_tokens(thoughts) + hidden,
            cost_usd=Decimal(0),
            pricing_version=UNPRICED,
            latency_ms=0,
        )
        return Message(
            id=message_id,
            session_id=context.session_id,
            role=Role.ASSISTANT,
            content=self.content,
            created_at=context.created_at,
            metadata=MessageMetadata(
                model=context.model,
                provider=context.provider,
                usage=usage,
                stop_reason=self.final_stop_reason,
            ),
        )


def stream_events(message: Message) -> Iterator[StreamEvent]:
    """The events that bring a message piece by piece."""
    metadata, own = message.metadata, message.id
    if metadata.usage is not None:
        # What is known at once comes first: providers tell the input when an answer begins.
        yield UsageUpdate(own, replace(metadata.usage, output_tokens=1, reasoning_output_tokens=0))
    yield MessageStart(own, model=metadata.model)
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield from (TextDelta(own, index, piece) for piece in split_tokens(block.text))
            case ThinkingBlock(format=None):
                yield from (ThinkingDelta(own, index, piece) for piece in split_tokens(block.text))
                if block.signature is not None:
                    yield ThinkingDelta(own, index, "", block.signature)
            case ToolUseBlock():
                yield from _call_events(own, index, block)
            case _:
                yield BlockAdded(own, index, block)
    yield MessageComplete(own, metadata.stop_reason or StopReason.END_TURN, message)


def _call_events(own: str, index: int, call: ToolUseBlock) -> Iterator[StreamEvent]:
    yield ToolUseStart(own, index, call.id, call.name)
    for piece in split_tokens(arguments_text(call)):
        yield ToolUseInputDelta(own, index, call.id, piece)
    yield ToolUseEnd(own, index, call.id, call.input, call.invalid)
