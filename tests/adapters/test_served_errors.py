"""Errors for clients: classified by status and body, encoded with the names of their protocol."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from corpus import CORPUS, needs_corpus
from folded import for_every
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
from metis.streaming import MessageStart, StreamError
from metis.verify import adapter_of, read_recording

CLIENTS = ("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses")
OVERFLOW = {
    "anthropic": "prompt is too long",
    "bedrock-converse": "Input is too long",
    "gemini": "exceeds the maximum number of tokens",
    "openai": "maximum context length",
    "openai-responses": "maximum context length",
}
"""The text that clients of each provider search for."""


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
def test_recorded_error_has_same_class_for_every_client(name: str) -> None:
    client = adapters.get(name)
    errors = list(recorded_errors())
    assert errors
    for recording, error in errors:
        status, body = client.encode_error(error)
        read = error_of(client, body, status)
        assert type(read) is type(error), recording
        assert error.text in read.text, recording
        assert status == error.status, recording


@for_every(OVERFLOW, OVERFLOW)
def test_context_overflow_has_text_of_client_protocol(name: str, source: str) -> None:
    error = ContextOverflowError("400 too much", provider=source, status=413, kind="odd")
    status, body = adapters.get(name).encode_error(error)
    if name != source:
        assert OVERFLOW[name] in body.decode()
        assert b"odd" not in body
        assert status == 400
        assert type(error_of(adapters.get(name), body, status)) is ContextOverflowError
    else:
        assert OVERFLOW[name] not in body.decode()


@for_every(CLIENTS, [AuthenticationError, InvalidRequestError, RateLimitError, ServerError])
def test_error_names_no_other_provider(name: str, kind: type[ProviderError]) -> None:
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
def test_general_error_type_is_classified_by_status_and_text(
    name: str, status: int, body: object, expected: type[ProviderError]
) -> None:
    assert type(error_of(adapters.get(name), json.dumps(body).encode(), status)) is expected


WINDOW_PATTERNS = {
    "anthropic": (
        r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)",
        r"prompt is too long: \d+ tokens > \d+ maximum",
    ),
    "bedrock-converse": (r"(?i)input is too long for requested model",),
    "gemini": (r"(?i)input token count.*exceeds the maximum",),
    "ollama": (r"(?i)prompt too long; exceeded (?:max )?context length",),
    "openai": (r"maximum context length is \d+ tokens", r"reduce the length of the messages"),
    "openai-responses": (r"context_length_exceeded", r"maximum context length is \d+ tokens"),
}
"""Patterns that Claude Code, Codex, opencode, Cline and gemini-cli search in errors."""
WORDINGS = [
    "prompt is too long: 215432 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
    "Input is too long for requested model.",
    "Your input exceeds the context window of this model. Please adjust your input.",
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)",
    "tokens in request more than max tokens allowed",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    "Please reduce the length of the messages or completion.",
    "This endpoint's maximum context length is 204800 tokens. However, you requested 244027.",
    "prompt token count of 150000 exceeds the limit of 128000",
    "the request exceeds the available context size (4096 tokens), try increasing it",
    "The number of tokens to keep is greater than the context length",
    "invalid params, context window exceeds limit",
    "Your request exceeded model token limit: 262144",
    "context_length_exceeded",
    "model_context_window_exceeded",
    "the model's context length is only 4096 tokens, resulting in a maximum input of",
    "Input length (265330) exceeds model's maximum context length (262144).",
    "prompt too long; exceeded max context length by 1200 tokens",
    "Prompt contains 34000 tokens, too large for model with 32768 maximum context length",
    "Prompt has 140,000 tokens, but the configured context size is 131,072 tokens",
    "Range of input length should be [1, 98304]",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096",
    "too many tokens in request",
]


@pytest.mark.row("T185")
@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("name", ["anthropic", "bedrock-converse", "gemini", "ollama", "openai"])
def test_an_overflow_is_recognised_in_any_wording(name: str, wording: str) -> None:
    bodies = {
        "anthropic": {"type": "error", "error": {"type": "invalid_request_error"}},
        "bedrock-converse": {"__type": "ValidationException"},
        "gemini": {"error": {"code": 400, "status": "INVALID_ARGUMENT"}},
        "ollama": {"error": wording},
        "openai": {"error": {"type": "invalid_request_error", "code": None}},
    }
    body: dict[str, Any] = bodies[name]
    inner = body.get("error", body)
    if isinstance(inner, dict):
        inner["message"] = wording
    error = error_of(adapters.get(name), json.dumps(body).encode(), 400)
    assert type(error) is ContextOverflowError


@pytest.mark.row("T218")
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("source", CLIENTS)
def test_overflow_error_matches_client_patterns_and_has_counts(name: str, source: str) -> None:
    text = "maximum context length is 200000, got 215432 tokens"
    error = ContextOverflowError(text, provider=f"{source}-other", status=413)
    _, body = adapters.get(name).encode_error(error)
    for pattern in WINDOW_PATTERNS[name]:
        assert re.search(pattern, body.decode()), pattern
    assert text in body.decode()
    counts = error_of(adapters.get(name), body, 400)
    assert isinstance(counts, ContextOverflowError)
    assert (counts.input_tokens, counts.limit_tokens) == (215_432, 200_000)


@pytest.mark.row("T218")
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "kind", [ContextOverflowError, InvalidRequestError, RateLimitError, ServerError]
)
def test_stream_error_has_class_and_text_of_client_protocol(
    name: str, kind: type[ProviderError]
) -> None:
    client = adapters.get(name)
    encoder = client.stream_encoder(RequestContext(session_id="sess_e"))
    start = MessageStart("01KR3QAYG00000000000000001", "other:model", provider="other")
    text = "maximum context length is 200000, got 215432 tokens"
    text = text if kind is ContextOverflowError else "no"
    failure = StreamError(start.message_id, kind.__name__, text)
    sent = encoder.encode(start) + encoder.encode(failure) + encoder.finish()
    if kind is ContextOverflowError:
        for pattern in WINDOW_PATTERNS[name]:
            assert re.search(pattern, sent.decode(errors="replace")), pattern
    decoder = client.stream_decoder(RequestContext(session_id="sess_e"))
    events = [*decoder.feed(sent), *decoder.finish()]
    failure = events[-1]
    assert isinstance(failure, StreamError)
    if not (name == "ollama" and kind is not ContextOverflowError):  # it has no error types
        assert failure.error_class == kind.__name__


@pytest.mark.row("T187")
def test_retry_delay_is_where_clients_read_it() -> None:
    error = RateLimitError("slow down", provider="anthropic", status=429, retry_after_s=7)
    _, body = adapters.get("gemini").encode_error(error)
    assert json.loads(body)["error"]["details"][0]["retryDelay"] == "7s"
    for name in ("openai", "openai-responses", "gemini"):
        status, body = adapters.get(name).encode_error(error)
        assert error_of(adapters.get(name), body, status).retry_after_s == 7


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("anthropic", 400, "Your credit balance is too low to access the Anthropic API."),
        ("openrouter", 402, "Insufficient credits. Add more using https://openrouter.ai"),
        ("gemini", 400, "API key not valid. Please pass a valid API key."),
        ("groq", 400, "Invalid API Key"),
    ],
)
def test_key_without_permission_is_an_authentication_error(
    name: str, status: int, text: str
) -> None:
    body = {"error": {"message": text, "type": "invalid_request_error"}}
    error = error_of(adapters.get(name), json.dumps(body).encode(), status)
    assert type(error) is AuthenticationError
