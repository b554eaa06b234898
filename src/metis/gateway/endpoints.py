"""The paths that clients call: which protocol, which action, and the model if the path names it.

Clients are configured with a base URL that may or may not end in a version, or with the full URL of
an endpoint, and append their own path to either. A path is therefore recognised by its end.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import quote

from msgspec import Struct

Action = Literal[
    "answer", "count", "compact", "models", "model", "show", "tags", "processes", "version", "other"
]
"""What a path is for; `other` is passed on and metered."""

Shape = Literal["sse", "array", "lines", "frames", "aws"]
"""The form of a stream: events, a JSON array, lines of JSON, AWS frames, AWS frames of events."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """One kind of path: the protocol that the client speaks there, and what it calls for."""

    adapter: str
    """The adapter that reads requests and writes responses of this client."""
    protocol: str
    action: Action = "answer"
    stream: bool | None = None
    """Whether the path states that the response is streamed; None if the body states it."""
    streams_by_default: bool = False
    model: str = ""
    """The model that the path names."""
    place: str = ""
    """The project and location that the path of a Vertex client names."""
    path: str = ""
    """The path as the adapter of the protocol writes it, without versions and prefixes."""
    shape: Shape = "sse"

    @property
    def has_model_in_path(self) -> bool:
        """Whether the model stands in the path instead of the body."""
        return bool(self.model)


def _chat(action: Action = "answer", path: str = "/v1/chat/completions") -> Endpoint:
    return Endpoint(adapter="openai", protocol="openai_chat", action=action, path=path)


def _responses(action: Action = "answer", path: str = "/v1/responses") -> Endpoint:
    return Endpoint(
        adapter="openai-responses", protocol="openai_responses", action=action, path=path
    )


def _messages(action: Action = "answer", path: str = "/v1/messages") -> Endpoint:
    return Endpoint(adapter="anthropic", protocol="anthropic", action=action, path=path)


def _ollama(path: str, action: Action = "answer") -> Endpoint:
    return Endpoint(
        adapter="ollama",
        protocol="ollama",
        action=action,
        path=path,
        streams_by_default=action == "answer",
        shape="lines",
    )


CHAT: Final = _chat()
RESPONSES: Final = _responses()
MESSAGES: Final = _messages()

_POST_SUFFIXES: Mapping[str, Endpoint] = {
    "/chat/completions": CHAT,
    "/responses": RESPONSES,
    "/responses/compact": _responses("compact", "/v1/responses/compact"),
    "/responses/input_tokens": _responses("count", "/v1/responses/input_tokens"),
    "/messages": MESSAGES,
    "/messages/count_tokens": _messages("count", "/v1/messages/count_tokens"),
    "/api/chat": _ollama("/api/chat"),
    "/api/generate": _ollama("/api/generate"),
    "/api/show": _ollama("/api/show", "show"),
}
_GET_SUFFIXES: Mapping[str, Endpoint] = {
    "/api/tags": _ollama("/api/tags", "tags"),
    "/api/ps": _ollama("/api/ps", "processes"),
    "/api/version": _ollama("/api/version", "version"),
}
_LAST_SEGMENTS = re.compile(r"(?:/[^/]+)?/[^/]+$")
_GEMINI = re.compile(
    r"/(?:(?P<version>v\d\w*)/)?(?:(?P<place>projects/[^/]+/locations/[^/]+)/)?"
    r"(?:publishers/(?P<maker>[^/]+)/)?"
    r"(?:models|tunedModels)/(?P<model>[^:]+):(?P<method>[A-Za-z]+)"
)
_BEDROCK = re.compile(
    r"/model/(?P<model>.+)/(?P<method>converse|converse-stream|invoke"
    r"|invoke-with-response-stream|count-tokens)$"
)
_MODELS = re.compile(r"(?:/[^/]+)*/models(?:/(?P<model>.+))?")
_OPENAI_OTHERS = re.compile(
    r"(?:/v1)?(?P<path>/(?:completions|embeddings|moderations|images|audio|videos|files|uploads"
    r"|batches|fine_tuning|vector_stores|assistants|threads|realtime|containers|evals|rerank"
    r"|conversations|responses|fim|memories|alpha)(?:/.*)?)"
)
_DOT_SEGMENT = re.compile(r"/\.{1,2}(?:/|$)")
_ANTHROPIC_OTHERS = re.compile(
    r"(?:/v1)?(?P<path>/(?:messages/batches|files|skills|organizations|complete)(?:/.*)?)"
)


_NAMED_PROVIDER: Final = "/pass/"
"""What the path of a call begins with whose provider the client names."""
MAX_PATH: Final = 2048
"""No API has longer paths. The patterns would take seconds for one of 64 kB, before any key is
checked, and the caches would hold thousands of them."""


def match_path(method: str, path: str) -> Endpoint | None:
    """Return the endpoint of a path, or None.

    >>> match_path("POST", "/v1/chat/completions/chat/completions").protocol
    'openai_chat'
    >>> match_path("POST", "/v1/models/gemini-2.5-pro:countTokens").action
    'count'
    """
    return None if len(path) > MAX_PATH else _match_path(method, path)


@lru_cache(4096)
def _match_path(method: str, path: str) -> Endpoint | None:
    path = "/" + path.strip("/")
    if path.startswith(_NAMED_PROVIDER):
        return None  # the client names the provider: nothing is read or translated
    suffixes = _POST_SUFFIXES if method == "POST" else _GET_SUFFIXES
    end = _LAST_SEGMENTS.search(path)
    if end is not None:
        last = path[path.rfind("/") :]
        endpoint = suffixes.get(end[0]) or suffixes.get(last)
        if endpoint is not None:
            return endpoint
    if method == "POST":
        return _gemini(path) or _bedrock(path)
    match = _MODELS.fullmatch(path) if method in ("GET", "HEAD") else None
    if match is None:
        return None
    model = match["model"] or ""
    return Endpoint(
        adapter="openai",
        protocol="openai_chat",
        action="model" if model else "models",
        model=model,
        path=path,
    )


def _gemini(path: str) -> Endpoint | None:
    # A client whose base URL is the full URL of a model appends the model once more.
    match = next((m for m in _GEMINI.finditer(path) if m.end() == len(path)), None)
    if match is None:
        return None
    model, method, place = match["model"], match["method"], match["place"] or ""
    if match["maker"] == "anthropic":
        return _vertex_claude(model, method, place)
    version = "v1beta" if place else match["version"] or "v1beta"
    actions: Mapping[str, tuple[Action, bool]] = {
        "generateContent": ("answer", False),
        "streamGenerateContent": ("answer", True),
        "countTokens": ("count", False),
    }
    action, is_stream = actions.get(method, ("other", False))
    return Endpoint(
        adapter="gemini",
        protocol="gemini",
        action=action,
        stream=is_stream,
        model=model,
        place=place,
        path=f"/{version}/models/{model}:{method}",
        shape="array",  # `?alt=sse` makes it events
    )


def _vertex_claude(model: str, method: str, place: str) -> Endpoint | None:
    actions: Mapping[str, tuple[Action, bool]] = {
        "rawPredict": ("count" if model == "count-tokens" else "answer", False),
        "streamRawPredict": ("answer", True),
    }
    if method not in actions:
        return None
    action, is_stream = actions[method]
    return Endpoint(
        adapter="vertex-claude",
        protocol="anthropic",
        action=action,
        # Clients of `rawPredict` may state a stream in the body as well.
        stream=True if is_stream else None,
        model=model,
        place=place,
        path=f"/v1/publishers/anthropic/models/{model}:{method}",
    )


def _bedrock(path: str) -> Endpoint | None:
    match = _BEDROCK.search(path)
    if match is None:
        return None
    model, method = match["model"], match["method"]
    is_stream = method.endswith("stream")
    is_converse = not method.startswith("invoke")
    if not is_converse and "claude" not in model:
        return None
    return Endpoint(
        adapter="bedrock-converse" if is_converse else "bedrock",
        protocol="bedrock_converse" if is_converse else "anthropic",
        action="count" if method == "count-tokens" else "answer",
        stream=is_stream,
        model=model,
        path=match[0],
        shape="frames" if is_converse else "aws",
    )


class OtherPath(Struct, frozen=True):
    """A path that is passed on: the provider, and the path there."""

    provider: str
    path: str

    @property
    def quoted(self) -> str:
        """The path for a request line: it came decoded, and may hold anything."""
        return quote(self.path, safe="/:@!$&'()*+,;=~-._")


def match_other(path: str, *, is_anthropic: bool, is_google: bool) -> OtherPath | None:
    """Return where a path goes that no endpoint serves, such as embeddings, audio and files.

    `/pass/{provider}/…` names the provider; for others the client's protocol decides. A path that
    leads upwards is none: it would reach what the address of the provider does not name.
    """
    if len(path) > MAX_PATH or _DOT_SEGMENT.search(path):
        return None
    return _match_other(path, is_anthropic=is_anthropic, is_google=is_google)


@lru_cache(4096)
def _match_other(path: str, *, is_anthropic: bool, is_google: bool) -> OtherPath | None:
    if path.startswith(_NAMED_PROVIDER):
        provider, _, rest = path.removeprefix(_NAMED_PROVIDER).partition("/")
        return OtherPath(provider, f"/{rest}")
    if is_google or path.startswith(("/v1beta", "/v1alpha", "/upload/v1beta", "/download/v1beta")):
        return OtherPath("gemini", path)
    if path.startswith("/api/"):
        return OtherPath("ollama", path)
    match = _ANTHROPIC_OTHERS.fullmatch(path) if is_anthropic else None
    if match is not None:
        return OtherPath("anthropic", f"/v1{match['path']}")
    match = _OPENAI_OTHERS.fullmatch(path)
    return None if match is None else OtherPath("openai", f"/v1{match['path']}")


STREAM_TYPES: Mapping[Shape, bytes] = {
    "sse": b"text/event-stream; charset=utf-8",
    "array": b"application/json; charset=utf-8",
    "lines": b"application/x-ndjson",
    "frames": b"application/vnd.amazon.eventstream",
    "aws": b"application/vnd.amazon.eventstream",
}
"""The content type of each form of stream."""

KEEP_ALIVES: Mapping[str, bytes] = {
    # Claude Code shows a stall after 20 seconds without an event, and a comment is none.
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\n',
    "openai_chat": b": keep-alive\n\n",
    "openai_responses": b": keep-alive\n\n",
    # gemini-cli ends with an error on a comment, and lines of Ollama have no empty form.
}
"""What a client gets in a long silence, by its protocol; others get nothing."""
