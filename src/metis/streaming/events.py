"""StreamEvent: the typed events of one response, the same for every provider.

Order: one `message_start`, then deltas, then exactly one `message_complete` or `error`. A tool call
is one `tool_use_start`, any number of `tool_use_input_delta`, one `tool_use_end`. The index of the
content block never decreases. Deltas are for user interfaces and for translation to other
protocols; the result is the message in `message_complete`.

`original_form` is the JSON with which the provider started a response or a part, without the text
of later deltas: ids, kind, and keys that the canonical form has no field for. The first delta of a
part carries it, and only encoders of the same protocol read it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from msgspec import Struct

from metis.canonical.blocks import (
    Citation,
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
    ResponseLimitError,
    ServerError,
)
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason, Usage


# `gc=False`, because a response has thousands of events and the garbage collector need not track
# them.
class Event(Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """Base class of all stream events."""

    message_id: str


class MessageStart(Event, frozen=True, tag="message_start"):
    """The start of a response."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    model: str | None = None
    response_id: str | None = None
    role: str = "assistant"
    protocol: str | None = None
    """The protocol of the provider ids and original forms in this stream."""
    provider: str | None = None
    original_form: Mapping[str, Any] | None = None
    issuer: str | None = None
    """The issuer of sealed thinking in this stream, if it is a host or account of the provider."""


class TextDelta(Event, frozen=True, tag="text_delta"):
    """A piece of a text block, and citations that the provider sends with it.

    Citations that a provider sends only at the end are in the message of `message_complete`.
    """

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    content_block_index: int
    text: str
    original_form: Mapping[str, Any] | None = None
    citations: tuple[Citation, ...] = ()


class ThinkingDelta(Event, frozen=True, tag="thinking_delta"):
    """A piece of thinking; the last delta carries the signature, if there is one.

    `format` is set in the first delta of thinking that the host wrote into its text, and with a
    signature of a certain format. `id` is the provider's id of the thinking.
    """

    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"
    content_block_index: int
    text: str
    signature: str | None = None
    format: str | None = None
    original_form: Mapping[str, Any] | None = None
    id: str | None = None


class ToolUseStart(Event, frozen=True, tag="tool_use_start"):
    """The start of a tool call; `tool_use_id` is the canonical id, `provider_id` the wire id."""

    type: ClassVar[Literal["tool_use_start"]] = "tool_use_start"
    content_block_index: int
    tool_use_id: str
    tool_name: str
    provider_id: str | None = None
    original_form: Mapping[str, Any] | None = None


class ToolUseInputDelta(Event, frozen=True, tag="tool_use_input_delta"):
    """A piece of the arguments of a call, as raw text that need not be valid JSON."""

    type: ClassVar[Literal["tool_use_input_delta"]] = "tool_use_input_delta"
    content_block_index: int
    tool_use_id: str
    partial_json: str


class ToolUseEnd(Event, frozen=True, tag="tool_use_end"):
    """The end of a tool call; `final_input` replaces the input assembled from deltas."""

    type: ClassVar[Literal["tool_use_end"]] = "tool_use_end"
    content_block_index: int
    tool_use_id: str
    final_input: Mapping[str, Any]
    invalid: InvalidInput | None = None
    original_form: Mapping[str, Any] | None = None


class BlockAdded(Event, frozen=True, tag="block_added"):
    """A complete block without deltas: redacted thinking, an artifact, an opaque part."""

    type: ClassVar[Literal["block_added"]] = "block_added"
    content_block_index: int
    block: ContentBlock
    original_form: Mapping[str, Any] | None = None


class UsageUpdate(Event, frozen=True, tag="usage_update"):
    """The usage so far; each update replaces the one before."""

    type: ClassVar[Literal["usage_update"]] = "usage_update"
    usage: Usage


class MessageComplete(Event, frozen=True, tag="message_complete"):
    """The end of a complete response; `message` equals that of a plain response."""

    type: ClassVar[Literal["message_complete"]] = "message_complete"
    stop_reason: StopReason
    message: Message


class StreamError(Event, frozen=True, tag="error"):
    """The end of a failed stream; `message` is the partial message, with the status `error`."""

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


_ERROR_CLASSES = {
    kind.__name__: kind
    for kind in (
        AuthenticationError,
        ContextOverflowError,
        InvalidRequestError,
        NetworkError,
        OtherProviderError,
        RateLimitError,
        ResponseLimitError,
        ServerError,
    )
}


def provider_error(end: StreamError, provider: str) -> ProviderError:
    """Return the typed error of a stream that ended with an error event."""
    # The event has only the name of the class, because events are data that can be serialised.
    kind = _ERROR_CLASSES.get(end.error_class, OtherProviderError)
    if kind is NetworkError:
        return NetworkError(end.text, provider=provider, status=end.status, response_began=True)
    return kind(end.text, provider=provider, status=end.status)


def events_of_message(
    message: Message,
    protocol: str | None = None,
    wire_ids: Mapping[str, str] = MappingProxyType({}),
    forms: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[StreamEvent]:
    """Yield the events of a plain response: one delta for each block.

    `wire_ids` are the wire ids of calls in `protocol`, by tool_use_id; `forms` are the original
    forms of blocks, by index.
    """
    message_id, metadata = message.id, message.metadata
    yield MessageStart(
        message_id,
        metadata.model,
        metadata.response_id,
        protocol=protocol,
        provider=metadata.provider,
    )
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                form = forms.get(str(index))
                yield TextDelta(message_id, index, block.text, form, block.citations)
            case ThinkingBlock() if block.text or block.format is None:
                form, signature = forms.get(str(index)), block.signature
                yield ThinkingDelta(
                    message_id, index, block.text, signature, block.format, form, block.id
                )
            case ToolUseBlock():
                wire_id = wire_ids.get(block.id)
                form = forms.get(str(index))
                yield ToolUseStart(message_id, index, block.id, block.name, wire_id, form)
                yield ToolUseEnd(message_id, index, block.id, block.input, block.invalid)
            case _:
                yield BlockAdded(message_id, index, block)
    if metadata.usage is not None:
        yield UsageUpdate(message_id, metadata.usage)
    yield MessageComplete(message_id, metadata.stop_reason or StopReason.UNKNOWN, message)
