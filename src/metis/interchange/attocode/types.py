"""The shapes of attocode's messages, under its own names."""

from typing import Any, Literal

from msgspec import Struct


class ToolCall(Struct):
    """A call of a tool; `parseError` says that the arguments were no JSON."""

    id: str
    name: str
    arguments: dict[str, Any]
    parseError: str | None = None  # noqa: N815 - attocode's name


class ToolResult(Struct):
    """How a call ended: any value, and an error if it failed."""

    callId: str  # noqa: N815 - attocode's name
    result: Any
    error: str | None = None


class ContentBlock(Struct):
    """A piece of text, perhaps the end of a prefix that is worth keeping in a cache."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None


class Message(Struct):
    """One turn."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[ContentBlock]
    toolCalls: list[ToolCall] | None = None  # noqa: N815 - attocode's name
    toolResults: list[ToolResult] | None = None  # noqa: N815 - attocode's name
    toolCallId: str | None = None  # noqa: N815 - attocode's name


class Usage(Struct):
    """Tokens of one response; what was read from a cache is counted apart."""

    inputTokens: int  # noqa: N815 - attocode's name
    outputTokens: int  # noqa: N815 - attocode's name
    cacheReadTokens: int | None = None  # noqa: N815 - attocode's name
    cacheWriteTokens: int | None = None  # noqa: N815 - attocode's name
    cost: float | None = None


class ChatResponse(Struct):
    """What a provider answered."""

    content: str
    toolCalls: list[ToolCall] | None = None  # noqa: N815 - attocode's name
    usage: Usage | None = None
    model: str | None = None
    stopReason: Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"] | None = None  # noqa: N815 - attocode's name
    thinking: str | None = None
