"""Wire types of attocode's messages and responses, under its own names."""

from typing import Any, Literal

from msgspec import Struct


class ToolCall(Struct):
    """A tool call; `parseError` means that the arguments were not JSON."""

    id: str
    name: str
    arguments: dict[str, Any]
    parseError: str | None = None  # noqa: N815 - attocode's name


class ToolResult(Struct):
    """The result of a tool call: any value, and an error if it failed."""

    callId: str  # noqa: N815 - attocode's name
    result: Any = None
    error: str | None = None


class TextContent(Struct, tag="text"):
    """A piece of text, perhaps the end of a prefix to cache."""

    text: str
    cache_control: dict[str, Any] | None = None


class ImageSource(Struct):
    """The bytes of an image in base64, or its URL; both are in `data`."""

    data: str
    type: Literal["base64", "url"] = "base64"
    media_type: str = "image/png"


class ImageContent(Struct, tag="image"):
    """An image, perhaps the end of a prefix to cache."""

    source: ImageSource
    cache_control: dict[str, Any] | None = None


ContentBlock = TextContent | ImageContent


class Message(Struct):
    """One message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[ContentBlock]
    toolCalls: list[ToolCall] | None = None  # noqa: N815 - attocode's name
    toolResults: list[ToolResult] | None = None  # noqa: N815 - attocode's name
    toolCallId: str | None = None  # noqa: N815 - attocode's name


class Usage(Struct):
    """Tokens of one response; cache reads are counted separately."""

    inputTokens: int  # noqa: N815 - attocode's name
    outputTokens: int  # noqa: N815 - attocode's name
    cacheReadTokens: int | None = None  # noqa: N815 - attocode's name
    cacheWriteTokens: int | None = None  # noqa: N815 - attocode's name
    cost: float | None = None


class ChatResponse(Struct):
    """One response of a model."""

    content: str
    toolCalls: list[ToolCall] | None = None  # noqa: N815 - attocode's name
    usage: Usage | None = None
    model: str | None = None
    stopReason: Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"] | None = None  # noqa: N815 - attocode's name
    thinking: str | None = None
