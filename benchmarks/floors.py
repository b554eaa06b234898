"""Floors of the protocols: Structs that hold a request or an answer and know nothing more."""

from typing import Any

import msgspec
from msgspec import Struct


class AnthropicText(Struct, tag="text"):
    text: str


class AnthropicThinking(Struct, tag="thinking"):
    thinking: str
    signature: str = ""


class AnthropicImage(Struct, tag="image"):
    source: dict[str, str]


class AnthropicCall(Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class AnthropicResult(Struct, tag="tool_result"):
    tool_use_id: str
    content: list[AnthropicText | AnthropicImage]


class AnthropicTurn(Struct):
    role: str
    content: list[
        AnthropicText | AnthropicThinking | AnthropicImage | AnthropicCall | AnthropicResult
    ]


class AnthropicRequest(Struct):
    model: str
    messages: list[AnthropicTurn]
    tools: list[dict[str, Any]] = []
    system: Any = None


class AnthropicAnswer(Struct):
    id: str
    model: str
    content: list[AnthropicText | AnthropicThinking | AnthropicCall]
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None


class ChatFunction(Struct):
    name: str
    arguments: str


class ChatCall(Struct):
    id: str
    function: ChatFunction


class ChatTurn(Struct):
    role: str
    content: Any = None
    tool_calls: list[ChatCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(Struct):
    model: str
    messages: list[ChatTurn]
    tools: list[dict[str, Any]] = []


class ChatChoice(Struct):
    message: ChatTurn
    finish_reason: str | None = None


class ChatAnswer(Struct):
    id: str
    model: str
    choices: list[ChatChoice]
    usage: dict[str, Any] | None = None


read_request = {
    "anthropic": msgspec.json.Decoder(AnthropicRequest).decode,
    "openai": msgspec.json.Decoder(ChatRequest).decode,
}
"""Typed decoding of a request body, by adapter."""
read_answer = {
    "anthropic": msgspec.json.Decoder(AnthropicAnswer).decode,
    "openai": msgspec.json.Decoder(ChatAnswer).decode,
}
"""Typed decoding of a response body, by adapter."""
