"""The simulator's service: determinism, scripted faults, keys, limits and paths."""

from copy import deepcopy
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis import adapters
from metis.canonical import TextBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.sim import Fault, ModelOutput, Script, Service, Settings
from metis.sim.endpoints import HttpRequest
from metis.sim.faults import fault_in_prompt, parse_fault
from simulated import PROTOCOLS, READ_SCHEMA, VALID_BODIES, json_of, requires_adapter, send_request

BODIES: dict[str, Any] = {
    "anthropic": {
        "model": "claude-sonnet-4-6",
        "max_tokens": 2000,
        "thinking": {"type": "adaptive"},
        "messages": [{"role": "user", "content": "WORDS"}],
        "tools": [{"name": "read_file", "input_schema": READ_SCHEMA}],
    },
    "openai": {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "WORDS"}],
        "tools": [
            {"type": "function", "function": {"name": "read_file", "parameters": READ_SCHEMA}}
        ],
    },
    "openai-responses": {
        "model": "gpt-5",
        "input": [{"role": "user", "content": "WORDS"}],
        "tools": [{"type": "function", "name": "read_file", "parameters": READ_SCHEMA}],
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "WORDS"}]}],
        "tools": [{"functionDeclarations": [{"name": "read_file", "parameters": READ_SCHEMA}]}],
    },
    "ollama": {
        "model": "llama3.2",
        "stream": False,
        "messages": [{"role": "user", "content": "WORDS"}],
        "tools": [
            {"type": "function", "function": {"name": "read_file", "parameters": READ_SCHEMA}}
        ],
    },
}


def request_body(name: str, prompt: str) -> bytes:
    return msgspec.json.encode(BODIES[name]).replace(b'"WORDS"', msgspec.json.encode(prompt))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_responses_are_deterministic(name: str) -> None:
    body = request_body(name, "Read notes.txt")
    first, second = send_request(Service(), name, body), send_request(Service(), name, body)
    assert first == second
    assert first.status == 200
    assert send_request(Service(), name, request_body(name, "Read other.txt")).body != first.body


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_reply_is_labelled(name: str) -> None:
    reply = send_request(Service(), name, request_body(name, "hello"))
    assert reply.headers["x-simulator"] == "metis"
    body_json = json_of(reply)
    model = body_json.get("model") or body_json.get("modelVersion")
    assert model.startswith("sim-")


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("status", [401, 429, 500, 503, 529])
def test_requested_status_is_returned(name: str, status: int) -> None:
    reply = send_request(Service(), name, request_body(name, f"sim: {status} 2"))
    assert (reply.status, reply.headers["retry-after"]) == (status, "2")
    assert "error" in json_of(reply)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_fault_can_be_requested_by_header(name: str) -> None:
    reply = send_request(Service(), name, request_body(name, "hello"), {"x-sim-behave": "429"})
    assert reply.status == 429
    wrong = send_request(Service(), name, request_body(name, "hello"), {"x-sim-behave": "dance"})
    assert wrong.status == 400
    assert b"unknown fault" in wrong.body


@pytest.mark.parametrize("name", PROTOCOLS)
def test_fault_can_be_limited_to_first_requests(name: str) -> None:
    service, body = Service(), request_body(name, "sim: 500 x2")
    assert [send_request(service, name, body).status for _ in range(3)] == [500, 500, 200]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_script_is_followed_before_the_rules(name: str) -> None:
    call = ToolUseBlock("tu_1", "read_file", {"path": "x"})
    script = Script("first", "sim: 529", ModelOutput(content=(TextBlock("so"), call)))
    service = Service(script=script)
    replies = [send_request(service, name, request_body(name, "hello")) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 529, 200, 200]
    assert b"first" in replies[0].body
    assert b"read_file" in replies[2].body
    assert b"metis simulator" in replies[3].body
    assert len(script) == 0
    assert [reply for _, reply in service.exchanges] == replies


@pytest.mark.parametrize("name", PROTOCOLS)
def test_key_is_required_if_configured(name: str) -> None:
    service = Service(settings=Settings(key="k1"))
    shown = adapters.get(name).profile.auth.headers("k1")
    right = {key.lower(): value for key, value in shown.items()}
    assert send_request(service, name, request_body(name, "hello"), right).status == 200
    assert send_request(service, name, request_body(name, "hello")).status == 401


@pytest.mark.parametrize("name", PROTOCOLS)
def test_models_can_be_restricted(name: str) -> None:
    service = Service(settings=Settings(models=("only-this",)))
    reply = send_request(service, name, request_body(name, "hello"))
    assert reply.status == 404
    assert "error" in json_of(reply)


@requires_adapter("anthropic")
def test_a_body_that_is_too_large_is_refused() -> None:
    body = request_body("anthropic", "x" * 32_000_000)
    reply = send_request(Service(), "anthropic", body)
    assert reply.status == 413
    assert json_of(reply)["error"]["type"] == "request_too_large"


def test_fault_specification_is_parsed() -> None:
    assert parse_fault("cut 100") == Fault(kind="cut", value=100)
    assert parse_fault("529 x1") == Fault(kind="fail", status=529, times=1)
    assert fault_in_prompt("Please sim: slow 20") == Fault(kind="slow", value=20)
    assert fault_in_prompt("a sim: card") is None
    with pytest.raises(InvalidValueError, match="there are a status such as 429, cut"):
        parse_fault("dance")


def test_unknown_paths_are_not_found() -> None:
    for method, path in (("GET", "/"), ("POST", "/v2/nothing"), ("DELETE", "/v1/messages")):
        reply = Service().respond(HttpRequest(method=method, path=path))
        assert reply.status == 404
        assert json_of(reply)["error"]["type"] == "not_found_error"


def test_models_are_listed_in_format_of_each_provider() -> None:
    def listed(path: str, **headers: str) -> Any:
        stated = {name.replace("_", "-"): value for name, value in headers.items()}
        return json_of(Service().respond(HttpRequest(method="GET", path=path, headers=stated)))

    assert listed("/v1/models")["data"][0]["object"] == "model"
    assert listed("/v1/models", anthropic_version="2023-06-01")["data"][0]["type"] == "model"
    assert listed("/v1/models/sim-small")["id"] == "sim-small"
    assert listed("/v1beta/models")["models"][0]["name"] == "models/sim-small"
    assert listed("/api/tags")["models"][0]["name"] == "sim-small"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(cast("dict[str, Any]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[Any]", value)))
    inner = [target for key, item in items for target in _paths(item, (*path, key))]
    return [*([path] if path else []), *inner]


@given(st.data(), st.sampled_from(PROTOCOLS), JSON)
def test_any_json_body_gets_a_response(data: st.DataObject, name: str, value: Any) -> None:
    body = deepcopy(VALID_BODIES[adapters.get(name).profile.protocol])
    path = data.draw(st.sampled_from(_paths(body)))
    target: Any = body
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    for strict in (True, False):
        reply = send_request(Service(settings=Settings(strict=strict)), name, body)
        assert 200 <= reply.status < 500


@given(st.binary(max_size=40), st.sampled_from(PROTOCOLS))
def test_any_bytes_get_a_response(body: bytes, name: str) -> None:
    assert send_request(Service(), name, body).status == 400
