"""The reasoning option, encoded for each model in the form that it supports."""

import json
import logging
import re
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, provenance, thinking, tool, tool_id, user
from corpus import STEP, needs_corpus, requests
from judges import complaints
from metis import adapters
from metis.canonical import Message, ToolDefinition
from metis.canonical.errors import CatalogDataError, InvalidValueError
from metis.canonical.tools import SideEffects
from metis.catalog.model_rules import EFFORTS, effort_for, read_reasoning_rules
from metis.catalog.tables import catalog, reasoning_rules
from metis.sim.signing import ThinkingSigner
from metis.sim.strict import anthropic as strict
from metis.sim.strict.checks import CheckContext
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.json_access import maybe_object
from metis.wire.reasoning import Reasoning

CONTEXT = RequestContext(session_id="sess_thinking")
TOOL = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)
FORCED_CALL = ToolChoice("required")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def body_with(
    name: str, model: str, *messages: Message, **options: Any
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the request body and the losses."""
    tools = options.pop("tools", ())
    if isinstance(options.get("reasoning"), str):
        options["reasoning"] = Reasoning(options["reasoning"])
    wire = adapters.get(name).to_wire(
        messages or (user("hi"),), tools, AdapterOptions(model=model, **options)
    )
    return json.loads(wire.body), [(str(loss.change), loss.path) for loss in wire.losses]


def thinking_keys(body: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a body that concern reasoning."""
    keys = {
        key: body[key]
        for key in ("thinking", "output_config", "reasoning", "reasoning_effort", "think")
        if key in body
    }
    config = body.get("generationConfig", {}).get("thinkingConfig")
    return {**keys, **(config or {})}


ALTERED = [("altered", "$.reasoning")]
DROPPED = [("dropped", "$.reasoning")]
ADAPTIVE = {"type": "adaptive"}

CASES: list[tuple[str, str, Reasoning, dict[str, Any], list[tuple[str, str]]]] = [
    # Anthropic: effort for newer models, token budgets for older ones.
    (
        "anthropic",
        "claude-opus-4-7",
        Reasoning("xhigh"),
        {"thinking": ADAPTIVE, "output_config": {"effort": "xhigh"}},
        [],
    ),
    (
        "anthropic",
        "claude-sonnet-4-6",
        Reasoning("xhigh"),
        {"thinking": ADAPTIVE, "output_config": {"effort": "max"}},
        ALTERED,
    ),
    ("anthropic", "claude-sonnet-4-6", Reasoning(), {"thinking": ADAPTIVE}, []),
    (
        "anthropic",
        "claude-sonnet-4-6",
        Reasoning(None, 2000),
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        [],
    ),
    (
        "anthropic",
        "claude-opus-4-8",
        Reasoning(None, 2000),
        {"thinking": ADAPTIVE, "output_config": {"effort": "low"}},
        ALTERED,
    ),
    (
        "anthropic",
        "claude-haiku-4-5",
        Reasoning("low"),
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        [],
    ),
    ("anthropic", "claude-haiku-4-5", Reasoning("none"), {"thinking": {"type": "disabled"}}, []),
    ("anthropic", "claude-opus-5", Reasoning("none"), {"thinking": {"type": "disabled"}}, []),
    (
        "anthropic",
        "claude-sonnet-5-5",
        Reasoning("none"),
        {"thinking": {"type": "between_tools"}},
        [],
    ),
    (
        "anthropic",
        "claude-fable-5",
        Reasoning("none"),
        {"thinking": ADAPTIVE, "output_config": {"effort": "low"}},
        ALTERED,
    ),
    ("anthropic", "claude-3-5-haiku-latest", Reasoning("high"), {}, DROPPED),
    ("anthropic", "claude-3-5-haiku-latest", Reasoning("none"), {}, []),
    # OpenAI, both protocols.
    ("openai", "gpt-5", Reasoning("minimal"), {"reasoning_effort": "minimal"}, []),
    ("openai", "gpt-5", Reasoning("none"), {"reasoning_effort": "minimal"}, ALTERED),
    ("openai", "gpt-5.1", Reasoning("minimal"), {"reasoning_effort": "low"}, ALTERED),
    ("openai", "gpt-5.1", Reasoning(), {"reasoning_effort": "medium"}, []),
    ("openai", "gpt-5", Reasoning(), {}, []),
    ("openai", "gpt-4o", Reasoning("high"), {}, DROPPED),
    ("openai", "gpt-4o", Reasoning("none"), {}, []),
    ("openai-responses", "gpt-5-pro", Reasoning("low"), {"reasoning": {"effort": "high"}}, ALTERED),
    ("openai-responses", "gpt-5.6-sol", Reasoning("max"), {"reasoning": {"effort": "max"}}, []),
    ("openai-responses", "o3", Reasoning(None, 9000), {"reasoning": {"effort": "high"}}, ALTERED),
    ("azure", "our-deployment", Reasoning("xhigh"), {"reasoning_effort": "xhigh"}, []),
    # Gemini: tokens, then levels.
    ("gemini", "gemini-2.5-flash", Reasoning("none"), {"thinkingBudget": 0}, []),
    ("gemini", "gemini-2.5-flash", Reasoning(), {"thinkingBudget": -1}, []),
    ("gemini", "gemini-2.5-flash", Reasoning(None, 90000), {"thinkingBudget": 24576}, ALTERED),
    ("gemini", "gemini-2.5-pro", Reasoning("none"), {"thinkingBudget": 128}, ALTERED),
    ("gemini", "gemini-3-pro-preview", Reasoning("medium"), {"thinkingLevel": "HIGH"}, ALTERED),
    ("gemini", "gemini-3.5-flash", Reasoning("minimal"), {"thinkingLevel": "MINIMAL"}, []),
    ("gemini", "gemini-3.5-flash", Reasoning(None, 3000), {"thinkingLevel": "MEDIUM"}, ALTERED),
    # Hosts of Chat Completions.
    ("openrouter", "openai/gpt-5", Reasoning("high"), {"reasoning": {"effort": "high"}}, []),
    ("openrouter", "openai/gpt-5", Reasoning(None, 700), {"reasoning": {"max_tokens": 700}}, []),
    ("openrouter", "openai/gpt-5", Reasoning(), {"reasoning": {"enabled": True}}, []),
    ("groq", "openai/gpt-oss-120b", Reasoning("max"), {"reasoning_effort": "high"}, ALTERED),
    ("groq", "qwen/qwen3-32b", Reasoning("none"), {"reasoning_effort": "none"}, []),
    ("groq", "qwen/qwen3-32b", Reasoning("low"), {"reasoning_effort": "default"}, ALTERED),
    ("groq", "llama-3.3-70b-versatile", Reasoning("low"), {}, DROPPED),
    ("mistral", "mistral-small-latest", Reasoning("low"), {"reasoning_effort": "high"}, ALTERED),
    ("mistral", "magistral-medium-latest", Reasoning("none"), {}, DROPPED),
    (
        "deepseek",
        "deepseek-v4-pro",
        Reasoning("medium"),
        {"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
        ALTERED,
    ),
    ("deepseek", "deepseek-v4-pro", Reasoning("none"), {"thinking": {"type": "disabled"}}, []),
    ("xai", "grok-4.5", Reasoning("none"), {"reasoning_effort": "low"}, ALTERED),
    ("xai", "grok-4-fast-reasoning", Reasoning("low"), {}, DROPPED),
    ("vllm", "default", Reasoning("none"), {"reasoning_effort": "none"}, []),
    ("openai-compatible", "default", Reasoning("high"), {}, DROPPED),
    # Ollama, both protocols.
    ("ollama", "qwen3", Reasoning("high"), {"think": True}, ALTERED),
    ("ollama", "qwen3", Reasoning("none"), {"think": False}, []),
    ("ollama", "gpt-oss:20b", Reasoning("none"), {"think": "low"}, ALTERED),
    ("ollama", "llama3.2", Reasoning("low"), {}, DROPPED),
    ("ollama-openai", "gpt-oss:20b", Reasoning("high"), {"reasoning_effort": "high"}, []),
]


@pytest.mark.row("T48", "T206")
@pytest.mark.parametrize(("name", "model", "wish", "keys", "expected"), CASES)
def test_reasoning_option_has_form_of_each_model(
    name: str, model: str, wish: Reasoning, keys: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    body, losses = body_with(name, model, reasoning=wish)
    assert thinking_keys(body) == keys
    assert losses == expected


JUDGED = ("anthropic", "openai", "openai-responses", "gemini", "ollama")


@pytest.mark.row("T48", "T206", "T207")
@pytest.mark.parametrize("name", JUDGED)
def test_sdk_types_accept_every_reasoning_option(name: str) -> None:
    listed = adapters.get(name).profile.catalog_provider or name
    for model in catalog().models(listed):
        for wish in (*map(Reasoning, EFFORTS), Reasoning(), Reasoning(None, 100)):
            body, _ = body_with(name, model.wire_name, reasoning=wish, tools=(TOOL,))
            body.pop("stream", None) if name == "ollama" else None
            assert complaints(name, body) == [], (model.id, wish)


@pytest.mark.row("T206")
@pytest.mark.parametrize("effort", EFFORTS)
def test_supported_effort_is_unchanged_and_thinking_is_never_disabled(effort: Any) -> None:
    for rule in reasoning_rules().rules:
        if effort in rule.efforts:
            assert rule.nearest_effort(effort) == effort
        elif rule.enabling_efforts:
            assert rule.nearest_effort(effort) != "none"


@pytest.mark.row("T206")
def test_token_budget_maps_to_effort() -> None:
    assert [effort_for(n) for n in (0, 1, 1024, 1025, 8192, 60_000, 10**9)] == [
        "none",
        "minimal",
        "minimal",
        "low",
        "medium",
        "max",
        "max",
    ]


# Budgets.


@pytest.mark.row("T47")
@pytest.mark.parametrize(
    ("budget", "limit", "sent", "expected"),
    [
        (100, 8000, (1024, 8000), ALTERED),
        (4000, 8000, (4000, 8000), []),
        (8000, 8000, (4000, 8000), ALTERED),
        (5000, 1000, (1024, 2024), [("altered", "$.max_output_tokens")]),
        (5000, None, (5000, 64_000), []),
    ],
)
def test_budget_is_clamped_to_limits(
    budget: int, limit: int | None, sent: tuple[int, int], expected: list[tuple[str, str]]
) -> None:
    wish = Reasoning(None, budget)
    body, losses = body_with(
        "anthropic", "claude-haiku-4-5", reasoning=wish, max_output_tokens=limit
    )
    assert (body["thinking"]["budget_tokens"], body["max_tokens"]) == sent
    assert losses == expected


@pytest.mark.row("T47")
@pytest.mark.parametrize("limit", [1, 1024, 1025, 2048, 4096, 64_000, None])
@pytest.mark.parametrize("wish", [*map(Reasoning, EFFORTS), Reasoning(None, 1), Reasoning()])
def test_simulator_accepts_every_budget(limit: int | None, wish: Reasoning) -> None:
    body, _ = body_with("anthropic", "claude-haiku-4-5", reasoning=wish, max_output_tokens=limit)
    strict.check(
        body, CheckContext(signer=ThinkingSigner(), headers={"anthropic-version": "2023-06-01"})
    )


# Conflicts with other options.


@pytest.mark.row("T46")
@pytest.mark.parametrize("choice", [FORCED_CALL, ToolChoice("tool", "f")])
def test_forced_tool_call_disables_thinking(choice: ToolChoice) -> None:
    reasoning = Reasoning("high")
    options = {"tools": (TOOL,), "tool_choice": choice, "reasoning": reasoning}
    body, losses = body_with("anthropic", "claude-haiku-4-5", **options)
    assert thinking_keys(body) == {"thinking": {"type": "disabled"}}
    assert body["tool_choice"]["type"] in ("any", "tool")
    assert losses == ALTERED
    # DeepSeek thinks by default, so thinking must be disabled explicitly.
    body, losses = body_with("deepseek", "deepseek-v4-pro", tools=(TOOL,), tool_choice=choice)
    assert thinking_keys(body) == {"thinking": {"type": "disabled"}}
    assert losses == [("synthesised", "$.reasoning")]


@pytest.mark.row("T46")
def test_forced_call_is_dropped_for_model_that_always_thinks() -> None:
    body, losses = body_with("anthropic", "claude-opus-5-5", tools=(TOOL,), tool_choice=FORCED_CALL)
    assert body["tool_choice"] == {"type": "auto"}
    assert losses == [("altered", "$.tool_choice")]


@pytest.mark.row("T46")
def test_adaptive_thinking_is_allowed_with_forced_call() -> None:
    reasoning = Reasoning(None, 3000)
    options = {"tools": (TOOL,), "tool_choice": FORCED_CALL, "reasoning": reasoning}
    body, losses = body_with("anthropic", "claude-sonnet-4-6", **options)
    assert thinking_keys(body) == {"thinking": ADAPTIVE, "output_config": {"effort": "medium"}}
    assert body["tool_choice"] == {"type": "any"}
    assert losses == ALTERED


@pytest.mark.row("T207")
def test_thinking_is_disabled_for_models_that_cannot_call_while_thinking() -> None:
    body, losses = body_with("openai", "gpt-5.4", tools=(TOOL,), reasoning="high")
    assert (thinking_keys(body), losses) == ({"reasoning_effort": "none"}, ALTERED)
    body, losses = body_with("openai", "gpt-5.6-sol", tools=(TOOL,))
    assert thinking_keys(body) == {"reasoning_effort": "none"}
    assert losses == [("synthesised", "$.reasoning")]
    body, losses = body_with("openai", "gpt-5.6-sol", reasoning="high")
    assert (thinking_keys(body), losses) == ({"reasoning_effort": "high"}, [])
    body, losses = body_with("openai-responses", "gpt-5.6-sol", tools=(TOOL,), reasoning="high")
    assert (thinking_keys(body), losses) == ({"reasoning": {"effort": "high"}}, [])


@pytest.mark.row("T48")
def test_temperature_is_omitted_with_thinking() -> None:
    options = {"temperature": 0.2, "top_k": 5}
    body, losses = body_with("anthropic", "claude-sonnet-4-6", reasoning="high", **options)
    assert {"temperature", "top_k"}.isdisjoint(body)
    assert losses == [("dropped", "$.temperature"), ("dropped", "$.top_k")]
    body, losses = body_with("anthropic", "claude-sonnet-4-6", reasoning="none", **options)
    assert (body["temperature"], body["top_k"], losses) == (0.2, 5, [])
    body, losses = body_with("anthropic", "claude-sonnet-4-6", reasoning="high", temperature=1.0)
    assert (body["temperature"], losses) == (1.0, [])
    body, losses = body_with("openai", "gpt-5.1", temperature=0.2)
    assert (body["temperature"], losses) == (0.2, [])
    body, losses = body_with("openai", "gpt-5.1", temperature=0.2, reasoning="low")
    assert ("temperature" in body, losses) == (False, [("dropped", "$.temperature")])


@pytest.mark.row("T37")
def test_open_call_without_thinking_disables_thinking() -> None:
    first = tool_id(1)
    foreign = [
        user("go"),
        assistant(call("f", first), metadata=provenance(provider="openai", model="openai:gpt-5")),
        tool("ok", answers=first),
    ]
    body, losses = body_with(
        "anthropic", "claude-haiku-4-5", *foreign, tools=[TOOL], reasoning="low"
    )
    assert thinking_keys(body) == {"thinking": {"type": "disabled"}}
    assert losses[-1:] == ALTERED
    body, _ = body_with("anthropic", "claude-opus-4-6", *foreign, reasoning="low")
    assert thinking_keys(body)["thinking"] == ADAPTIVE
    body, _ = body_with("anthropic", "claude-haiku-4-5", *foreign, user("so?"), reasoning="low")
    assert thinking_keys(body)["thinking"]["type"] == "enabled"
    signed = thinking("hm", signature=ThinkingSigner(b"k").sign("hm"))
    signed_history = [user("go"), assistant(signed, call("f", first)), tool("ok", answers=first)]
    body, losses = body_with(
        "anthropic", "claude-haiku-4-5", *signed_history, tools=[TOOL], reasoning="low"
    )
    assert thinking_keys(body)["thinking"]["type"] == "enabled"
    assert losses == []


# Native options of clients.

SPELLED = {
    "anthropic": {
        "model": "claude-sonnet-4-6",
        "max_tokens": 5000,
        "thinking": {"type": "enabled", "budget_tokens": 3000, "display": "omitted"},
        "messages": [{"role": "user", "content": "hi"}],
    },
    "openai": {
        "model": "gpt-5",
        "reasoning_effort": "low",
        "messages": [{"role": "user", "content": "hi"}],
    },
    "openrouter": {
        "model": "openai/gpt-5",
        "reasoning": {"effort": "low", "exclude": True},
        "messages": [{"role": "user", "content": "hi"}],
    },
    "deepseek": {
        "model": "deepseek-v4-pro",
        "thinking": {"type": "enabled"},
        "reasoning_effort": "low",
        "messages": [{"role": "user", "content": "hi"}],
    },
    "openai-responses": {
        "model": "gpt-5",
        "reasoning": {"effort": "low", "summary": "auto"},
        "input": [{"role": "user", "content": "hi"}],
    },
    "ollama": {
        "model": "gpt-oss:20b",
        "think": "low",
        "stream": False,
        "messages": [{"role": "user", "content": "hi"}],
    },
    "gemini": {
        "generation_config": {"thinkingConfig": {"thinking_budget": 100, "includeThoughts": True}},
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
    },
}
WISHES = {"anthropic": Reasoning(None, 3000), "gemini": Reasoning(None, 100)}


@pytest.mark.row("T206")
@pytest.mark.parametrize("name", SPELLED)
def test_native_reasoning_option_is_unchanged_for_its_provider_and_translated_for_others(
    name: str,
) -> None:
    host, body = adapters.get(name), SPELLED[name]
    request = host.from_wire_request(body, CONTEXT)
    assert request.options.reasoning == WISHES.get(name, Reasoning("low"))
    back = host.to_wire(request.messages, request.tools, request.options)
    assert json.loads(back.body) == body
    assert back.losses == []
    away = adapters.get("openai-responses").to_wire(
        request.messages, (), replace(request.options, model="gpt-5")
    )
    assert json.loads(away.body)["reasoning"]["effort"] in ("low", "medium", "minimal")
    # The display option of thinking has no translation and is a loss.
    shown = [loss.path for loss in away.losses if "display" in loss.path or "clude" in loss.path]
    others = {"anthropic": 1, "openrouter": 1, "gemini": 1}
    assert len(shown) == others.get(name, 0)


@pytest.mark.row("T48")
def test_reasoning_option_is_reencoded_for_another_model() -> None:
    host, body = adapters.get("anthropic"), SPELLED["anthropic"]
    request = host.from_wire_request(body, CONTEXT)
    options = replace(request.options, model="claude-opus-4-7")
    away = host.to_wire(request.messages, (), options)
    assert thinking_keys(json.loads(away.body)) == {
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "medium"},
    }
    assert [loss.path for loss in away.losses] == ["$.reasoning"]
    changed = replace(request.options, reasoning=Reasoning("none"))
    away = host.to_wire(request.messages, (), changed)
    assert thinking_keys(json.loads(away.body)) == {"thinking": {"type": "disabled"}}
    without = replace(request.options, reasoning=None)
    assert thinking_keys(json.loads(host.to_wire(request.messages, (), without).body)) == {}


def test_native_reasoning_option_is_sent_unchanged() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    body, losses = body_with(
        "anthropic", "claude-sonnet-4-6", native={"anthropic": {"thinking": thinking}}
    )
    assert (thinking_keys(body), losses) == ({"thinking": thinking}, [])


PATTERN = re.compile(
    r'"(reasoning_effort|effort|thinking_?[bB]udget|thinking_?[lL]evel|enabled|max_tokens)": *[^n ]'
    r'|"type": ?"(enabled|adaptive|disabled)"'
)


def has_reasoning_option(body: dict[str, Any]) -> bool:
    """Return whether a recorded request sets reasoning, determined without the decoder."""
    config = maybe_object(body.get("generationConfig", body.get("generation_config")))
    keys = ("thinking", "output_config", "reasoning", "reasoning_effort")
    stated = {key: body[key] for key in keys if key in body}
    thinking = config.get("thinkingConfig", config.get("thinking_config"))
    return PATTERN.search(json.dumps([stated, thinking])) is not None


@needs_corpus
@pytest.mark.row("T206")
@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("anthropic_messages", "anthropic"),
        ("openai_chat", "openai"),
        ("openai_responses", "openai-responses"),
        ("gemini", "gemini"),
    ],
)
def test_recorded_reasoning_options_are_decoded(protocol: str, name: str) -> None:
    count = 0
    for key, body in requests(protocol):
        if not {"messages", "input", "contents"} & set(body):
            continue
        options = adapters.get(name).from_wire_request(body, CONTEXT).options
        assert (options.reasoning is not None) == has_reasoning_option(body), key
        count += options.reasoning is not None
    if STEP == 1:  # a part of the corpus may have none
        assert count > 0


# Bad values.


def test_invalid_reasoning_option_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="ultra"):
        Reasoning("ultra")  # pyright: ignore[reportArgumentType] - on purpose
    with pytest.raises(InvalidValueError, match="above zero"):
        Reasoning(None, 0)


def test_unreadable_rules_are_an_error() -> None:
    with pytest.raises(CatalogDataError, match="reasoning rules"):
        read_reasoning_rules({"rules": [{"models": ["x:*"], "efforts": ["much"]}]})


@pytest.mark.parametrize(
    ("name", "model", "is_sent"),
    [
        ("bedrock-converse", "anthropic.claude-sonnet-4-6", False),
        ("bedrock-converse", "amazon.nova-premier-v1:0", True),
        ("bedrock-converse", "minimax.minimax-m2", True),
        ("ollama", "qwen3", True),
        ("anthropic", "claude-sonnet-4-6", False),
    ],
)
def test_unsigned_thinking_is_sent_to_models_that_need_no_signatures(
    name: str, model: str, *, is_sent: bool
) -> None:
    adapter = adapters.get(name)
    bare = replace(thinking("hm because"), issuer=adapter.profile.issuer)
    answer = assistant(bare, call("f", tool_id(1)), metadata=provenance(provider=name))
    talk = [user("go"), answer, tool("ok", answers=tool_id(1))]
    request = adapter.to_wire(talk, (), AdapterOptions(model=model))
    assert (b"hm because" in request.body) is is_sent
    assert ("thinking" in [loss.block_type for loss in request.losses]) is not is_sent
