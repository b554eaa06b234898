"""Answer: what the simulator says, as a message and as the events of a stream."""

from collections.abc import Iterator
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, StopReason, Usage
from metis.sim.pieces import arguments_text, count, cut_to, pieces, stop_at
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
from metis.wire.shape import maybe_count


class Answer(Struct, frozen=True, kw_only=True):
    """The content of an answer, and why it ends; a reason that is not told follows from it."""

    content: tuple[ContentBlock, ...] = ()
    stop_reason: StopReason | None = None
    hidden_thought: str = ""
    """A thought that is counted, but not shown."""

    @classmethod
    def say(cls, text: str) -> "Answer":
        """An answer in words."""
        return cls(content=(TextBlock(text),))

    @property
    def reason(self) -> StopReason:
        """Why it ends."""
        if self.stop_reason is not None:
            return self.stop_reason
        has_calls = any(isinstance(block, ToolUseBlock) for block in self.content)
        return StopReason.TOOL_USE if has_calls else StopReason.END_TURN

    def within(self, options: AdapterOptions) -> "Answer":
        """The same within the limits of a request: its stop sequences and its length."""
        content, is_stopped = stop_at(self.content, options.stop_sequences or ())
        reason = StopReason.STOP_SEQUENCE if is_stopped else self.stop_reason
        longest = maybe_count(options.max_output_tokens)
        if longest is not None:
            most = max(0, longest - len(pieces(self.hidden_thought)))
            content, is_whole = cut_to(content, most)
            reason = reason if is_whole else StopReason.MAX_TOKENS
        return replace(self, content=content, stop_reason=reason)

    def message(self, context: RequestContext, message_id: str, input_tokens: int) -> Message:
        """The message that this answer is."""
        thoughts = [block for block in self.content if isinstance(block, ThinkingBlock)]
        hidden = len(pieces(self.hidden_thought))
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=count(self.content) + hidden,
            reasoning_output_tokens=count(thoughts) + hidden,
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
                stop_reason=self.reason,
            ),
        )


def events(message: Message) -> Iterator[StreamEvent]:
    """The events that bring a message piece by piece."""
    metadata, own = message.metadata, message.id
    if metadata.usage is not None:
        # What is known at once comes first: providers tell the input when an answer begins.
        yield UsageUpdate(own, replace(metadata.usage, output_tokens=1, reasoning_output_tokens=0))
    yield MessageStart(own, model=metadata.model)
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield from (TextDelta(own, index, piece) for piece in pieces(block.text))
            case ThinkingBlock(format=None):
                yield from (ThinkingDelta(own, index, piece) for piece in pieces(block.text))
                if block.signature is not None:
                    yield ThinkingDelta(own, index, "", block.signature)
            case ToolUseBlock():
                yield from _call_events(own, index, block)
            case _:
                yield BlockAdded(own, index, block)
    yield MessageComplete(own, metadata.stop_reason or StopReason.END_TURN, message)


def _call_events(own: str, index: int, call: ToolUseBlock) -> Iterator[StreamEvent]:
    yield ToolUseStart(own, index, call.id, call.name)
    for piece in pieces(arguments_text(call)):
        yield ToolUseInputDelta(own, index, call.id, piece)
    yield ToolUseEnd(own, index, call.id, call.input, call.invalid)
