"""Requests for embeddings and their responses, for every protocol that has them."""

import json
from typing import Any

import pytest

from metis import adapters
from metis.adapters.embeddings import (
    MAX_TEXTS,
    decode_embeddings,
    embedding_path,
    embedding_request,
)
from metis.canonical.errors import InvalidValueError, OtherProviderError

GOOD: dict[str, Any] = {
    "openai": {"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}]},
    "mistral": {"data": [{"embedding": [1, 0]}, {"embedding": [0, 1]}]},
    "gemini": {"embeddings": [{"values": [1, 0]}, {"values": [0, 1]}]},
    "ollama": {"embeddings": [[1, 0], [0, 1]], "prompt_eval_count": 7},
}
BAD = {
    "openai": b'{"data": [{"index": 0, "embedding": %b}, {"index": 1, "embedding": [1, 2]}]}',
    "gemini": b'{"embeddings": [{"values": %b}, {"values": [1, 2]}]}',
    "ollama": b'{"embeddings": [%b, [1, 2]]}',
}


@pytest.mark.parametrize(
    ("provider", "path"),
    [
        ("openai", "/v1/embeddings"),
        ("openai-responses", "/v1/embeddings"),
        ("openrouter", "/api/v1/embeddings"),
        ("gemini", "/v1beta/models/some-model:batchEmbedContents"),
        ("ollama", "/api/embed"),
    ],
)
def test_each_protocol_has_a_path_of_its_own(provider: str, path: str) -> None:
    assert embedding_path(adapters.profile_of(provider), "some-model") == path


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "bedrock-converse", "vertex-claude"])
def test_a_provider_without_embeddings_is_refused_with_others_that_have_them(provider: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{provider} has no embeddings; use a model such"):
        embedding_request(adapters.profile_of(provider), "some-model", ["a"])


def test_gemini_gets_a_request_for_each_text_and_its_task() -> None:
    profile = adapters.profile_of("gemini")
    body = json.loads(embedding_request(profile, "m", ["a", "b"], is_query=True).body)
    assert body["requests"][1] == {
        "model": "models/m",
        "content": {"parts": [{"text": "b"}]},
        "taskType": "RETRIEVAL_QUERY",
    }
    body = json.loads(embedding_request(profile, "m", ["a"]).body)
    assert body["requests"][0]["taskType"] == "RETRIEVAL_DOCUMENT"


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_others_get_a_list_of_texts(provider: str) -> None:
    request = embedding_request(adapters.profile_of(provider), "m", ["a", "b"])
    assert json.loads(request.body) == {"model": "m", "input": ["a", "b"]}


@pytest.mark.parametrize("texts", [[], [" "], ["a"] * (MAX_TEXTS + 1)])
def test_no_texts_empty_ones_and_too_many_are_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidValueError):
        embedding_request(adapters.profile_of("openai"), "m", texts)


@pytest.mark.parametrize("provider", GOOD)
def test_vectors_come_in_the_order_of_the_texts(provider: str) -> None:
    body = json.dumps(GOOD[provider]).encode()
    embeddings = decode_embeddings(adapters.profile_of(provider), "m", body, 2)
    assert [list(vector) for vector in embeddings.vectors] == [[1, 0], [0, 1]]
    assert embeddings.input_tokens == (7 if provider == "ollama" else 0)


@pytest.mark.parametrize("provider", BAD)
@pytest.mark.parametrize(
    "vector",
    [
        *(b"[]", b"[1]", b"[1e300, 0]", b'["a", 1]', b"null", b"1", b"[1, null]", b"[" * 5000),
        b"[%b]" % b",".join([b"1"] * 20_000),
    ],
)
def test_what_is_no_vector_is_a_typed_error(provider: str, vector: bytes) -> None:
    with pytest.raises(OtherProviderError, match="the response cannot be used"):
        decode_embeddings(adapters.profile_of(provider), "m", BAD[provider] % vector, 2)


def test_a_vector_for_each_text_is_expected() -> None:
    body = json.dumps(GOOD["ollama"]).encode()
    with pytest.raises(OtherProviderError, match="2 vectors for 3 texts"):
        decode_embeddings(adapters.profile_of("ollama"), "m", body, 3)
