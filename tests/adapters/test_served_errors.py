"""Errors for clients: judged by status and body, written with the names of their protocol."""

import json
from collections.abc import Iterator

import pytest

from corpus import CORPUS, needs_corpus
from metis import adapters
from metis.adapters import Adapter, RequestContext
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.verify import adapter_of, read_recording

CLIENTS = ("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses")
OVERFLOW = {
    "anthropic": "prompt is too long",
    "bedrock-converse": "Input is too long",
    "gemini": "exceeds the maximum number of tokens",
    "openai": "maximum context length",
    "openai-responses": "maximum context length",
}
"""The words that clients of each provider look for."""


def error_of(adapter: Adapter, body: bytes, status: int) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        adapter.from_wire_response(body, RequestContext(status=status))
    return caught.value


def recorded_errors() -> Iterator[tuple[str, ProviderError]]:
    for path in sorted(CORPUS.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            recording = read_recording(line)
            adapter = adapter_of(recording)
            status = recording.status or 200
            if adapter is not None and status >= 400 and recording.body is not None:
                yield recording.id, error_of(adapter, recording.body, status)


@needs_corpus
@pytest.mark.parametrize("name", CLIENTS)
def test_a_recorded_error_is_the_same_error_for_every_client(name: str) -> None:
    client = adapters.get(name)
    errors = list(recorded_errors())
    assert errors
    for recording, error in errors:
        status, body = client.encode_error(error)
        read = error_of(client, body, status)
        assert (type(read), read.text) == (type(error), error.text), recording
        assert status == error.status, recording


@pytest.mark.parametrize("name", OVERFLOW)
@pytest.mark.parametrize("source", OVERFLOW)
def test_a_full_context_window_is_named_in_the_words_of_the_client(name: str, source: str) -> None:
    error = ContextOverflowError("400 too much", provider=source, status=413, kind="odd")
    status, body = adapters.get(name).encode_error(error)
    if name != source and not (name.startswith("openai") and source.startswith("openai")):
        assert OVERFLOW[name] in body.decode()
        assert b"odd" not in body
        assert status == 400
        assert type(error_of(adapters.get(name), body, status)) is ContextOverflowError
    else:
        assert OVERFLOW[name] not in body.decode()


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "kind", [AuthenticationError, InvalidRequestError, RateLimitError, ServerError]
)
def test_names_of_another_provider_do_not_reach_a_client(
    name: str, kind: type[ProviderError]
) -> None:
    client = adapters.get(name)
    source = "gemini" if name != "gemini" else "anthropic"
    error = kind("failed", provider=source, kind="ODD_KIND", code="ODD_CODE", request_id="req_odd")
    status, body = client.encode_error(error)
    assert b"odd" not in body.lower()
    assert type(error_of(client, body, status)) is kind


@pytest.mark.parametrize(
    ("name", "status", "body", "expected"),
    [
        (
            "anthropic",
            401,
            {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}},
            AuthenticationError,
        ),
        (
            "gemini",
            403,
            {"error": {"code": 403, "status": "INVALID_ARGUMENT", "message": "no"}},
            AuthenticationError,
        ),
        (
            "bedrock-converse",
            429,
            {"__type": "ValidationException", "message": "no"},
            RateLimitError,
        ),
        (
            "openai",
            400,
            {"error": {"type": "invalid_request_error", "message": "Incorrect API key provided"}},
            AuthenticationError,
        ),
        (
            "anthropic",
            400,
            {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}},
            InvalidRequestError,
        ),
    ],
)
def test_a_general_type_is_judged_by_status_and_text(
    name: str, status: int, body: object, expected: type[ProviderError]
) -> None:
    assert type(error_of(adapters.get(name), json.dumps(body).encode(), status)) is expected
