"""HTTP endpoints of the simulator: the paths and conventions of each protocol, and model lists."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.adapters.codecs import CODECS
from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock
from metis.canonical.message import Message
from metis.wire.codec import Codec
from metis.wire.json_access import Wire, maybe_list

Action = Literal["answer", "stream", "count"]
"""The purpose of a path; the body of a request may change `answer` to a stream."""

JSON_TYPE = "application/json"
"""The content type of everything that is not streamed."""

MODEL_NAMES = ("sim-small", "sim-large", "sim-reasoner")
"""The listed models; every other name is also accepted."""

_SSE_TYPE = "text/event-stream; charset=utf-8"
_MODEL_PATHS = ("/v1/models", "/models", "/v1beta/models", "/api/tags")
_CREATED_AT = "2026-01-01T00:00:00Z"
_CREATED_SECONDS = 1_767_225_600


class HttpRequest(Struct, frozen=True, kw_only=True):
    """An HTTP request; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class HttpReply(Struct, frozen=True, kw_only=True):
    """An HTTP response, with the way in which it is transmitted."""

    status: int = 200
    headers: Mapping[str, str] = {}
    chunks: tuple[bytes, ...] = ()
    is_stream: bool = False
    is_cut: bool = False
    """Whether the connection closes after the last chunk, in the middle of the response."""
    pause_s: float = 0.0
    """The pause after each chunk."""

    @property
    def body(self) -> bytes:
        """All chunks as one."""
        return b"".join(self.chunks)


class Endpoint(Struct, frozen=True, kw_only=True):
    """One protocol: the paths at which it is served, and the conventions of its provider."""

    adapter_name: str
    paths: Mapping[str, Action]
    """The purpose of each path, by its regular expression."""
    stream_content_type: str = _SSE_TYPE
    streams_by_default: bool = False
    """Whether a response is streamed if the request does not state it."""
    signs_thinking: bool = False
    """Whether thinking has a signature."""
    call_signature_format: str | None = None
    """The format of the signature before the first tool call, for providers that send one."""
    request_id_header: str = "x-request-id"
    error_kinds: Mapping[int, str] = {}
    """The provider's error types by status, where the codec writes a more general one."""
    adjust: Callable[[Wire, Message], None] | None = None
    """Adds keys that the codec does not write for a message of another issuer."""
    max_body_bytes: int = 50_000_000

    @property
    def adapter(self) -> Adapter:
        """The adapter of the protocol."""
        return adapters.get(self.adapter_name)

    @property
    def codec(self) -> Codec:
        """The codec of the protocol."""
        return CODECS[self.adapter.profile.protocol]


class EndpointMatch(NamedTuple):
    """The endpoint of a path, the purpose of the path, and the model if the path names it."""

    endpoint: Endpoint
    action: Action
    model: str | None


def match_path(path: str) -> EndpointMatch | None:
    """Return the endpoint that serves a path, or None."""
    for endpoint in _ENDPOINTS:
        for pattern, action in endpoint.paths.items():
            if match := re.fullmatch(pattern, path):
                return EndpointMatch(endpoint, action, match.groupdict().get("model"))
    return None


def _adjust_responses(body: Wire, message: Message) -> None:
    # The codec writes thinking as sealed by another issuer, but the simulator sealed it.
    sealed = [
        block.signature if isinstance(block, ThinkingBlock) else block.data
        for block in message.content
        if isinstance(block, ThinkingBlock | RedactedThinkingBlock)
    ]
    items = [item for item in maybe_list(body.get("output")) if item.get("type") == "reasoning"]
    for item, content in zip(items, sealed, strict=False):
        item["encrypted_content"] = content


# Paths of Vertex have the publisher, and the project if the address has it.
_VERTEX = r"/v1(?:beta1?)?/(?:projects/[^/]+/locations/[^/]+/)?publishers"
_GOOGLE = rf"(?:/v1(?:beta)?/|{_VERTEX}/google/)"
_ANTHROPIC_ERRORS = {
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    529: "overloaded_error",
}
_OPENAI_ERRORS = {503: "server_error", 529: "overloaded_error", 404: "invalid_request_error"}
_ENDPOINTS = (
    Endpoint(
        adapter_name="anthropic",
        paths={r"/v1/messages": "answer", r"/v1/messages/count_tokens": "count"},
        signs_thinking=True,
        request_id_header="request-id",
        error_kinds=_ANTHROPIC_ERRORS,
        # The limit of the Messages API, which answers 413 above it.
        max_body_bytes=32_000_000,
    ),
    Endpoint(
        adapter_name="vertex-claude",
        paths={
            rf"{_VERTEX}/anthropic/models/(?P<model>[^/:]+):rawPredict": "answer",
            rf"{_VERTEX}/anthropic/models/(?P<model>[^/:]+):streamRawPredict": "stream",
        },
        signs_thinking=True,
        error_kinds=_ANTHROPIC_ERRORS,
    ),
    Endpoint(
        adapter_name="bedrock",
        paths={
            r"/model/(?P<model>.+)/invoke": "answer",
            r"/model/(?P<model>.+)/invoke-with-response-stream": "stream",
        },
        stream_content_type="application/vnd.amazon.eventstream",
        signs_thinking=True,
        request_id_header="x-amzn-requestid",
        error_kinds=_ANTHROPIC_ERRORS,
    ),
    Endpoint(
        adapter_name="openai",
        # Hosts of this protocol serve it under different prefixes, such as /openai/v1.
        paths={r"(?:/[\w-]+)*/chat/completions": "answer"},
        error_kinds=_OPENAI_ERRORS,
    ),
    Endpoint(
        adapter_name="openai-responses",
        paths={r"(?:/[\w-]+)*/responses": "answer"},
        signs_thinking=True,
        error_kinds=_OPENAI_ERRORS,
        adjust=_adjust_responses,
    ),
    Endpoint(
        adapter_name="gemini",
        paths={
            rf"{_GOOGLE}models/(?P<model>[^/:]+):generateContent": "answer",
            rf"{_GOOGLE}models/(?P<model>[^/:]+):streamGenerateContent": "stream",
            rf"{_GOOGLE}models/(?P<model>[^/:]+):countTokens": "count",
        },
        # Gemini signs parts other than thoughts: the signature is on the call that follows.
        call_signature_format="signature_on_next",
        error_kinds={
            403: "PERMISSION_DENIED",
            404: "NOT_FOUND",
            503: "UNAVAILABLE",
            529: "UNAVAILABLE",
        },
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
        error_kinds={
            401: "UnrecognizedClientException",
            404: "ResourceNotFoundException",
            408: "ModelTimeoutException",
            424: "ModelErrorException",
            503: "ServiceUnavailableException",
            529: "ModelNotReadyException",
        },
        max_body_bytes=25_000_000,
    ),
    Endpoint(
        adapter_name="ollama",
        paths={r"/api/chat": "answer"},
        stream_content_type="application/x-ndjson",
        # Ollama streams unless the request has `"stream": false`.
        streams_by_default=True,
    ),
)


def simulated_name(model: str) -> str:
    """Return the model name of a response, which cannot be mistaken for the real model.

    >>> simulated_name("gpt-5"), simulated_name("sim-small")
    ('sim-gpt-5', 'sim-small')
    """
    return model if model.startswith("sim-") else f"sim-{model}"


def list_models(path: str, headers: Mapping[str, str]) -> Wire | None:
    """Return the model or the list of models at a path; None for any other path."""
    if path == "/api/version":
        return {"version": "0.0.0-sim"}
    base, _, name = path.partition("/models/")
    if (f"{base}/models" if name else path) not in _MODEL_PATHS:
        return None
    provider = _client_provider(path, headers)
    if name:
        return _encode_model(provider, name) if name in MODEL_NAMES else None
    models: list[Any] = [_encode_model(provider, one) for one in MODEL_NAMES]
    match provider:
        case "anthropic":
            ends = {"first_id": MODEL_NAMES[0], "last_id": MODEL_NAMES[-1]}
            return {"data": models, "has_more": False, **ends}
        case "openai":
            return {"object": "list", "data": models}
        case _:
            return {"models": models}


def _client_provider(path: str, headers: Mapping[str, str]) -> str:
    """Return the provider of a client by its headers: three providers list models at one path."""
    if path.startswith("/api"):
        return "ollama"
    if path.startswith("/v1beta") or "x-goog-api-key" in headers:
        return "gemini"
    return "anthropic" if "anthropic-version" in headers else "openai"


def _encode_model(provider: str, name: str) -> Wire:
    title = f"metis simulator ({name})"
    match provider:
        case "anthropic":
            return {"type": "model", "id": name, "display_name": title, "created_at": _CREATED_AT}
        case "openai":
            facts = {"created": _CREATED_SECONDS, "owned_by": "metis-simulator"}
            return {"id": name, "object": "model", **facts}
        case "gemini":
            methods = {"supportedGenerationMethods": ["generateContent", "countTokens"]}
            return {"name": f"models/{name}", "displayName": title, **methods}
        case _:
            facts = {"modified_at": _CREATED_AT, "size": 0, "digest": "0" * 64}
            return {"name": name, "model": name, **facts}
