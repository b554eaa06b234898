"""Requests that the real APIs refuse are refused in their form; valid ones are accepted."""

from copy import deepcopy
from typing import Any

import pytest

from metis.canonical.errors import InvalidRequestError
from metis.sim import Service, Settings
from metis.sim.strict import CHECKS, CheckContext
from simulated import (
    ANTHROPIC,
    GEMINI,
    SIGNER,
    VALID_BODIES,
    json_of,
    requires_adapter,
    send_request,
)

HEADERS = {"anthropic-version": "2023-06-01"}


def check(protocol: str, wire: Any) -> None:
    case = CheckContext(signer=SIGNER, headers=HEADERS, model="gemini-3.5-flash")
    CHECKS[protocol](wire, case)


@pytest.mark.parametrize("protocol", VALID_BODIES)
def test_valid_requests_are_accepted(protocol: str) -> None:
    check(protocol, VALID_BODIES[protocol])


REMOVED = object()
REFUSED_CHANGES: list[tuple[str, tuple[Any, ...], Any, str]] = [
    # protocol, path, replacement at that path, text of the refusal
    ("anthropic", ("max_tokens",), REMOVED, "max_tokens: Field required"),
    ("anthropic", ("max_tokens",), 1000, "must be greater than `thinking.budget_tokens`"),
    ("anthropic", ("thinking", "budget_tokens"), 10, "greater than or equal to 1024"),
    ("anthropic", ("temperature",), 0.5, "may only be set to 1 when thinking"),
    ("anthropic", ("temperature",), 1.5, "range: 0..1"),
    ("anthropic", ("colour",), "red", "colour: Extra inputs are not permitted"),
    ("anthropic", ("messages",), [], "at least one message"),
    ("anthropic", ("messages", 0, "role"), "system", "Unexpected role"),
    ("anthropic", ("messages", 0, "role"), "assistant", "not permitted in `assistant`"),
    ("anthropic", ("messages", 0, "content"), " ", "non-whitespace text"),
    ("anthropic", ("messages", 0, "content"), [], "non-empty content"),
    ("anthropic", ("messages", 0, "content", 0, "text"), "", "must be non-empty"),
    ("anthropic", ("messages", 0, "name"), "Ada", "Extra inputs"),
    (
        "anthropic",
        ("messages", 0, "content", 1, "source", "media_type"),
        "image/tiff",
        "Input should be 'image/jpeg'",
    ),
    (
        "anthropic",
        ("messages", 0, "content", 1, "source", "media_type"),
        "image/gif",
        "does not match the provided media type",
    ),
    ("anthropic", ("messages", 0, "content", 1, "source", "data"), "?", "invalid base64"),
    ("anthropic", ("messages", 1, "content", 0, "signature"), "stolen", "Invalid `signature`"),
    ("anthropic", ("messages", 1, "content", 0, "thinking"), "Ha.", "Invalid `signature`"),
    ("anthropic", ("messages", 1, "content", 1, "data"), "stolen", "Invalid `data`"),
    ("anthropic", ("messages", 1, "content", 2, "id"), "a b", "should match pattern"),
    ("anthropic", ("messages", 1, "content", 2, "id"), "toolu_2", "must be unique"),
    ("anthropic", ("messages", 1, "content", 2, "input"), "{}", "valid dictionary"),
    ("anthropic", ("messages", 1, "content", 2, "index"), 0, "Extra inputs"),
    ("anthropic", ("messages", 2, "content", 0), REMOVED, "without `tool_result` blocks"),
    (
        "anthropic",
        ("messages", 2, "content", 0, "tool_use_id"),
        "toolu_9",
        "unexpected",
    ),
    ("anthropic", ("messages", 2, "content", 1, "tool_use_id"), "toolu_1", "single result"),
    ("anthropic", ("messages", 2), REMOVED, "without `tool_result` blocks"),
    ("anthropic", ("tools", 0, "name"), "a b", "should match pattern"),
    ("anthropic", ("tools", 0, "input_schema"), {"type": "string"}, "should be 'object'"),
    ("anthropic", ("tool_choice",), {"type": "tool", "name": "x"}, "not found in provided"),
    ("anthropic", ("tool_choice",), {"type": "any"}, "forces tool use"),
    ("anthropic", ("stop_sequences",), [" "], "non-whitespace"),
    ("anthropic", ("system", 0, "text"), "", "must be non-empty"),
    ("openai_chat", ("model",), REMOVED, "model parameter"),
    ("openai_chat", ("messages",), [], "too short"),
    ("openai_chat", ("colour",), "red", "Unrecognized request argument"),
    ("openai_chat", ("temperature",), 3, "temperature"),
    ("openai_chat", ("stream_options",), {"include_usage": True}, "only allowed when 'stream'"),
    ("openai_chat", ("stop",), list("abcde"), "at most 4"),
    ("openai_chat", ("max_tokens",), 0, "below minimum"),
    ("openai_chat", ("messages", 0, "role"), "robot", "Invalid value: 'robot'"),
    ("openai_chat", ("messages", 1, "content"), None, "got null"),
    ("openai_chat", ("messages", 1, "content", 0, "type"), "output_text", "Invalid value"),
    ("openai_chat", ("messages", 1, "content", 1, "image_url", "url"), "x", "Invalid image"),
    (
        "openai_chat",
        ("messages", 1, "content", 1, "image_url", "url"),
        "data:image/tiff;base64,AAAA",
        "unsupported image",
    ),
    ("openai_chat", ("messages", 2, "tool_calls"), [], "got null"),
    ("openai_chat", ("messages", 1, "tool_calls"), [], "Additional properties"),
    ("openai_chat", ("messages", 2, "tool_calls", 0, "id"), "x" * 41, "maximum length 40"),
    ("openai_chat", ("messages", 2, "tool_calls", 0, "function", "name"), "a b", "pattern"),
    ("openai_chat", ("messages", 2, "tool_calls", 0, "function", "arguments"), {}, "a string"),
    ("openai_chat", ("messages", 3), REMOVED, "did not have response messages: call_b"),
    ("openai_chat", ("messages", 2), REMOVED, "must be a response to a prec"),
    ("openai_chat", ("messages", 4, "tool_call_id"), "call_b", "Duplicate value"),
    ("openai_chat", ("tools",), [], "empty array"),
    ("openai_chat", ("tools", 0, "function", "name"), "a.b", "pattern"),
    ("openai_chat", ("tools", 0, "function", "strict"), True, "additionalProperties"),
    ("openai_chat", ("response_format",), {"type": "json_object"}, "the word 'json'"),
    ("openai_responses", ("model",), REMOVED, "Missing required parameter: 'model'"),
    ("openai_responses", ("messages",), [], "Unknown parameter: 'messages'"),
    ("openai_responses", ("max_output_tokens",), 8, "Expected a value >= 16"),
    ("openai_responses", ("previous_response_id",), "resp_1", "not found"),
    ("openai_responses", ("input", 1, "encrypted_content"), "stolen", "could not be verified"),
    ("openai_responses", ("input", 1, "id"), "msg_1", "begins with 'rs'"),
    ("openai_responses", ("input", 2, "call_id"), "x" * 65, "maximum length 64"),
    ("openai_responses", ("input", 2, "arguments"), REMOVED, "arguments"),
    ("openai_responses", ("input", 3), REMOVED, "No tool output found for function call call_1"),
    ("openai_responses", ("input", 2), REMOVED, "No tool call found"),
    ("openai_responses", ("input", 0, "content"), [{"type": "text", "text": "x"}], "Invalid value"),
    ("openai_responses", ("tools", 0, "parameters", "type"), "string", "must be a JSON Schema"),
    ("gemini", ("contents",), [], "contents is not specified"),
    ("gemini", ("messages",), [], 'Unknown name "messages"'),
    ("gemini", ("contents", 0, "role"), "assistant", "valid role"),
    ("gemini", ("contents", 0, "parts"), [], "must not be empty"),
    ("gemini", ("contents", 0, "parts", 0), {"colour": 1}, "required oneof field"),
    ("gemini", ("contents", 1, "parts", 0, "thoughtSignature"), "stolen", "Corrupted"),
    (
        "gemini",
        ("contents", 1, "parts", 0, "thoughtSignature"),
        REMOVED,
        "missing a thought_signature",
    ),
    ("gemini", ("contents", 2), REMOVED, "number of function response parts"),
    ("gemini", ("contents", 0), REMOVED, "immediately after a user turn"),
    ("gemini", ("tools", 0, "functionDeclarations", 0, "name"), "1 a", "Invalid function name"),
    ("ollama", ("model",), REMOVED, "model is required"),
    ("ollama", ("messages", 0, "role"), "robot", "invalid role"),
    ("ollama", ("messages", 0, "images", 0), "?", "illegal base64"),
    ("ollama", ("messages", 0, "content"), [], "cannot unmarshal array"),
    ("ollama", ("messages", 1, "tool_calls", 0, "function", "arguments"), "{}", "cannot unmarshal"),
    ("ollama", ("think",), "very", "think must be"),
]


def with_change(protocol: str, path: tuple[Any, ...], value: Any) -> Any:
    wire = deepcopy(VALID_BODIES[protocol])
    target: Any = wire
    for step in path[:-1]:
        target = target[step]
    if value is REMOVED:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return wire


@pytest.mark.parametrize(
    ("protocol", "path", "value", "text"),
    REFUSED_CHANGES,
    ids=[f"{case[0]}-{'.'.join(map(str, case[1]))}-{n}" for n, case in enumerate(REFUSED_CHANGES)],
)
def test_invalid_requests_are_refused(
    protocol: str, path: tuple[Any, ...], value: Any, text: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(protocol, with_change(protocol, path, value))
    assert text in caught.value.text


def test_five_cache_marks_are_refused() -> None:
    wire = deepcopy(ANTHROPIC)
    text = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    wire["messages"][2]["content"] += [text, text, text]
    check("anthropic", wire)
    wire["messages"][2]["content"].append(text)
    with pytest.raises(InvalidRequestError, match=r"maximum of 4 blocks .* Found 5"):
        check("anthropic", wire)


def test_tool_turn_requires_thinking_first_if_thinking_is_enabled() -> None:
    wire = deepcopy(ANTHROPIC)
    del wire["messages"][1]["content"][:2]
    with pytest.raises(InvalidRequestError, match="Expected `thinking`"):
        check("anthropic", wire)
    del wire["thinking"]
    check("anthropic", wire)


def test_older_gemini_models_require_no_signature() -> None:
    wire = deepcopy(GEMINI)
    del wire["contents"][1]["parts"][0]["thoughtSignature"]
    CHECKS["gemini"](wire, CheckContext(signer=SIGNER, model="gemini-2.5-flash"))


@pytest.mark.parametrize(
    ("name", "body", "shape"),
    [
        pytest.param(
            "anthropic",
            with_change("anthropic", ("messages", 2), REMOVED),
            {"type": "error", "error": {"type": "invalid_request_error"}},
            marks=requires_adapter("anthropic"),
        ),
        pytest.param(
            "openai",
            with_change("openai_chat", ("messages", 3), REMOVED),
            {"error": {"type": "invalid_request_error", "code": None, "param": None}},
            marks=requires_adapter("openai"),
        ),
        pytest.param(
            "openai-responses",
            with_change("openai_responses", ("input", 3), REMOVED),
            {"error": {"type": "invalid_request_error", "code": None, "param": None}},
            marks=requires_adapter("openai-responses"),
        ),
        pytest.param(
            "gemini",
            with_change("gemini", ("contents", 2), REMOVED),
            {"error": {"code": 400, "status": "INVALID_ARGUMENT"}},
            marks=requires_adapter("gemini"),
        ),
        pytest.param(
            "ollama",
            with_change("ollama", ("model",), REMOVED),
            {},
            marks=requires_adapter("ollama"),
        ),
    ],
)
def test_refusal_has_error_format_of_provider(name: str, body: Any, shape: Any) -> None:
    reply = send_request(Service(), name, body)
    body_json = json_of(reply)
    assert reply.status == 400
    assert set(body_json) >= set(shape)
    for key, value in shape.items():
        if isinstance(value, dict):
            error = dict(body_json[key])
            assert error.pop("message")
            assert error == value


@requires_adapter("anthropic")
def test_lenient_mode_accepts_decodable_requests() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "colour": "red"}
    assert send_request(Service(), "anthropic", body).status == 400
    assert send_request(Service(settings=Settings(strict=False)), "anthropic", body).status == 200
