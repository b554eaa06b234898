"""Gemini tools, options, paths and errors."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from build import user
from corpus import body_of
from encoding import encode_request
from gemini_build import CONTEXT, DECLARED, PROMPT_TURN, REQUESTS, round_trip_body, sent
from judges import complaints
from metis import adapters
from metis.canonical import (
    SideEffects,
    ToolDefinition,
)
from metis.canonical.errors import (
    AuthenticationError,
    ContextOverflowError,
    DecodeError,
    InvalidRequestError,
    InvalidValueError,
    NetworkError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.gemini.codec import CODEC
from metis.wire.gemini.fast import decode_request
from metis.wire.gemini.options import decode_schema
from metis.wire.gemini.request import parse_path
from metis.wire.gemini.response import decode_error, decode_response, encode_error

TOOL = ToolDefinition(
    name="f",
    description="Does it.",
    input_schema=DECLARED["parametersJsonSchema"],
    side_effects=SideEffects.EXECUTE,
)


@pytest.mark.row("T102", "T105")
def test_tools_are_declared_in_json_schema_and_without_parameters_if_they_have_none() -> None:
    strange: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"a": {"type": ["string", "null"], "const": "x"}},
    }
    tools = [
        replace(TOOL, input_schema=strange),
        replace(TOOL, name="g", description="", input_schema={"type": "object", "properties": {}}),
    ]
    wire = adapters.get("gemini").to_wire([user("go")], tools)
    body = json.loads(wire.body)
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "f", "description": "Does it.", "parametersJsonSchema": strange},
                {"name": "g"},
            ]
        }
    ]
    assert complaints("gemini", body) == []


SCHEMAS: list[tuple[Any, Any]] = [
    ({"type": "STRING"}, {"type": "string"}),
    ({"type": 6, "properties": {"a": {"type": 3}}}, None),
    ({"type": "INTEGER", "enum": ["1"], "format": "enum"}, {"type": "integer", "enum": [1]}),
    ({"type": "NUMBER", "enum": ["1.5", "x"]}, {"type": "number", "enum": [1.5, "x"]}),
    ({"type": "INTEGER", "enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}),
    ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
    (
        {"type": "STRING", "enum": ["a"], "nullable": True},
        {"type": ["string", "null"], "enum": ["a", None]},
    ),
    ({"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": "2"}, None),
    ({"any_of": [{"type": "STRING"}], "nullable": True}, None),
    ({"type": "TYPE_UNSPECIFIED"}, {}),
    ({"type": "object", "properties": {"type": {"type": "string"}}}, None),
    ({"type": "OBJECT", "propertyOrdering": ["a"], "example": {}}, {"type": "object"}),
    (True, True),
]
_READ = {
    1: {"type": "object", "properties": {"a": {"type": "integer"}}},
    7: {"type": "array", "items": {"type": "number"}, "minItems": 2},
    8: {"anyOf": [{"type": "string"}, {"type": "null"}]},
    10: {"type": "object", "properties": {"type": {"type": "string"}}},
}


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_the_dialect_of_schemas_is_read_as_json_schema(number: int) -> None:
    dialect, expected = SCHEMAS[number]
    assert decode_schema(dialect) == (_READ[number] if expected is None else expected)


def test_tools_in_the_dialect_move_to_other_providers() -> None:
    dialect = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}
    declared = {"name": "f", "description": "Does it.", "parameters": dialect}
    body = sent(PROMPT_TURN, tools=[{"function_declarations": [declared]}, {"googleSearch": {}}])
    request = adapters.get("gemini").from_wire_request(body, CONTEXT)
    assert request.tools == (TOOL,)
    wire = adapters.get("anthropic").to_wire(
        request.messages, request.tools, replace(request.options, model=None)
    )
    assert [loss.path for loss in wire.losses] == ["$.tools[0]"]
    assert "googleSearch" in wire.losses[0].reason


@pytest.mark.row("T71", "T87", "T212")
def test_unmapped_keys_of_declaration_round_trip_and_are_lost_elsewhere() -> None:
    schema = DECLARED["parametersJsonSchema"]
    answer = {"type": "OBJECT", "properties": {"b": {"type": "STRING"}}}
    more = {"behavior": "NON_BLOCKING", "response": answer}
    first = {"name": "f", "description": "Does it.", "parameters_json_schema": schema, **more}
    second = {"name": "g", "responseJsonSchema": {"type": "object"}}
    both: dict[str, Any] = {"functionDeclarations": [first, second], "googleSearch": {}}
    gemini = adapters.get("gemini")
    request = gemini.from_wire_request(sent(PROMPT_TURN, tools=[both]), CONTEXT)
    same = gemini.to_wire(request.messages, request.tools, request.options)
    assert json.loads(same.body)["tools"] == [both]
    assert same.losses == []
    # One description changed and one tool added: unchanged tools keep their original form.
    changed = (
        request.tools[0],
        replace(request.tools[1], description="Does more."),
        replace(TOOL, name="h", input_schema={"type": "object", "properties": {}}),
    )
    other = gemini.to_wire(request.messages, changed, request.options)
    assert json.loads(other.body)["tools"] == [
        {
            "functionDeclarations": [
                first,
                {"name": "g", "description": "Does more.", **_without(second, "name")},
                {"name": "h", "description": "Does it."},
            ]
        },
        {"googleSearch": {}},
    ]
    assert other.losses == []
    for name in ("anthropic", "openai", "openai-responses", "ollama", "vertex"):
        options = replace(request.options, model=None)
        away = adapters.get(name).to_wire(request.messages, request.tools, options)
        assert sorted(loss.path for loss in away.losses if loss.path != "$.tools[0]") == [
            "$.tools[0].functionDeclarations[0].behavior",
            "$.tools[0].functionDeclarations[0].response",
            "$.tools[0].functionDeclarations[1].responseJsonSchema",
        ]


def _without(wire: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in wire.items() if key != name}


def test_gemini_only_options_are_losses_elsewhere() -> None:
    request = adapters.get("gemini").from_wire_request(REQUESTS["options"], CONTEXT)
    wire = adapters.get("openai").to_wire(
        request.messages, (), replace(request.options, model="gpt-4o")
    )
    assert sorted(loss.path for loss in wire.losses) == [
        "$.cachedContent",
        "$.generationConfig.candidateCount",
        "$.generationConfig.thinkingConfig.includeThoughts",
        "$.labels",
        "$.output.strict",
        "$.reasoning",
        "$.safetySettings",
        "$.top_k",
    ]


@pytest.mark.row("T113")
def test_shared_options_are_read_and_written() -> None:
    read = decode_request(body_of(REQUESTS["options"]), CONTEXT).options
    assert (read.model, read.max_output_tokens, read.temperature) == (CONTEXT.model, 9, 0.0)
    assert (read.top_p, read.top_k, read.stop_sequences) == (1, 40, ("x",))
    written = json.loads(
        encode_request(
            CODEC,
            [user("go")],
            (),
            AdapterOptions(
                max_output_tokens=5,
                stop_sequences=("a",),
                tool_choice=ToolChoice("tool", "f"),
            ),
        )
    )
    assert written["generationConfig"] == {"maxOutputTokens": 5, "stopSequences": ["a"]}
    assert written["toolConfig"] == {
        "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}
    }


CHOICES: list[tuple[dict[str, Any], ToolChoice | None]] = [
    ({"mode": "AUTO"}, ToolChoice()),
    ({"mode": "VALIDATED"}, ToolChoice()),
    ({"mode": "NONE"}, ToolChoice("none")),
    ({"mode": "ANY"}, ToolChoice("required")),
    ({"mode": "ANY", "allowed_function_names": ["f"]}, ToolChoice("tool", "f")),
    ({"mode": "ANY", "allowedFunctionNames": ["f", "g"]}, ToolChoice("required")),
    ({"mode": 3}, ToolChoice("none")),
    ({"mode": "MODE_UNSPECIFIED"}, None),
    ({"mode": []}, None),
]


@pytest.mark.row("T113")
@pytest.mark.parametrize(("wire", "expected"), CHOICES)
def test_tool_choice_modes(wire: dict[str, Any], expected: ToolChoice | None) -> None:
    body = sent(PROMPT_TURN, tool_config={"function_calling_config": wire})
    assert decode_request(body_of(body), CONTEXT).options.tool_choice == expected
    assert round_trip_body(body) == body


def test_changed_option_overrides_original_form() -> None:
    request = decode_request(body_of(REQUESTS["snake case"]), CONTEXT)
    options = replace(request.options, max_output_tokens=5, temperature=0.5)
    body = json.loads(encode_request(CODEC, request.messages, (), options))
    assert body["generation_config"] == {
        "max_output_tokens": 5,
        "temperature": 0.5,
        "response_mime_type": "application/json",
    }
    without = replace(request.options, max_output_tokens=None)
    body = json.loads(encode_request(CODEC, request.messages, (), without))
    assert body["generation_config"] == {"response_mime_type": "application/json"}


def test_changed_tools_keep_provider_tools() -> None:
    request = decode_request(body_of(REQUESTS["tools"]), CONTEXT)
    body = json.loads(encode_request(CODEC, request.messages, (TOOL,), request.options))
    assert body["tools"] == [
        {"functionDeclarations": [DECLARED]},
        {"googleSearch": {}},
        {"codeExecution": {}},
    ]


PLACE = "projects/p-1/locations/europe-west4"
PATHS = [
    ("gemini", None, "gemini-2.5-flash", False, "/v1beta/models/gemini-2.5-flash:generateContent"),
    (
        "gemini",
        None,
        "gemini:gemini-2.5-flash",
        True,
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
    ),
    ("gemini", None, "tunedModels/mine", False, "/v1beta/tunedModels/mine:generateContent"),
    ("gemini", None, "models/m?x=1", False, "/v1beta/models/m%3Fx%3D1:generateContent"),
    (
        "vertex",
        None,
        "gemini-2.5-flash",
        False,
        "/v1/publishers/google/models/gemini-2.5-flash:generateContent",
    ),
    (
        "vertex",
        PLACE,
        "gemini-2.5-flash",
        True,
        f"/v1/{PLACE}/publishers/google/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
    ),
]


@pytest.mark.parametrize(("host", "place", "model", "stream", "path"), PATHS)
def test_path_names_model_and_streaming(
    host: str,
    place: str | None,
    model: str,
    stream: bool,  # noqa: FBT001 - a column of the table
    path: str,
) -> None:
    adapter = adapters.get(host, place=place)
    wire = adapter.to_wire([user("go")], (), AdapterOptions(model=model, stream=stream))
    assert wire.path == path
    assert b'"model"' not in wire.body
    assert b'"stream"' not in wire.body


def test_region_selects_host() -> None:
    region = adapters.get("vertex", place="projects/p/locations/us-central1")
    assert region.profile.base_url == "https://us-central1-aiplatform.googleapis.com"
    everywhere = adapters.get("vertex", place="projects/p/locations/global")
    assert everywhere.profile.base_url == "https://aiplatform.googleapis.com"
    for name, place in (("vertex", "projects/p"), ("vertex", "../x"), ("gemini", "projects/p")):
        with pytest.raises(InvalidValueError):
            adapters.get(name, place=place)


@pytest.mark.parametrize("model", ["", "..", "../../x", "a//b", "./a"])
def test_model_name_cannot_change_the_path(model: str) -> None:
    with pytest.raises(InvalidValueError):
        adapters.get("gemini").profile.request_path(model)


READ_PATHS = [
    ("/v1/models/m:generateContent", ("m", False)),
    ("/v1beta/models/m:generateContent?key=x", ("m", False)),
    ("/v1beta/models/m:streamGenerateContent", ("m", True)),
    ("/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent", ("m", False)),
    ("/proxy/v1/publishers/google/models/m:streamGenerateContent?alt=sse", ("m", True)),
    ("/v1beta/tunedModels/x:generateContent", ("tunedModels/x", False)),
]


@pytest.mark.parametrize(("path", "expected"), READ_PATHS)
def test_paths_of_all_versions_are_read(path: str, expected: tuple[str, bool]) -> None:
    assert parse_path(path) == expected


@pytest.mark.parametrize("path", ["", "/v1/models/m", "/v2/models/m:generateContent", "/v1/:x"])
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(DecodeError):
        parse_path(path)


ERRORS: list[tuple[int, str, str, type[ProviderError]]] = [
    (400, "INVALID_ARGUMENT", "bad", InvalidRequestError),
    (400, "INVALID_ARGUMENT", "The input is too long: exceeds token limit", ContextOverflowError),
    (403, "PERMISSION_DENIED", "no", AuthenticationError),
    (401, "UNAUTHENTICATED", "no", AuthenticationError),
    (404, "NOT_FOUND", "no model", InvalidRequestError),
    (429, "RESOURCE_EXHAUSTED", "quota", RateLimitError),
    (500, "INTERNAL", "oops", ServerError),
    (503, "UNAVAILABLE", "overloaded", ServerError),
    (504, "DEADLINE_EXCEEDED", "late", NetworkError),
    (502, "SOMETHING", "?", ServerError),
]


@pytest.mark.row("T185", "T194")
@pytest.mark.parametrize(("status", "kind", "words", "expected"), ERRORS)
def test_error_body_decodes_to_typed_error_and_round_trips(
    status: int, kind: str, words: str, expected: type[ProviderError]
) -> None:
    wire = {"error": {"code": status, "message": words, "status": kind}}
    error = decode_error(wire, status)
    assert type(error) is expected
    assert (error.status, error.kind, error.text) == (status, kind, words)
    code, body = encode_error(error)
    assert (code, json.loads(body)) == (status, wire)
    for body in (wire, body_of(wire), body_of([wire])):
        with pytest.raises(expected):
            decode_response(body, RequestContext(status=status))
    with pytest.raises(expected):
        decode_response(wire, RequestContext())


@pytest.mark.row("T187")
def test_retry_delay_is_read_from_body_and_daily_quota_is_not_retried() -> None:
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.837906927s"}
    wire = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "x"}}
    short = decode_error({"error": {**wire["error"], "details": [retry]}})
    assert (short.retry_after_s, short.is_retryable, short.status) == (45.837906927, True, 429)
    decoded_error = decode_error({"error": {**wire["error"], "message": "Please retry in 7.5s."}})
    assert decoded_error.retry_after_s == 7.5
    quota = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
    daily = decode_error({"error": {**wire["error"], "details": [retry, quota]}})
    assert not daily.is_retryable


def test_invalid_key_is_reported_as_invalid_argument() -> None:
    details = [{"reason": "API_KEY_INVALID", "domain": "googleapis.com"}]
    error = {"code": 400, "status": "INVALID_ARGUMENT", "message": "x", "details": details}
    wire = {"error": error}
    assert type(decode_error(wire)) is AuthenticationError


def test_configuration_of_thinking_alone_is_removed_with_it() -> None:
    contents = [{"role": "user", "parts": [{"text": "hi"}]}]
    thinking = {"thinkingConfig": {"thinkingBudget": 5}}
    adapter = adapters.get("gemini")
    for config, rest in ((thinking, None), ({**thinking, "topK": 3}, {"topK": 3})):
        request = adapter.from_wire_request(
            {"contents": contents, "generationConfig": config}, CONTEXT
        )
        options = replace(request.options, reasoning=None)
        body = json.loads(adapter.to_wire(request.messages, (), options).body)
        assert body.get("generationConfig") == rest
