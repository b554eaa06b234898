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

# About the size of real tokens, so that limits and usage are realistic.
_TOKEN = re.compile(r"\s*(?:\w{1,8}|[^\w\s])|\s+")
_encode = msgspec.json.Encoder(order="deterministic").encode


class ModelOutput(Struct, frozen=True, kw_only=True):
    """The content that a model generated; an unset stop reason is derived from it."""

    content: tuple[ContentBlock, ...] = ()
    stop_reason: StopReason | None = None
    hidden_thinking: str = ""
    """Thinking that is counted but not sent."""

    @classmethod
    def from_text(cls, text: str) -> "ModelOutput":
        """Return an output of one text block."""
        return cls(content=(TextBlock(text),))

    @property
    def final_stop_reason(self) -> StopReason:
        """The stop reason that is set, or the one that follows from the content."""
        if self.stop_reason is not None:
            return self.stop_reason
        has_calls = any(isinstance(block, ToolUseBlock) for block in self.content)
        return StopReason.TOOL_USE if has_calls else StopReason.END_TURN

    def within_limits(self, options: AdapterOptions) -> "ModelOutput":
        """Cut the output at a stop sequence, and at the token limit of a request."""
        content, is_stopped = cut_at_stop_sequence(self.content, options.stop_sequences or ())
        stop_reason = StopReason.STOP_SEQUENCE if is_stopped else self.stop_reason
        max_tokens = maybe_count(options.max_output_tokens)
        if max_tokens is not None:
            visible_tokens = max(0, max_tokens - len(split_tokens(self.hidden_thinking)))
            content, is_complete = truncate(content, visible_tokens)
            stop_reason = stop_reason if is_complete else StopReason.MAX_TOKENS
        return replace(self, content=content, stop_reason=stop_reason)

    def to_message(self, context: RequestContext, message_id: str, input_tokens: int) -> Message:
        """Return the output as a message with its usage."""
        thinking = [block for block in self.content if isinstance(block, ThinkingBlock)]
        hidden_tokens = len(split_tokens(self.hidden_thinking))
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=count_tokens(self.content) + hidden_tokens,
            reasoning_output_tokens=count_tokens(thinking) + hidden_tokens,
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


def split_tokens(text: str) -> list[str]:
    """Split a text into the pieces that count as tokens; joined they give the text.

    >>> split_tokens("Hello, simulated world!")
    ['Hello', ',', ' simulate', 'd', ' world', '!']
    """
    return _TOKEN.findall(text)


def arguments_text(call: ToolUseBlock) -> str:
    """Return the arguments of a call as the model wrote them, valid JSON or not."""
    return _encode(call.input).decode() if call.invalid is None else call.invalid.raw


def count_tokens(content: Sequence[ContentBlock]) -> int:
    """Return how many tokens a model generated for some blocks."""
    return sum(len(split_tokens(_generated_text(block))) for block in content)


def _generated_text(block: ContentBlock) -> str:
    match block:
        case TextBlock() | ThinkingBlock():
            return block.text
        case ToolUseBlock():
            return arguments_text(block)
        case RedactedThinkingBlock():
            return block.data
        case _:
            return ""


def truncate(
    content: Sequence[ContentBlock], max_tokens: int
) -> tuple[tuple[ContentBlock, ...], bool]:
    """Return the blocks up to a number of tokens, and whether that is all of them."""
    for index, block in enumerate(content):
        tokens = split_tokens(_generated_text(block))
        if len(tokens) > max_tokens:
            partial = _partial_block(block, "".join(tokens[:max_tokens]))
            return (*content[:index], *partial), False
        max_tokens -= len(tokens)
    return tuple(content), True


def _partial_block(block: ContentBlock, text: str) -> list[ContentBlock]:
    """Return a block that ends early; incomplete thinking has no signature."""
    match block:
        case TextBlock() if text:
            return [TextBlock(text)]
        case ThinkingBlock() if text:
            return [ThinkingBlock(text, issuer=block.issuer)]
        case ToolUseBlock():
            invalid = InvalidInput(raw=text, error="the response ended here")
            return [ToolUseBlock(block.id, block.name, {}, invalid)]
        case _:
            return []


def cut_at_stop_sequence(
    content: Sequence[ContentBlock], stop_sequences: Sequence[Any]
) -> tuple[tuple[ContentBlock, ...], bool]:
    """Return the blocks up to the first stop sequence in a text, and whether there was one."""
    for index, block in enumerate(content):
        if not isinstance(block, TextBlock):
            continue
        stops = (stop for stop in stop_sequences if isinstance(stop, str) and stop)
        ends = [end for end in map(block.text.find, stops) if end >= 0]
        if ends:
            text = block.text[: min(ends)]
            return (*content[:index], *([TextBlock(text)] if text else [])), True
    return tuple(content), False


def stream_events(message: Message) -> Iterator[StreamEvent]:
    """Yield the events that stream a message token by token."""
    metadata, message_id = message.metadata, message.id
    if metadata.usage is not None:
        # Providers report the input tokens when a response begins, and the output at its end.
        first_usage = replace(metadata.usage, output_tokens=1, reasoning_output_tokens=0)
        yield UsageUpdate(message_id, first_usage)
    yield MessageStart(message_id, model=metadata.model)
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                for token in split_tokens(block.text):
                    yield TextDelta(message_id, index, token)
            # Thinking in a provider-specific format has no text deltas and is sent as a block.
            case ThinkingBlock(format=None):
                for token in split_tokens(block.text):
                    yield ThinkingDelta(message_id, index, token)
                if block.signature is not None:
                    yield ThinkingDelta(message_id, index, "", block.signature)
            case ToolUseBlock():
                yield ToolUseStart(message_id, index, block.id, block.name)
                for token in split_tokens(arguments_text(block)):
                    yield ToolUseInputDelta(message_id, index, block.id, token)
                yield ToolUseEnd(message_id, index, block.id, block.input, block.invalid)
            case _:
                yield BlockAdded(message_id, index, block)
    yield MessageComplete(message_id, metadata.stop_reason or StopReason.END_TURN, message)
