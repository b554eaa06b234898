"""Embeddings of the simulator: texts with common words have similar vectors."""

import hashlib
import math
import re
from collections.abc import Sequence

import msgspec

from metis.sim.encode_reply import LABEL_HEADERS
from metis.sim.endpoints import JSON_TYPE, HttpReply, HttpRequest
from metis.wire.json_access import maybe_list, maybe_object

DIMENSIONS = 256
"""The length of the vectors."""

_OPENAI = re.compile(r"(?:/[\w-]+)*/embeddings")
_GEMINI = re.compile(r"/v1(?:beta)?/models/(?P<model>[^/:]+):batchEmbedContents")
_OLLAMA = "/api/embed"
_WORD = re.compile(r"\w+")
# Words with the same first letters are similar, such as "tax" and "taxes".
_STEM_LETTERS = 3
# The limit of OpenAI.
_MAX_TEXTS = 2048


def embed_text(text: str) -> list[float]:
    """Return a vector of length one that depends only on the words of a text.

    >>> near = sum(a * b for a, b in zip(embed_text("a red boat"), embed_text("red boats")))
    >>> far = sum(a * b for a, b in zip(embed_text("a red boat"), embed_text("tax returns")))
    >>> near > 0.5 > abs(far)
    True
    """
    vector = [0.0] * DIMENSIONS
    for word in _WORD.findall(text.lower()):
        for feature in {word, word[:_STEM_LETTERS]}:
            digest = hashlib.blake2b(feature.encode(), digest_size=4).digest()
            vector[digest[0] % DIMENSIONS] += 1.0 if digest[1] % 2 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    if not length:
        vector[0] = length = 1.0
    return [value / length for value in vector]


def embed(http_request: HttpRequest) -> HttpReply | None:
    """Return the reply to a request for embeddings; None for any other path."""
    path = http_request.path.partition("?")[0]
    is_gemini = _GEMINI.fullmatch(path) is not None
    if not (is_gemini or path == _OLLAMA or _OPENAI.fullmatch(path)):
        return None
    try:
        body = maybe_object(msgspec.json.decode(http_request.body))
    except (msgspec.DecodeError, RecursionError):
        body = {}
    texts = _gemini_texts(body) if is_gemini else _texts(body.get("input"))
    if not 0 < len(texts) <= _MAX_TEXTS:
        fault = {"message": "input: expected a text or a list of texts", "code": 400}
        return _reply({"error": {"type": "invalid_request_error", **fault}}, 400)
    vectors, tokens = [embed_text(text) for text in texts], sum(len(text) // 4 for text in texts)
    if is_gemini:
        return _reply({"embeddings": [{"values": vector} for vector in vectors]})
    model = body.get("model")
    if path == _OLLAMA:
        return _reply({"model": model, "embeddings": vectors, "prompt_eval_count": tokens})
    data = [
        {"object": "embedding", "index": number, "embedding": vector}
        for number, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _reply({"object": "list", "data": data, "model": model, "usage": usage})


def _texts(value: object) -> Sequence[str]:
    texts = [value] if isinstance(value, str) else maybe_list(value)
    return [text for text in texts if isinstance(text, str)]


def _gemini_texts(body: dict[str, object]) -> Sequence[str]:
    contents = [maybe_object(item.get("content")) for item in maybe_list(body.get("requests"))]
    parts = [maybe_list(content.get("parts")) for content in contents]
    return [" ".join(str(maybe_object(part).get("text", "")) for part in row) for row in parts]


def _reply(body: object, status: int = 200) -> HttpReply:
    headers = {"content-type": JSON_TYPE, **LABEL_HEADERS}
    return HttpReply(status=status, headers=headers, chunks=(msgspec.json.encode(body),))
