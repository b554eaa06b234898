"""StreamEvent: what happens while a response arrives, the same for every provider.

Order: one `message_start`, then deltas, then exactly one `message_complete` or `error`. A tool call
is one `tool_use_start`, any number of `tool_use_input_delta`, one `tool_use_end`. The index of the
content block never decreases. Deltas are for user interfaces and for translation; the message that
`message_complete` carries is the result.

`original_form` is how the provider announced a response or a part, without the text that follows in
deltas: its ids, its kind, and keys that the canonical form has no field for. The first delta of a
part has it, and only encoders of the same protocol read it.
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


# A response has thousands of events; without tracking by the garbage collector each one is cheaper.
class Event(Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """Base class of all stream events."""

    message_id: str


class MessageStart(Event, frozen=True, tag="message_start"):
    """A response begins."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    model: str | None = None
    response_id: str | None = None
    role: str = "assistant"
    protocol: str | None = None
    """The protocol that the provider ids in this stream belong to."""
    provider: str | None = None
    original_form: Mapping[str, Any] | None = None
    issuer: str | None = None
    """Who sealed the thinking of this stream, if that is one host or account of the provider."""


class TextDelta(Event, frozen=True, tag="text_delta"):
    """More text of a text block, and citations of it that come while it is written.

    Providers that cite at the end only have their citations in the message.
    """

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    content_block_index: int
    text: str
    original_form: Mapping[str, Any] | None = None
    citations: tuple[Citation, ...] = ()


class ThinkingDelta(Event, frozen=True, tag="thinking_delta"):
    """More thinking; the signature, if there is one, comes with the last delta.

    `format` comes with the first delta of thinking that the host wrote into its text, and with a
    signature that has one; `id` is the provider's id of the thinking, beside its signature.
    """

    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"
    content_block_index: int
    text: str
    signature: str | None = None
    format: str | None = None
    original_form: Mapping[str, Any] | None = None
    id: str | None = None


class ToolUseStart(Event, frozen=True, tag="tool_use_start"):
    """A tool call begins; `tool_use_id` is ours, `provider_id` the provider's."""

    type: ClassVar[Literal["tool_use_start"]] = "tool_use_start"
    content_block_index: int
    tool_use_id: str
    tool_name: str
    provider_id: str | None = None
    original_form: Mapping[str, Any] | None = None


class ToolUseInputDelta(Event, frozen=True, tag="tool_use_input_delta"):
    """More of the arguments, as raw text that need not be valid JSON alone."""

    type: ClassVar[Literal["tool_use_input_delta"]] = "tool_use_input_delta"
    content_block_index: int
    tool_use_id: str
    partial_json: str


class ToolUseEnd(Event, frozen=True, tag="tool_use_end"):
    """A tool call is complete; `final_input` replaces what was assembled from deltas."""

    type: ClassVar[Literal["tool_use_end"]] = "tool_use_end"
    content_block_index: int
    tool_use_id: str
    final_input: Mapping[str, Any]
    invalid: InvalidInput | None = None
    original_form: Mapping[str, Any] | None = None


class BlockAdded(Event, frozen=True, tag="block_added"):
    """A block that arrives at once: redacted thinking, artifacts, opaque parts."""

    type: ClassVar[Literal["block_added"]] = "block_added"
    content_block_index: int
    block: ContentBlock
    original_form: Mapping[str, Any] | None = None


class UsageUpdate(Event, frozen=True, tag="usage_update"):
    """The usage so far; the last update counts."""

    type: ClassVar[Literal["usage_update"]] = "usage_update"
    usage: Usage


class MessageComplete(Event, frozen=True, tag="message_complete"):
    """The response is complete; `message` equals that of an unstreamed response."""

    type: ClassVar[Literal["message_complete"]] = "message_complete"
    stop_reason: StopReason
    message: Message


class StreamError(Event, frozen=True, tag="error"):
    """The stream failed; `message` holds what had arrived, with the status error."""

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
    """Return the typed error with which the stream of a provider ended."""
    # The class travels by name, because events are plain data that may come from another process.
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
    """Yield the events of a response that was not streamed: one delta for each block.

    `wire_ids` are the ids that the provider gave to calls, in `protocol`, and `forms` the original
    forms of blocks by their index.
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
                form, seal = forms.get(str(index)), block.signature
                yield ThinkingDelta(
                    message_id, index, block.text, seal, block.format, form, block.id
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
