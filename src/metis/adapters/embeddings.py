"""Embeddings: the request for vectors of texts, and the response, for each protocol that has them.

Hosts of OpenAI's protocols answer at `/embeddings` beside their chat path, Gemini at
`:batchEmbedContents`, Ollama at `/api/embed`. Anthropic, Bedrock and Vertex have no such endpoint
in the protocols that metis speaks.
"""

import math
from array import array
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from metis.adapters.profile import Profile
from metis.canonical.errors import InvalidValueError, OtherProviderError
from metis.wire.call import WireRequest

MAX_TEXTS = 64
"""How many texts one request may have; Gemini accepts a hundred, OpenAI more."""
MAX_DIMENSIONS = 16_384
"""How long a vector may be; those of the largest models have 4,096 numbers."""

# A profile has the path of its chat endpoint only; embeddings are beside it.
_CHAT_SUFFIXES = ("/chat/completions", "/responses")
_GEMINI_SUFFIX = ":generateContent"


class Embeddings(Struct, frozen=True, kw_only=True):
    """The vectors of some texts, in their order."""

    vectors: tuple[Sequence[float], ...]
    model: str
    input_tokens: int = 0
    """How many tokens the provider counted; 0 if it states none."""


class _OpenAIVector(Struct):
    embedding: list[float]
    index: int = 0


class _OpenAIUsage(Struct):
    prompt_tokens: int = 0


class _OpenAIResponse(Struct):
    data: list[_OpenAIVector]
    usage: _OpenAIUsage | None = None


class _GeminiVector(Struct):
    values: list[float]


class _GeminiResponse(Struct):
    embeddings: list[_GeminiVector]


class _OllamaResponse(Struct):
    embeddings: list[list[float]]
    prompt_eval_count: int = 0


def embedding_path(profile: Profile, model: str) -> str:
    """Return the path at which a provider embeds texts.

    Raises:
        InvalidValueError: the provider has no embeddings.
    """
    if profile.protocol == "ollama":
        return "/api/embed"
    # Vertex speaks the same protocol, but its requests for embeddings differ.
    if profile.protocol == "gemini" and not profile.place and "{place}" not in profile.path:
        return profile.request_path(model).removesuffix(_GEMINI_SUFFIX) + ":batchEmbedContents"
    for suffix in _CHAT_SUFFIXES:
        if profile.protocol.startswith("openai") and profile.path.endswith(suffix):
            return profile.path.removesuffix(suffix) + "/embeddings"
    fault = (
        f"{profile.name} has no embeddings; use a model such as openai:text-embedding-3-small, "
        "gemini:gemini-embedding-001 or ollama:nomic-embed-text"
    )
    raise InvalidValueError(fault, path="$.model")


def embedding_request(
    profile: Profile, model: str, texts: Sequence[str], *, is_query: bool = False
) -> WireRequest:
    """Return the request for the vectors of texts.

    `is_query` marks texts to search with, as opposed to the texts that are searched.

    Raises:
        InvalidValueError: the provider has no embeddings, or there are too many texts or an empty
            one.
    """
    path = embedding_path(profile, model)
    if not 0 < len(texts) <= MAX_TEXTS:
        fault = f"one request embeds 1 to {MAX_TEXTS} texts, not {len(texts)}"
        raise InvalidValueError(fault, path="$.texts")
    if not all(text.strip() for text in texts):
        raise InvalidValueError("an empty text has no embedding", path="$.texts")
    body: dict[str, object] = {"model": model, "input": list(texts)}
    if profile.protocol == "gemini":
        # Gemini computes different vectors for queries and for the documents that answer them.
        task = "RETRIEVAL_QUERY" if is_query else "RETRIEVAL_DOCUMENT"
        name = f"models/{model}"
        parts = [{"parts": [{"text": text}]} for text in texts]
        body = {"requests": [{"model": name, "content": p, "taskType": task} for p in parts]}
    headers = {"content-type": "application/json", **profile.headers}
    return WireRequest(method="POST", path=path, headers=headers, body=msgspec.json.encode(body))


def decode_embeddings(profile: Profile, model: str, body: bytes, count: int) -> Embeddings:
    """Return the vectors of a response to a request with `count` texts.

    Raises:
        OtherProviderError: the response has no vectors, not one per text, or vectors of different
            or excessive length.
    """
    try:
        vectors, tokens = _decode(profile.protocol, body)
    except (msgspec.MsgspecError, RecursionError):
        raise _unreadable(profile, "it has no vectors") from None
    if len(vectors) != count:
        raise _unreadable(profile, f"it has {len(vectors)} vectors for {count} texts")
    size = len(vectors[0])
    if not 0 < size <= MAX_DIMENSIONS or any(len(vector) != size for vector in vectors):
        raise _unreadable(profile, "its vectors differ in length, or are too long")
    try:
        packed = tuple(array("f", vector) for vector in vectors)
    except OverflowError:
        packed = ()
    # A sum is finite only if all of its terms are.
    if not packed or not all(math.isfinite(sum(vector)) for vector in packed):
        raise _unreadable(profile, "its vectors have numbers that are too large")
    return Embeddings(vectors=packed, model=model, input_tokens=max(tokens, 0))


def _decode(protocol: str, body: bytes) -> tuple[Sequence[Sequence[float]], int]:
    if protocol == "ollama":
        ollama = msgspec.json.decode(body, type=_OllamaResponse)
        return ollama.embeddings, ollama.prompt_eval_count
    if protocol == "gemini":
        gemini = msgspec.json.decode(body, type=_GeminiResponse)
        return [vector.values for vector in gemini.embeddings], 0
    openai = msgspec.json.decode(body, type=_OpenAIResponse)
    # OpenAI numbers the vectors. Some hosts leave every index at 0; then the order counts.
    is_numbered = sorted(item.index for item in openai.data) == list(range(len(openai.data)))
    data = sorted(openai.data, key=lambda item: item.index) if is_numbered else openai.data
    tokens = 0 if openai.usage is None else openai.usage.prompt_tokens
    return [item.embedding for item in data], tokens


def _unreadable(profile: Profile, fault: str) -> OtherProviderError:
    return OtherProviderError(f"the response cannot be used: {fault}", provider=profile.name)
