"""Wire types of klaude-code's history, under its own names and in its own order of fields."""

from typing import Any, Literal

from msgspec import Struct

Position = Literal["append", "prepend"]
StopReason = Literal["stop", "length", "tool_use", "error", "aborted"]
ToolStatus = Literal["success", "error", "aborted"]


class Line(Struct):
    """One line of a history: the name of its type and its fields."""

    type: str
    data: dict[str, Any]


class TextPart(Struct):
    """Plain text."""

    text: str


class ImageURLPart(Struct):
    """An image at a URL or in a data URL."""

    url: str
    id: str | None = None


class ImageFilePart(Struct):
    """An image in a file."""

    file_path: str
    mime_type: str | None = None
    byte_size: int | None = None
    sha256: str | None = None


class ThinkingTextPart(Struct):
    """The text of a model's thinking."""

    text: str
    id: str | None = None
    model_id: str | None = None


class ThinkingSignaturePart(Struct):
    """The signature of the nearest thinking text before it."""

    signature: str
    id: str | None = None
    model_id: str | None = None
    format: str | None = None


class ToolCallPart(Struct):
    """A tool call; the arguments are the text that the model wrote."""

    call_id: str
    tool_name: str
    arguments_json: str


class Usage(Struct):
    """Tokens and cost; `input_tokens` counts the cached ones as well."""

    input_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    output_tokens: int = 0
    input_cost: float | None = None
    output_cost: float | None = None
    cache_read_cost: float | None = None
    currency: str = "USD"
    model_name: str = ""
    provider: str | None = None


class _Message(Struct):
    parts: list[dict[str, Any]]
    id: str | None = None
    created_at: str | None = None
    response_id: str | None = None


class SystemMessage(_Message):
    """A system prompt."""


class DeveloperMessage(_Message):
    """A note of the program to the model; its other fields are for the screen."""

    attachment_position: Position = "append"


class UserMessage(_Message):
    """Text and images of a person."""


class AssistantMessage(_Message):
    """One response of a model."""

    usage: dict[str, Any] | None = None
    stop_reason: StopReason | None = None


class ToolResultMessage(Struct):
    """The result of a tool call; all its text is `output_text`."""

    status: ToolStatus
    output_text: str
    id: str | None = None
    created_at: str | None = None
    response_id: str | None = None
    call_id: str = ""
    tool_name: str = ""
    parts: list[dict[str, Any]] = []
    ui_extra: dict[str, Any] | None = None
    side_effects: list[Any] | None = None


class StreamErrorItem(Struct):
    """A failure that a replay shows."""

    error: str
    created_at: str | None = None


class CompactionEntry(Struct):
    """A summary of everything before the record at `first_kept_index`."""

    summary: str
    first_kept_index: int
    tokens_before: int | None = None
    details: dict[str, Any] | None = None
    kept_items_brief: list[Any] = []
    created_at: str | None = None
    first_kept_line: int | None = None


class RewindEntry(Struct):
    """The conversation goes back to the developer message that names a checkpoint."""

    checkpoint_id: int
    note: str = ""
    rationale: str = ""
    reverted_from_index: int | None = None
    original_user_message: str | None = None
    created_at: str | None = None


class RetractEntry(Struct):
    """The last message of the user is withdrawn; older files name neither text nor line."""

    retracted_text: str | None = None
    retracted_line: int | None = None
    created_at: str | None = None


REFUSED = {
    "deltas are never stored": (
        "AssistantTextDelta",
        "AssistantMessageDelta",
        "ThinkingTextDelta",
        "AssistantImageDelta",
        "ReasoningTextDelta",
    ),
    "the start of a call is never stored": ("ToolCallStartDelta", "ToolCallStartItem", "StartItem"),
    "an interrupt is the stop reason or the status `aborted`, not an event": (
        "InterruptItem",
        "InterruptEvent",
    ),
    "response metadata is derived from the message": (
        "ResponseMetadataItem",
        "ResponseMetadataEvent",
    ),
    "a history of flat items, from before messages had parts": (
        "UserMessageItem",
        "AssistantMessageItem",
        "SystemMessageItem",
        "DeveloperMessageItem",
        "ToolCallItem",
        "ToolResultItem",
        "ReasoningTextItem",
        "ReasoningEncryptedItem",
        "ReasoningItem",
        "ThinkingTextItem",
    ),
}
"""Type names that no history may hold, by reason."""
