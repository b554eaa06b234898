"""HTTP endpoints of the simulator.

requests and replies, the paths of each protocol, and model lists.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.codecs import CODECS
from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.sim.model_output import arguments_text
from metis.wire.codec import Codec
from metis.wire.json_access import Wire, maybe_list, maybe_object


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A request as it came; names of headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class HttpReply(Struct, frozen=True, kw_only=True):
    """A response: its pieces, the pause between them, and whether it breaks off at the end."""

    status: int = 200
    headers: Mapping[str, str] = {}
    chunks: tuple[bytes, ...] = ()
    is_stream: bool = False
    is_cut: bool = False
    pause_s: float = 0.0

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.chunks)


def rechunk(chunks: tuple[bytes, ...], size: int | None) -> tuple[bytes, ...]:
    """The same bytes in chunks of one size; without a size as they are.

    >>> in_chunks((b"abc", b"de"), 2)
    (b'ab', b'cd', b'e')
    """
    if size is None:
        return chunks
    whole = b"".join(chunks)
    return tuple(whole[at : at + size] for at in range(0, len(whole), size))


def truncate_chunks(chunks: tuple[bytes, ...], size: int) -> Iterator[bytes]:
    """The pieces up to a number of bytes."""
    for piece in chunks:
        if size <= 0:
            return
        yield piece[:size]
        size -= len(piece)


MODEL_NAMES = ("sim-small", "sim-large", "sim-reasoner")
"""The models of the simulator; every other name is taken for one of them, too."""

_MOMENT = "2026-01-01T00:00:00Z"
_SECONDS = 1_767_225_600


def simulated_name(model: str) -> str:
    """The name under which a model answers: nobody shall take it for the real one.

    >>> labelled("gpt-5"), labelled("sim-small")
    ('sim-gpt-5', 'sim-small')
    """
    return model if model.startswith("sim-") else f"sim-{model}"


def list_models(path: str, headers: Mapping[str, str]) -> Wire | None:
    """The answer to a question for models; None if a path asks for something else.

    Three providers list their models at the same path; the headers tell whose client asks.
    """
    if path == "/api/version":
        return {"version": "0.0.0-sim"}
    place, _, wanted = path.partition("/models/")
    if (f"{place}/models" if wanted else path) not in _PLACES:
        return None
    whose = _whose(path, headers)
    if wanted:
        return _WRITERS[whose](wanted) if wanted in MODEL_NAMES else None
    listed: list[Any] = [_WRITERS[whose](name) for name in MODEL_NAMES]
    match whose:
        case "anthropic":
            return {
                "data": listed,
                "has_more": False,
                "first_id": MODEL_NAMES[0],
                "last_id": MODEL_NAMES[-1],
            }
        case "openai":
            return {"object": "list", "data": listed}
        case _:
            return {"models": listed}


def _whose(path: str, headers: Mapping[str, str]) -> str:
    if path.startswith("/api"):
        return "ollama"
    if path.startswith("/v1beta") or "x-goog-api-key" in headers:
        return "gemini"
    return "anthropic" if "anthropic-version" in headers else "openai"


def _anthropic(name: str) -> Wire:
    title = f"metis simulator ({name})"
    return {"type": "model", "id": name, "display_name": title, "created_at": _MOMENT}


def _openai(name: str) -> Wire:
    return {"id": name, "object": "model", "created": _SECONDS, "owned_by": "metis-simulator"}


def _gemini(name: str) -> Wire:
    return {
        "name": f"models/{name}",
        "displayName": f"metis simulator ({name})",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def _ollama(name: str) -> Wire:
    return {"name": name, "model": name, "modified_at": _MOMENT, "size": 0, "digest": "0" * 64}


_PLACES = ("/v1/models", "/models", "/v1beta/models", "/api/tags")
_WRITERS: Mapping[str, Callable[[str], Wire]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "gemini": _gemini,
    "ollama": _ollama,
}


Action = Literal["answer", "stream", "count"]
"""What a path asks for; a body may ask an `answer` to be streamed."""

_JSON = "application/json"
_SSE = "text/event-stream; charset=utf-8"


class Endpoint(Struct, frozen=True, kw_only=True):
    """One protocol: the paths at which it is served, and the habits of its provider."""

    adapter_name: str
    paths: Mapping[str, Action]
    """Patterns of paths, and what they ask for."""
    stream_content_type: str = _SSE
    streams_by_default: bool = False
    """Whether an answer is streamed unless the request says otherwise."""
    signs_thinking: bool = False
    """Whether thoughts have a signature."""
    call_signature_format: str | None = None
    """The format of the signature that stands before the first call, if there is one."""
    request_id_header: str = "x-request-id"
    """The header that names a request."""
    error_kinds: Mapping[int, str] = {}
    """The provider's own words for failures, by status."""
    adjust: Callable[[Wire, Message], None] | None = None
    """Puts into an answer what its codec does not write for a message from elsewhere."""
    max_body_bytes: int = 50_000_000
    """How large a body may be."""
    context_overflow_text: str = (
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


class EndpointMatch(NamedTuple):
    """A door that was found: what is asked for, and the model if the path names it."""

    endpoint: Endpoint
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
    Endpoint(
        adapter_name="anthropic",
        paths={r"/v1/messages": "answer", r"/v1/messages/count_tokens": "count"},
        signs_thinking=True,
        request_id_header="request-id",
        error_kinds=_ANTHROPIC_KINDS,
        max_body_bytes=32_000_000,
        context_overflow_text="prompt is too long: {tokens} tokens > {window} maximum",
    ),
    Endpoint(
        adapter_name="openai",
        paths={r"(?:/v1)?/chat/completions": "answer"},
        error_kinds=_OPENAI_KINDS,
        adjust=_touch_up_chat,
    ),
    Endpoint(
        adapter_name="openai-responses",
        paths={r"(?:/v1)?/responses": "answer"},
        signs_thinking=True,
        error_kinds=_OPENAI_KINDS,
        adjust=_touch_up_responses,
    ),
    Endpoint(
        adapter_name="gemini",
        paths={
            r"/v1(?:beta)?/models/(?P<model>[^/:]+):generateContent": "answer",
            r"/v1(?:beta)?/models/(?P<model>[^/:]+):streamGenerateContent": "stream",
            r"/v1(?:beta)?/models/(?P<model>[^/:]+):countTokens": "count",
        },
        call_signature_format="signature_on_next",
        error_kinds=_GEMINI_KINDS,
        context_overflow_text=(
            "The input token count ({tokens}) exceeds the maximum number of tokens allowed "
            "({window})."
        ),
    ),
    Endpoint(
        adapter_name="bedrock-converse",
        paths={
            r"/model/(?P<model>.+)/converse": "answer",
            r"/model/(?P<model>.+)/converse-stream": "stream",
        },
        stream_content_type="application/vnd.amazon.eventstream",
        signs_thinking=True,
        request_id_header="x-amzn-requestid",
        error_kinds=_BEDROCK_KINDS,
        max_body_bytes=25_000_000,
        context_overflow_text=(
            "The model returned the following errors: prompt is too long: {tokens} tokens > "
            "{window} maximum"
        ),
    ),
    Endpoint(
        adapter_name="ollama",
        paths={r"/api/chat": "answer"},
        stream_content_type="application/x-ndjson",
        streams_by_default=True,
        context_overflow_text="the input length exceeds the context length",
    ),
)


def endpoints() -> list[Endpoint]:
    """The doors that can be opened: those whose protocol has an adapter."""
    known = set(adapters.names())
    return [door for door in _DOORS if door.adapter_name in known]


def match_path(path: str) -> EndpointMatch | None:
    """The door at a path, if there is one."""
    for door in endpoints():
        for pattern, action in door.paths.items():
            found = re.fullmatch(pattern, path)
            if found is not None:
                return EndpointMatch(door, action, found.groupdict().get("model"))
    return None


JSON_TYPE = _JSON
"""The content type of what is not streamed."""
