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


class GeminiTurn(Struct):
    role: str
    parts: list[dict[str, Any]]


class GeminiRequest(Struct):
    contents: list[GeminiTurn]
    tools: list[dict[str, Any]] = []
    systemInstruction: Any = None  # noqa: N815 - the key of the wire


class GeminiCandidate(Struct):
    content: GeminiTurn
    finishReason: str | None = None  # noqa: N815 - the key of the wire


class GeminiAnswer(Struct):
    candidates: list[GeminiCandidate]
    usageMetadata: dict[str, Any] | None = None  # noqa: N815 - the key of the wire


class OllamaFunction(Struct):
    name: str
    arguments: dict[str, Any]


class OllamaCall(Struct):
    function: OllamaFunction


class OllamaTurn(Struct):
    role: str
    content: str = ""
    thinking: str = ""
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None


class OllamaRequest(Struct):
    model: str
    messages: list[OllamaTurn]
    tools: list[dict[str, Any]] = []


class OllamaAnswer(Struct):
    model: str
    message: OllamaTurn
    done: bool = False


class ResponsesItem(Struct):
    type: str = "message"
    role: str | None = None
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Any = None


class ResponsesRequest(Struct):
    model: str
    input: list[ResponsesItem]
    tools: list[dict[str, Any]] = []
    instructions: str | None = None


class ResponsesAnswer(Struct):
    id: str
    model: str
    output: list[ResponsesItem]
    usage: dict[str, Any] | None = None


class ConverseSource(Struct):
    bytes: str | None = None


class ConverseImage(Struct):
    format: str
    source: ConverseSource


class ConverseCall(Struct):
    toolUseId: str  # noqa: N815 - the key of the wire
    name: str
    input: dict[str, Any]


class ConverseResult(Struct):
    toolUseId: str  # noqa: N815 - the key of the wire
    content: list["ConversePart"]


class ConversePart(Struct):
    text: str | None = None
    image: ConverseImage | None = None
    toolUse: ConverseCall | None = None  # noqa: N815 - the key of the wire
    toolResult: ConverseResult | None = None  # noqa: N815 - the key of the wire


class ConverseTurn(Struct):
    role: str
    content: list[ConversePart]


class ConverseRequest(Struct):
    messages: list[ConverseTurn]
    toolConfig: dict[str, Any] | None = None  # noqa: N815 - the key of the wire
    system: Any = None


class ConverseOutput(Struct):
    message: ConverseTurn


class ConverseAnswer(Struct):
    output: ConverseOutput
    stopReason: str | None = None  # noqa: N815 - the key of the wire
    usage: dict[str, Any] | None = None


read_request = {
    "anthropic": msgspec.json.Decoder(AnthropicRequest).decode,
    "bedrock-converse": msgspec.json.Decoder(ConverseRequest).decode,
    "gemini": msgspec.json.Decoder(GeminiRequest).decode,
    "ollama": msgspec.json.Decoder(OllamaRequest).decode,
    "openai": msgspec.json.Decoder(ChatRequest).decode,
    "openai-responses": msgspec.json.Decoder(ResponsesRequest).decode,
}
"""Typed decoding of a request body, by adapter."""
read_answer = {
    "anthropic": msgspec.json.Decoder(AnthropicAnswer).decode,
    "bedrock-converse": msgspec.json.Decoder(ConverseAnswer).decode,
    "gemini": msgspec.json.Decoder(GeminiAnswer).decode,
    "ollama": msgspec.json.Decoder(OllamaAnswer).decode,
    "openai": msgspec.json.Decoder(ChatAnswer).decode,
    "openai-responses": msgspec.json.Decoder(ResponsesAnswer).decode,
}
"""Typed decoding of a response body, by adapter."""
