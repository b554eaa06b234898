"""Doors: where each protocol is served, as rows of a table."""

import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.codecs import CODECS
from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.sim.pieces import arguments_text
from metis.wire.codec import Codec
from metis.wire.shape import Wire, maybe_list, maybe_object

Action = Literal["answer", "stream", "count"]
"""What a path asks for; a body may ask an `answer` to be streamed."""

_JSON = "application/json"
_SSE = "text/event-stream; charset=utf-8"


class Door(Struct, frozen=True, kw_only=True):
    """One protocol: the paths at which it is served, and the habits of its provider."""

    adapter_name: str
    paths: Mapping[str, Action]
    """Patterns of paths, and what they ask for."""
    stream_type: str = _SSE
    streams: bool = False
    """Whether an answer is streamed unless the request says otherwise."""
    signs: bool = False
    """Whether thoughts have a signature."""
    call_seal: str | None = None
    """The format of the signature that stands before the first call, if there is one."""
    request_id: str = "x-request-id"
    """The header that names a request."""
    kinds: Mapping[int, str] = {}
    """The provider's own words for failures, by status."""
    touch_up: Callable[[Wire, Message], None] | None = None
    """Puts into an answer what its codec does not write for a message from elsewhere."""
    most_bytes: int = 50_000_000
    """How large a body may be."""
    too_long: str = (
        "This model's maximum context length is {window} tokens. However, your messages resulted "
        "in {tokens} tokens. Please reduce the length of the messages."
    )
    """What is said of a request that does not fit into the window."""

    @property
    def adapter(self) -> Adapter:
        """The adapter that speaks the protocol."""
        return adapters.get(self.adapter_name)

    @property
    def codec(self) -> Codec:
        """The codec of the protocol."""
        return CODECS[self.adapter.profile.protocol]


class Knock(NamedTuple):
    """A door that was found: what is asked for, and the model if the path names it."""

    door: Door
    action: Action
    model: str | None


def _touch_up_chat(wire: Wire, message: Message) -> None:
    """Arguments as the model wrote them, valid or not."""
    first = maybe_object(next(iter(maybe_list(wire.get("choices"))), None))
    calls = maybe_list(maybe_object(first.get("message")).get("tool_calls"))
    for call, text in zip(calls, _arguments(message), strict=False):
        call["function"]["arguments"] = text


def _touch_up_responses(wire: Wire, message: Message) -> None:
    """The same, and thoughts sealed by their own issuer."""
    items = maybe_list(wire.get("output"))
    calls = [item for item in items if item.get("type") == "function_call"]
    for item, text in zip(calls, _arguments(message), strict=False):
        item["arguments"] = text
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    for item, seal in zip(thoughts, _seals(message), strict=False):
        item["encrypted_content"] = seal


def _arguments(message: Message) -> list[str]:
    return [arguments_text(block) for block in message.content if isinstance(block, ToolUseBlock)]


def _seals(message: Message) -> list[str | None]:
    return [
        block.signature if isinstance(block, ThinkingBlock) else block.data
        for block in message.content
        if isinstance(block, ThinkingBlock | RedactedThinkingBlock)
    ]


_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_OPENAI_KINDS = {503: "server_error", 529: "overloaded_error", 404: "invalid_request_error"}
_GEMINI_KINDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    529: "UNAVAILABLE",
}
_BEDROCK_KINDS = {
    400: "ValidationException",
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
    529: "ModelNotReadyException",
}
_DOORS = (
    Door(
        adapter_name="anthropic",
        paths={r"/v1/messages": "answer", r"/v1/messages/count_tokens": "count"},
        signs=True,
        request_id="request-id",
        kinds=_ANTHROPIC_KINDS,
        most_bytes=32_000_000,
        too_long="prompt is too long: {tokens} tokens > {window} maximum",
    ),
    Door(
        adapter_name="openai",
        paths={r"(?:/v1)?/chat/completions": "answer"},
        kinds=_OPENAI_KINDS,
        touch_up=_touch_up_chat,
    ),
    Door(
        adapter_name="openai-responses",
        paths={r"(?:/v1)?/responses": "answer"},
        signs=True,
        kinds=_OPENAI_KINDS,
        touch_up=_touch_up_responses,
    ),
    Door(
        adapter_name="gemini",
        paths={
            r"/v1(?:beta)?/models/(?P<model>[^/:]+):generateContent": "answer",
            r"/v1(?:beta)?/models/(?P<model>[^/:]+):streamGenerateContent": "stream",
            r"/v1(?:beta)?/models/(?P<model>[^/:]+):countTokens": "count",
        },
        call_seal="signature_on_next",
        kinds=_GEMINI_KINDS,
        too_long=(
            "The input token count ({tokens}) exceeds the maximum number of tokens allowed "
            "({window})."
        ),
    ),
    Door(
        adapter_name="bedrock-converse",
        paths={
            r"/model/(?P<model>.+)/converse": "answer",
            r"/model/(?P<model>.+)/converse-stream": "stream",
        },
        stream_type="application/vnd.amazon.eventstream",
        signs=True,
        request_id="x-amzn-requestid",
        kinds=_BEDROCK_KINDS,
        most_bytes=25_000_000,
        too_long=(
            "The model returned the following errors: prompt is too long: {tokens} tokens > "
            "{window} maximum"
        ),
    ),
    Door(
        adapter_name="ollama",
        paths={r"/api/chat": "answer"},
        stream_type="application/x-ndjson",
        streams=True,
        too_long="the input length exceeds the context length",
    ),
)


def doors() -> list[Door]:
    """The doors that can be opened: those whose protocol has an adapter."""
    known = set(adapters.names())
    return [door for door in _DOORS if door.adapter_name in known]


def knock(path: str) -> Knock | None:
    """The door at a path, if there is one."""
    for door in doors():
        for pattern, action in door.paths.items():
            found = re.fullmatch(pattern, path)
            if found is not None:
                return Knock(door, action, found.groupdict().get("model"))
    return None


JSON_TYPE = _JSON
"""The content type of what is not streamed."""
