"""Web search by the provider, and tool choice modes."""

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from build import user
from judges import complaints
from metis import adapters
from metis.canonical import ToolDefinition
from metis.canonical.errors import InvalidValueError
from metis.canonical.tools import SideEffects
from metis.wire.call import AdapterOptions, ToolChoice, WireRequest

TOOL = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)
ANTHROPIC_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
SEARCH_KEYS: dict[str, dict[str, list[Any]]] = {
    "anthropic": {"tools": [ANTHROPIC_SEARCH]},
    "vertex-claude": {"tools": [ANTHROPIC_SEARCH]},
    "openai-responses": {"tools": [{"type": "web_search"}]},
    "azure-responses": {"tools": [{"type": "web_search"}]},
    "gemini": {"tools": [{"googleSearch": {}}]},
    "vertex": {"tools": [{"googleSearch": {}}]},
    "openrouter": {"plugins": [{"id": "web"}]},
}
"""The request keys of each provider with search; all others refuse the option."""
JUDGES = {
    "anthropic": "anthropic",
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
    "gemini": "gemini",
    "ollama": "ollama",
}
HOST_ONLY_KEYS = {
    "mistral": {"tool_choice"},
    "openrouter": {"plugins"},
    "vertex-claude": {"anthropic_version"},
}
"""Keys of one host that the SDK of the protocol does not define."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def body_with(
    name: str, *tools: ToolDefinition, **options: Any
) -> tuple[dict[str, Any], WireRequest]:
    wire = adapters.get(name).to_wire([user("go")], tools, AdapterOptions(**options))
    return json.loads(wire.body), wire


def faults(name: str, body: dict[str, Any]) -> list[str]:
    """Return the validation errors of a body according to the SDK of the protocol."""
    own_keys = {
        key: value for key, value in body.items() if key not in HOST_ONLY_KEYS.get(name, ())
    }
    if name == "vertex-claude":
        own_keys["model"] = "claude-sonnet-4-6"  # it is in the path
    return complaints(JUDGES[adapters.get(name).profile.protocol], own_keys)


@pytest.mark.row("G-006")
@pytest.mark.parametrize("name", sorted(adapters.names()))
def test_search_option_is_encoded_per_provider_or_refused(name: str) -> None:
    if name not in SEARCH_KEYS:
        with pytest.raises(InvalidValueError, match=rf"{name} has no web search") as caught:
            body_with(name, search=True)
        assert caught.value.path == "$.search"
    else:
        body, wire = body_with(name, search=True)
        assert {key: body[key] for key in SEARCH_KEYS[name]} == SEARCH_KEYS[name]
        assert wire.losses == []
        assert faults(name, body) == []
    for silent in (None, False):
        body, wire = body_with(name, search=silent)
        assert not {"tools", "plugins"} & set(body)
        assert wire.losses == []


@pytest.mark.row("G-006", "GX-11")
@pytest.mark.parametrize("name", sorted(SEARCH_KEYS))
def test_search_is_sent_with_tools_where_allowed(name: str) -> None:
    model = {"gemini": "gemini-3.5-flash", "vertex": "gemini-3.5-flash"}.get(name)
    body, wire = body_with(name, TOOL, search=True, model=model)
    protocol = adapters.get(name).profile.protocol
    assert faults(name, body) == []
    assert "f" in [tool.name for tool in adapters.get(name).from_wire_request(body).tools]
    for key, value in SEARCH_KEYS[name].items():
        assert [each for each in body[key] if each in value] == value
    assert wire.losses == []
    # Only one of the two Gemini hosts has this key, and requires it.
    has_flag = body.get("toolConfig") == {"includeServerSideToolInvocations": True}
    assert has_flag == (name == "gemini")
    if protocol == "gemini":
        with pytest.raises(InvalidValueError, match="only without your own tools"):
            body_with(name, TOOL, search=True, model="gemini-2.5-flash")


@pytest.mark.row("G-006")
def test_search_in_native_options_is_not_duplicated() -> None:
    newer = {"type": "web_search_20260209", "name": "web_search"}
    body, _ = body_with("anthropic", search=True, native={"anthropic": {"tools": [newer]}})
    assert body["tools"] == [newer]
    snake: dict[str, Any] = {"gemini": {"tools": [{"google_search": {}}]}}
    body, _ = body_with("gemini", search=True, native=snake)
    assert body["tools"] == [{"google_search": {}}]
    named = ToolDefinition("web_search", "Mine.", {"type": "object"}, SideEffects.READ)
    with pytest.raises(InvalidValueError, match="the name 'web_search', too") as caught:
        body_with("anthropic", named, search=True)
    assert caught.value.path == "$.tools[0]"


@pytest.mark.row("G-006")
def test_search_is_a_loss_with_cached_content() -> None:
    cached = {"gemini": {"cachedContent": "cachedContents/x"}}
    body, wire = body_with("gemini", search=True, native=cached)
    assert "tools" not in body
    assert [loss.path for loss in wire.losses] == ["$.search"]


MODES: list[tuple[str, str, dict[str, Any]]] = [
    ("anthropic", "any", {"tool_choice": {"type": "any"}}),
    ("anthropic", "required", {"tool_choice": {"type": "any"}}),
    ("anthropic", "auto", {"tool_choice": {"type": "auto"}}),
    ("anthropic", "none", {"tool_choice": {"type": "none"}}),
    ("openai", "required", {"tool_choice": "required"}),
    ("openai", "ANY", {"tool_choice": "required"}),
    ("openai-responses", "none", {"tool_choice": "none"}),
    ("mistral", "required", {"tool_choice": "any"}),
    ("ollama", "auto", {}),
    ("gemini", "ANY", {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
    ("gemini", "any", {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
    ("gemini", "AUTO", {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}}),
    ("gemini", "VALIDATED", {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}}),
    ("vertex", "validated", {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}}),
]


@pytest.mark.row("G-007")
@pytest.mark.parametrize(("name", "mode", "keys"), MODES, ids=[f"{n}-{m}" for n, m, _ in MODES])
def test_a_tool_mode_is_forwarded(name: str, mode: str, keys: dict[str, Any]) -> None:
    body, wire = body_with(name, TOOL, tool_mode=mode)
    assert {key: body[key] for key in keys} == keys
    assert wire.losses == []
    assert faults(name, body) == []


@pytest.mark.row("G-007")
@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("anthropic", "VALIDATED", "it has auto, none, any, required"),
        ("openai", "sometimes", "it has auto, none, any, required"),
        ("gemini", "", "it has auto, none, any, required, validated"),
        ("ollama", "any", "it has auto$"),
    ],
)
def test_unsupported_tool_mode_is_refused(name: str, mode: str, expected: str) -> None:
    with pytest.raises(InvalidValueError, match=expected) as caught:
        body_with(name, TOOL, tool_mode=mode)
    assert caught.value.path == "$.tool_mode"


@pytest.mark.row("G-007")
def test_unsupported_part_of_tool_mode_is_a_loss() -> None:
    body, wire = body_with("gemini", tool_mode="VALIDATED")
    assert "toolConfig" not in body
    assert [loss.path for loss in wire.losses] == ["$.tool_mode"]
    _, wire = body_with("anthropic", tool_mode="any")
    assert [loss.path for loss in wire.losses] == ["$.tool_choice"]
    body, wire = body_with("anthropic", TOOL, tool_mode="any", tool_choice=ToolChoice("none"))
    assert body["tool_choice"] == {"type": "any"}
    assert [(loss.path, str(loss.change)) for loss in wire.losses] == [("$.tool_choice", "altered")]


@pytest.mark.row("G-006", "G-007")
def test_search_is_sent_although_foreign_search_key_is_lost() -> None:
    """A key of the source host is lost; the search of the target is requested anyway."""
    request = adapters.get("openai-responses").from_wire_request(
        {
            "model": "gpt-5",
            "input": "go",
            "prompt_cache_key": "k",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        }
    )
    options = replace(request.options, search=True, tool_mode="required")
    wire = adapters.get("azure-responses").to_wire(request.messages, request.tools, options)
    body = json.loads(wire.body)
    assert body["tool_choice"] == "required"
    assert [tool["type"] for tool in body["tools"]] == ["web_search", "function"]
    assert faults("azure-responses", body) == []
