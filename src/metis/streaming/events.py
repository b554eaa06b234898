"""StreamEvent: what happens while an answer comes in, the same for every provider.

Order: one `message_start`, then deltas, then exactly one `message_complete` or `error`. A tool call
is one `tool_use_start`, any number of `tool_use_input_delta`, one `tool_use_end`. The index of the
content block never decreases. Deltas are for screens and for translation; what counts in the end is
the message that `message_complete` carries.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct

from metis.canonical.blocks import (
    ContentBlock,
    InvalidInput,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    OtherProviderError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason, Usage


class Event(Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """What all stream events share."""

    message_id: str


class MessageStart(Event, frozen=True, tag="message_start"):
    """An answer begins."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    model: str | None = None
    response_id: str | None = None
    role: str = "assistant"
    protocol: str | None = None
    """The protocol that the provider's own ids in this stream belong to."""


class TextDelta(Event, frozen=True, tag="text_delta"):
    """More text of a text block."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    content_block_index: int
    text: str


class ThinkingDelta(Event, frozen=True, tag="thinking_delta"):
    """More of a thought; the signature, if there is one, comes with the last delta.

    `format` comes with the first delta of a thought that stood in the text of its host.
    """

    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"
    content_block_index: int
    text: str
    signature: str | None = None
    format: str | None = None


class ToolUseStart(Event, frozen=True, tag="tool_use_start"):
    """A tool call begins; `tool_use_id` is ours, `provider_id` the provider's own."""

    type: ClassVar[Literal["tool_use_start"]] = "tool_use_start"
    content_block_index: int
    tool_use_id: str
    tool_name: str
    provider_id: str | None = None


class ToolUseInputDelta(Event, frozen=True, tag="tool_use_input_delta"):
    """More of the arguments, as raw text that need not be valid JSON by itself."""

    type: ClassVar[Literal["tool_use_input_delta"]] = "tool_use_input_delta"
    content_block_index: int
    tool_use_id: str
    partial_json: str


class ToolUseEnd(Event, frozen=True, tag="tool_use_end"):
    """A tool call is whole; `final_input` replaces whatever was pieced together from deltas."""

    type: ClassVar[Literal["tool_use_end"]] = "tool_use_end"
    content_block_index: int
    tool_use_id: str
    final_input: Mapping[str, Any]
    invalid: InvalidInput | None = None


class BlockAdded(Event, frozen=True, tag="block_added"):
    """A block that comes whole: sealed thoughts, artifacts, parts that only their issuer reads."""

    type: ClassVar[Literal["block_added"]] = "block_added"
    content_block_index: int
    block: ContentBlock


class UsageUpdate(Event, frozen=True, tag="usage_update"):
    """What is known of the usage so far; the last one counts."""

    type: ClassVar[Literal["usage_update"]] = "usage_update"
    usage: Usage


class MessageComplete(Event, frozen=True, tag="message_complete"):
    """The answer is whole; `message` is what the plain response would have given."""

    type: ClassVar[Literal["message_complete"]] = "message_complete"
    stop_reason: StopReason
    message: Message


class StreamError(Event, frozen=True, tag="error"):
    """The stream failed; `message` holds what had come, with the status error."""

    type: ClassVar[Literal["error"]] = "error"
    error_class: str
    text: str
    message: Message | None = None
    status: int | None = None
    is_retryable: bool = False


StreamEvent = (
    MessageStart
    | TextDelta
    | ThinkingDelta
    | ToolUseStart
    | ToolUseInputDelta
    | ToolUseEnd
    | BlockAdded
    | UsageUpdate
    | MessageComplete
    | StreamError
)


_CLASSES = {
    kind.__name__: kind
    for kind in (
        AuthenticationError,
        ContextOverflowError,
        InvalidRequestError,
        NetworkError,
        OtherProviderError,
        RateLimitError,
        ServerError,
    )
}


def provider_error(end: StreamError, provider: str) -> ProviderError:
    """The error with which a stream of a provider has ended."""
    kind = _CLASSES.get(end.error_class, OtherProviderError)
    return kind(end.text, provider=provider, status=end.status)


def events_of_message(message: Message) -> Iterator[StreamEvent]:
    """The events of an answer that did not come as a stream."""
    own, metadata = message.id, message.metadata
    yield MessageStart(own, metadata.model, metadata.response_id)
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield TextDelta(own, index, block.text)
            case ThinkingBlock():
                yield ThinkingDelta(own, index, block.text, block.signature)
            case ToolUseBlock():
                yield ToolUseStart(own, index, block.id, block.name)
                yield ToolUseEnd(own, index, block.id, block.input, block.invalid)
            case _:
                yield BlockAdded(own, index, block)
    if metadata.usage is not None:
        yield UsageUpdate(own, metadata.usage)
    yield MessageComplete(own, metadata.stop_reason or StopReason.UNKNOWN, message)
