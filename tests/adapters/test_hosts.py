"""Chat Completions hosts: each fact of a profile, and the laws with every host as target."""

import itertools
import json
import logging
import re
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

import strategies
from build import (
    assistant,
    call,
    developer,
    image,
    provenance,
    system,
    text,
    thinking,
    tool,
    tool_id,
    user,
)
from corpus import needs_corpus, requests
from judges import complaints
from metis import adapters
from metis.adapters.hosts import HOSTS
from metis.adapters.profiles import OPENAI_COMPATIBLE, PROFILES
from metis.canonical import Message, Role, ToolDefinition, ToolUseBlock
from metis.canonical.errors import WrongProviderError
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import SideEffects
from metis.catalog import catalog
from metis.projection import Change
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice
from metis.wire.json_access import maybe_list, maybe_object
from metis.wire.tool_ids import IdRule
from wire.test_laws import faults, is_carried, is_reported_loss, strings

CHAT = [name for name in adapters.names() if adapters.get(name).profile.protocol == "openai_chat"]
CONTEXT = RequestContext(session_id="sess_hosts")
TOOL = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def sent(name: str, *messages: Message, **options: Any) -> dict[str, Any]:
    return json.loads(wire(name, *messages, **options).body)


def wire(name: str, *messages: Message, **options: Any) -> Any:
    tools = options.pop("tools", ())
    return adapters.get(name).to_wire(messages, tools, AdapterOptions(**options))


def turns(name: str, *messages: Message, **options: Any) -> list[dict[str, Any]]:
    return sent(name, *messages, **options)["messages"]


PLACES = {
    "anthropic": "https://api.anthropic.com/v1/messages",
    "openai": "https://api.openai.com/v1/chat/completions",
    "azure": "https://{resource}.openai.azure.com/openai/v1/chat/completions",
    "openrouter": "https://openrouter.ai/api/v1/chat/completions",
    "groq": "https://api.groq.com/openai/v1/chat/completions",
    "mistral": "https://api.mistral.ai/v1/chat/completions",
    "deepseek": "https://api.deepseek.com/chat/completions",
    "moonshot": "https://api.moonshot.ai/v1/chat/completions",
    "databricks": "https://{workspace}.cloud.databricks.com/serving-endpoints/chat/completions",
    "xai": "https://api.x.ai/v1/chat/completions",
    "together": "https://api.together.xyz/v1/chat/completions",
    "fireworks": "https://api.fireworks.ai/inference/v1/chat/completions",
    "cerebras": "https://api.cerebras.ai/v1/chat/completions",
    "vllm": "http://127.0.0.1:8000/v1/chat/completions",
    "llamacpp": "http://127.0.0.1:8080/v1/chat/completions",
    "lmstudio": "http://127.0.0.1:1234/v1/chat/completions",
    "openai-compatible": "http://127.0.0.1:8080/v1/chat/completions",
}


@pytest.mark.row("M-011")
@pytest.mark.parametrize("name", PLACES)
def test_every_host_has_base_url_that_can_be_overridden(name: str) -> None:
    profile = adapters.get(name).profile
    assert profile.base_url + profile.path == PLACES[name]
    other = adapters.get(name, base_url="http://127.0.0.1:9").profile
    assert (other.base_url, other.path) == ("http://127.0.0.1:9", profile.path)


def test_every_host_has_a_case() -> None:
    assert {*PROFILES, *HOSTS, OPENAI_COMPATIBLE.name} >= set(PLACES)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("anthropic", {"x-api-key": "k"}),
        ("openai", {"authorization": "Bearer k"}),
        ("groq", {"authorization": "Bearer k"}),
        ("azure", {"api-key": "k"}),
    ],
)
def test_key_is_sent_in_header_of_host(name: str, header: dict[str, str]) -> None:
    assert adapters.get(name).profile.auth.headers("k") == header


@pytest.mark.parametrize("name", CHAT)
def test_request_value_has_no_api_key(name: str) -> None:
    assert set(wire(name, user("hi")).headers) == {"content-type"}


# Names of models.


@pytest.mark.row("M-180")
@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("anthropic", "sonnet", "claude-sonnet-4-6"),
        ("anthropic", "Sonnet", "claude-sonnet-4-6"),
        ("anthropic", "anthropic:claude-opus-5", "claude-opus-5"),
        ("anthropic", "claude-new", "claude-new"),
        ("openai", "openai:gpt-5", "gpt-5"),
        ("openai", "ft:gpt-4o:acme::x", "ft:gpt-4o:acme::x"),
        ("azure", "openai:gpt-5", "gpt-5"),
        ("azure", "our-deployment", "our-deployment"),
        ("deepseek", "deepseek", "deepseek-v4-pro"),
        ("openrouter", "deepseek/deepseek-r1:free", "deepseek/deepseek-r1:free"),
        ("cerebras", "llama-3.3-70b", "llama-3.3-70b"),
        ("lmstudio", "mistral:7b", "mistral:7b"),
        ("openai-compatible", "sonnet", "sonnet"),
    ],
)
def test_a_model_may_be_given_by_alias_id_or_name(name: str, model: str, expected: str) -> None:
    assert sent(name, user("hi"), model=model)["model"] == expected


@pytest.mark.parametrize(
    ("name", "model", "provider"),
    [
        ("anthropic", "openai:gpt-5", "openai"),
        ("anthropic", "openai:gpt-unheard-of", "openai"),
        ("openai", "sonnet", "anthropic"),
        ("groq", "mistral:mistral-large-latest", "mistral"),
        ("vllm", "openai:gpt-5", "openai"),
    ],
)
def test_a_model_of_another_provider_is_refused_by_name(
    name: str, model: str, provider: str
) -> None:
    with pytest.raises(WrongProviderError, match=provider) as caught:
        wire(name, user("hi"), model=model)
    assert (caught.value.adapter, caught.value.provider) == (name, provider)


# Ids of calls.

LONG = "tu_" + "A" * 60
FOREIGN_ID = "functions.Bash:0"


@pytest.mark.row("T01", "T02", "T03", "T04", "T13", "M-170", "M-171")
@pytest.mark.parametrize("name", PLACES)
def test_ids_fit_alphabet_and_length_of_host(name: str) -> None:
    rule = adapters.get(name).profile.id_rule
    assert rule is not None
    calls = [call("f", LONG + "A"), call("f", LONG + "B"), call("f", FOREIGN_ID), call("f")]
    talk = [user("go"), assistant(*calls), *(tool("ok", answers=one.id) for one in calls)]
    first, again = wire(name, *talk), wire(name, *talk)
    assert first.body == again.body
    ids = wire_ids(json.loads(first.body)["messages"])
    assert len(set(ids)) == len(calls)
    assert all(rule.fits(one) for one in ids)
    protocol = "anthropic" if name == "anthropic" else "openai"
    assert faults(protocol, json.loads(first.body)) == []


def wire_ids(sent_turns: list[dict[str, Any]]) -> list[str]:
    calls = [one for turn in sent_turns for one in turn.get("tool_calls") or ()]
    blocks = [maybe_object(one) for turn in sent_turns for one in maybe_list(turn["content"])]
    return [one["id"] for one in calls] + [one["id"] for one in blocks if "input" in one]


def test_id_rules_match_documented_rules() -> None:
    def rule(name: str) -> IdRule:
        actual = adapters.get(name).profile.id_rule
        assert actual is not None
        return actual

    assert rule("mistral").fits("Ab3456789")
    assert not rule("mistral").fits("call_1234")
    assert not rule("mistral").fits("Ab34567890")
    assert rule("openai").fits("c" * 40)
    assert not rule("openai").fits("c" * 41)
    assert not rule("anthropic").fits(FOREIGN_ID)
    assert rule("mistral").wire_id("tu_A") == rule("mistral").wire_id("tu_A")
    used = rule("mistral").wire_id("tu_A")
    assert rule("mistral").wire_id("tu_A", {used}) != used


# Reasoning.


def answer_of(name: str, **said: Any) -> Message:
    choice = {"message": {"role": "assistant", "content": "4", **said}, "finish_reason": "stop"}
    body = {"id": "r", "model": adapters.get(name).profile.default_model, "choices": [choice]}
    return adapters.get(name).from_wire_response(body, CONTEXT)


DETAILS = [{"type": "reasoning.text", "text": "hm", "signature": "s", "format": "x", "index": 0}]


@pytest.mark.row("T49", "T52", "T53", "T55")
@pytest.mark.parametrize(
    ("name", "text", "back"),
    [
        ("deepseek", {"reasoning_content": "hm"}, {"reasoning_content": "hm"}),
        ("groq", {"reasoning": "hm"}, {"reasoning": "hm"}),
        ("vllm", {"reasoning": "hm"}, {"reasoning": "hm"}),
        ("llamacpp", {"reasoning_content": "hm"}, {"reasoning_content": "hm"}),
        (
            "openrouter",
            {"reasoning": "hm", "reasoning_details": DETAILS},
            {"reasoning": "hm", "reasoning_details": DETAILS},
        ),
        ("cerebras", {"reasoning": "hm"}, {}),
        ("fireworks", {"reasoning_content": "hm"}, {}),
        ("together", {"reasoning": "hm"}, {}),
        ("xai", {"reasoning_content": "hm"}, {}),
        ("openai-compatible", {"reasoning": "hm"}, {}),
    ],
)
def test_thinking_is_sent_under_key_of_host(
    name: str, text: dict[str, Any], back: dict[str, Any]
) -> None:
    answer = answer_of(name, **text)
    for one in (answer, replace(answer, metadata=replace(answer.metadata, provider_raw=None))):
        request = wire(name, user("2+2"), one, user("and?"))
        turn = json.loads(request.body)["messages"][1]
        if "reasoning_details" not in back or one is answer:
            assert turn == {"role": "assistant", "content": "4", **back}
        else:
            assert turn["reasoning_details"] == DETAILS
        assert bool(request.losses) is not bool(back)


@pytest.mark.row("T53", "T54")
def test_mistral_receives_thinking_parts_only_for_reasoning_models() -> None:
    part = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    answer = answer_of("mistral", content=[part, {"type": "text", "text": "4"}])
    bare = replace(answer, metadata=replace(answer.metadata, provider_raw=None))
    for one in (answer, bare):
        (_, turn, _) = turns("mistral", user("a"), one, user("b"), model="magistral-medium-latest")
        assert turn["content"] == [part, {"type": "text", "text": "4"}]
    plain = wire("mistral", user("a"), answer, user("b"), model="ministral-8b-latest")
    assert "hm" not in plain.body.decode()
    assert [loss.block_type for loss in plain.losses] == ["thinking"]


@pytest.mark.row("T50")
def test_deepseek_receives_empty_reasoning_with_foreign_messages() -> None:
    request = wire("deepseek", user("a"), assistant("b"), user("c"), model="deepseek-v4-pro")
    turn = json.loads(request.body)["messages"][1]
    assert turn == {"role": "assistant", "content": "b", "reasoning_content": ""}
    assert [(loss.change, loss.path) for loss in request.losses] == [
        (Change.SYNTHESISED, "$.reasoning_content")
    ]
    plain = turns("deepseek", user("a"), assistant("b"), user("c"), model="deepseek-chat")
    assert plain[1] == {"role": "assistant", "content": "b"}


@pytest.mark.row("T69", "M-227")
@pytest.mark.parametrize("name", CHAT)
def test_foreign_thinking_never_becomes_text(name: str) -> None:
    sealed = replace(thinking("secret plan"), signature="s", issuer="anthropic")
    request = wire(name, user("a"), assistant(sealed, text("b")), user("c"))
    assert b"secret plan" not in request.body
    assert "thinking" in [loss.block_type for loss in request.losses]


@pytest.mark.row("T13", "M-195")
@pytest.mark.parametrize("name", CHAT)
def test_host_receives_no_keys_of_other_hosts(name: str) -> None:
    answer = answer_of("groq", reasoning="hm", executed_tools=[{"index": 0}])
    if name != "groq":
        assert not {"reasoning", "executed_tools"} & set(
            turns(name, user("a"), answer, user("b"))[1]
        )


# Roles and turns.

STRICT = ["vllm", "llamacpp", "lmstudio"]


@pytest.mark.row("T72")
@pytest.mark.parametrize("name", ["mistral", *STRICT])
def test_adjacent_messages_of_one_role_are_joined_for_strict_hosts(name: str) -> None:
    request = wire(name, user("a"), user("b", image()), assistant("c"), assistant("d"), user("e"))
    sent = json.loads(request.body)["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant", "user"]
    assert [part["type"] for part in sent[0]["content"]] == ["text", "text", "image_url"]
    assert sum(loss.block_type == "message" for loss in request.losses) == 2
    free = turns("openai", user("a"), user("b"), assistant("c"), user("e"))
    assert [turn["role"] for turn in free] == ["user", "user", "assistant", "user"]


@pytest.mark.row("T73", "T74", "T75")
@pytest.mark.parametrize("name", STRICT)
def test_one_system_message_comes_first(name: str) -> None:
    sent = turns(name, system("a"), developer("b"), user("c"), assistant("d"), system("e"))
    assert sent[0] == {"role": "system", "content": "a\n\nb"}
    assert [turn["role"] for turn in sent] == ["system", "user", "assistant", "user"]
    assert sent[-1]["content"] == "<system>\ne\n</system>"


@pytest.mark.row("T75")
@pytest.mark.parametrize("name", CHAT)
def test_developer_role_is_sent_only_to_hosts_that_support_it(name: str) -> None:
    (first, _) = turns(name, developer("a"), user("b"))
    assert first["role"] == ("developer" if name in ("openai", "azure") else "system")


@pytest.mark.row("T80", "T82")
def test_mistral_receives_assistant_message_between_result_and_prompt() -> None:
    one, two = call("f", tool_id(1)), call("f", tool_id(2))
    talk = [user("a"), assistant(one, two), tool("x", answers=one.id), tool("y", answers=two.id)]
    request = wire("mistral", *talk, user("b"))
    roles = [turn["role"] for turn in json.loads(request.body)["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [loss.change for loss in request.losses] == [Change.SYNTHESISED]
    assert [turn["role"] for turn in turns("openai", *talk, user("b"))][-2:] == ["tool", "user"]


@pytest.mark.row("T81")
def test_mistral_prefix_is_set_only_for_prefill() -> None:
    unfinished = replace(assistant("It is"), metadata=MessageMetadata())
    assert turns("mistral", user("a"), unfinished)[-1] == {
        "role": "assistant",
        "content": "It is",
        "prefix": True,
    }
    complete = replace(assistant("4."), metadata=provenance())
    request = wire("mistral", user("a"), complete)
    assert json.loads(request.body)["messages"][-1] == {"role": "user", "content": "Continue."}
    assert [loss.change for loss in request.losses] == [Change.SYNTHESISED]


@pytest.mark.row("T78")
def test_model_without_prefill_receives_continue_prompt() -> None:
    unfinished = replace(assistant("It is"), metadata=MessageMetadata())
    old = turns("anthropic", user("a"), unfinished, model="claude-sonnet-4-5")
    assert old[-1]["role"] == "assistant"
    new = wire("anthropic", user("a"), unfinished, model="claude-opus-5")
    assert json.loads(new.body)["messages"][-1]["role"] == "user"
    assert b"It is" in new.body
    assert [loss.change for loss in new.losses] == [Change.SYNTHESISED]


@pytest.mark.row("T78")
@pytest.mark.parametrize("name", ["gemini", "vertex"])
def test_newer_gemini_models_receive_continue_prompt(name: str) -> None:
    unfinished = replace(assistant("It is"), metadata=MessageMetadata())
    for model in ("gemini-2.5-pro", "gemini-3-pro-preview", "gemini-3.1-flash-lite"):
        old = json.loads(wire(name, user("a"), unfinished, model=model).body)["contents"]
        assert old[-1] == {"role": "model", "parts": [{"text": "It is"}]}
    for model in ("gemini-3.5-flash", "gemini-4-argon", "gemini-flash-latest"):
        new = wire(name, user("a"), unfinished, model=model)
        contents = json.loads(new.body)["contents"]
        assert contents[-2:] == [
            {"role": "model", "parts": [{"text": "It is"}]},
            {"role": "user", "parts": [{"text": "Continue."}]},
        ]
        assert [loss.change for loss in new.losses] == [Change.SYNTHESISED]


@pytest.mark.row("T86")
@pytest.mark.parametrize("name", ["deepseek", "cerebras", "openai-compatible", *STRICT])
def test_texts_are_joined_where_content_lists_are_refused(name: str) -> None:
    one = call("f")
    talk = [
        user(text("a"), text("b")),
        assistant(text("c"), one),
        tool(text("d"), text("e"), answers=one.id),
    ]
    sent = turns(name, *talk)
    assert [turn["content"] for turn in sent] == ["a\n\nb", "c", "d\n\ne"]
    assert isinstance(turns("openai", *talk)[0]["content"], list)


# Options.


@pytest.mark.row("T182")
@pytest.mark.parametrize("name", CHAT)
def test_max_tokens_has_key_of_host(name: str) -> None:
    newer = {"openai", "azure", "groq", "xai", "cerebras"}
    key = "max_completion_tokens" if name in newer else "max_tokens"
    body = sent(name, user("hi"), max_output_tokens=7)
    assert {one: body[one] for one in body if "max" in one} == {key: 7}


@pytest.mark.row("M-215")
def test_max_tokens_is_clamped_to_model_limit() -> None:
    options = {"model": "gpt-4o", "max_output_tokens": 10**6}
    request = wire("openai", user("hi"), **options)
    most = adapters.get("openai").capabilities("gpt-4o").max_output_tokens
    assert json.loads(request.body)["max_completion_tokens"] == most
    assert [(loss.path, loss.change) for loss in request.losses] == [
        ("$.max_output_tokens", Change.ALTERED)
    ]
    assert sent("vllm", user("hi"), max_output_tokens=10**6)["max_tokens"] == 10**6


@pytest.mark.row("T113")
@pytest.mark.parametrize(
    ("name", "choice", "word"),
    [
        ("mistral", ToolChoice("required"), "any"),
        ("groq", ToolChoice("required"), "required"),
        ("mistral", ToolChoice("auto"), "auto"),
        ("openai", ToolChoice("tool", "f"), {"type": "function", "function": {"name": "f"}}),
        ("llamacpp", ToolChoice("tool", "f"), "required"),
        ("lmstudio", ToolChoice("tool", "f"), "required"),
    ],
)
def test_tool_choice_has_form_of_host(name: str, choice: ToolChoice, word: Any) -> None:
    request = wire(name, user("hi"), tools=[TOOL], tool_choice=choice)
    assert json.loads(request.body)["tool_choice"] == word
    paths = [loss.path for loss in request.losses]
    assert paths == (["$.tool_choice"] if choice.name and isinstance(word, str) else [])


@pytest.mark.parametrize("name", CHAT)
def test_stream_requests_usage(name: str) -> None:
    body = sent(name, user("hi"), stream=True)
    stream_options = body.get("stream_options")
    assert stream_options == (None if name == "mistral" else {"include_usage": True})
    assert "stream_options" not in sent(name, user("hi"))


@pytest.mark.row("M-211")
def test_parallel_calls_are_disabled_for_sequential_models() -> None:
    adapter = adapters.get("openai")
    model = next(
        one.wire_name
        for one in catalog().models("openai")
        if one.capabilities.supports_tools and not one.capabilities.supports_parallel_tool_calls
    )
    body = json.loads(adapter.to_wire([user("hi")], [TOOL], AdapterOptions(model=model)).body)
    assert body["parallel_tool_calls"] is False


@pytest.mark.row("T183")
@pytest.mark.parametrize("name", CHAT)
def test_shared_option_is_sent_only_where_supported(name: str) -> None:
    takers = {"openrouter", "together", "fireworks", "vllm", "llamacpp", "lmstudio"}
    refused = adapters.get(name).profile.refused_options
    assert ("top_k" not in refused) is (name in takers)
    request = wire(name, user("hi"), tools=[TOOL], top_k=3, parallel_tool_calls=False)
    body = json.loads(request.body)
    for key in ("top_k", "parallel_tool_calls"):
        assert (key in body) is (key not in refused)
        assert (f"$.{key}" in [loss.path for loss in request.losses]) is (key in refused)


SPELLED = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": "say hi in JSON"}],
    "seed": 7,
    "logit_bias": {"1": 2},
    "presence_penalty": 0.5,
    "response_format": {"type": "json_object"},
    "stop": ["x"],
}


@pytest.mark.row("M-014")
@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("groq", {"logit_bias"}),
        ("deepseek", {"logit_bias", "seed"}),
        ("cerebras", {"logit_bias", "presence_penalty"}),
        ("fireworks", set[str]()),
        ("vllm", set[str]()),
        ("azure", set[str]()),
    ],
)
def test_options_of_another_host_are_sent_unless_unsupported(name: str, unknown: set[str]) -> None:
    request = adapters.get("openai").from_wire_request(SPELLED, CONTEXT)
    adapter = adapters.get(name)
    options = replace(request.options, model=None if name != "azure" else "gpt-4o")
    away = adapter.to_wire(request.messages, (), options)
    body = json.loads(away.body)
    expected = {"seed", "logit_bias", "presence_penalty", "response_format", "stop"} - unknown
    assert {key: body[key] for key in body if key not in ("model", "messages")} == {
        key: SPELLED[key] for key in expected
    }
    assert {loss.path for loss in away.losses} == {f"$.{key}" for key in unknown}


def test_an_option_may_have_another_name_at_a_host() -> None:
    request = adapters.get("openai").from_wire_request(SPELLED, CONTEXT)
    options = replace(request.options, model=None)
    body = json.loads(adapters.get("mistral").to_wire(request.messages, (), options).body)
    assert body["random_seed"] == 7
    assert "seed" not in body


@pytest.mark.row("T108", "T109")
def test_strict_flag_is_sent_only_where_supported() -> None:
    function = {"name": "f", "description": "", "parameters": {"type": "object"}, "strict": True}
    body = {**SPELLED, "tools": [{"type": "function", "function": function}]}
    request = adapters.get("openai").from_wire_request(body, CONTEXT)
    options = replace(request.options, model=None)
    request_kept = adapters.get("mistral").to_wire(request.messages, request.tools, options)
    assert json.loads(request_kept.body)["tools"] == body["tools"]
    bare = adapters.get("groq").to_wire(request.messages, request.tools, options)
    assert "strict" not in json.loads(bare.body)["tools"][0]["function"]
    assert "$.tools[0].function.strict" in [loss.path for loss in bare.losses]


# Usage.


@pytest.mark.row("T143", "T144")
@pytest.mark.parametrize(
    ("name", "usage", "buckets"),
    [
        (
            "deepseek",
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "prompt_cache_hit_tokens": 4,
                "prompt_cache_miss_tokens": 6,
            },
            (6, 4, 5, 0),
        ),
        (
            "xai",
            {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "total_tokens": 396,
                "completion_tokens_details": {"reasoning_tokens": 385},
            },
            (10, 0, 386, 385),
        ),
        (
            "mistral",
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "num_cached_tokens": 8,
            },
            (2, 8, 5, 0),
        ),
        (
            "openrouter",
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 3},
            },
            (7, 3, 5, 0),
        ),
    ],
)
def test_usage_is_read_as_the_host_counts(
    name: str, usage: dict[str, Any], buckets: tuple[int, int, int, int]
) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "a"}}], "usage": usage}
    actual = adapters.get(name).from_wire_response(body, CONTEXT).metadata.usage
    assert actual is not None
    assert buckets == (
        actual.input_tokens,
        actual.cached_input_tokens,
        actual.output_tokens,
        actual.reasoning_output_tokens,
    )


# The laws, with every host as target.

THINKING_KEYS = {
    "openrouter": ("reasoning",),
    "deepseek": ("thinking",),
    "moonshot": ("thinking",),
}
OWN_KEYS = {"reasoning", "reasoning_content", "reasoning_details", "prefix"}


def breaches(name: str, body: dict[str, Any]) -> list[str]:
    """Return violations of the host's profile and of the official SDK's types."""
    profile = adapters.get(name).profile
    assert profile.id_rule is not None
    problems = faults("openai", body)
    problems += [f"id {one}" for one in wire_ids(body["messages"]) if not profile.id_rule.fits(one)]
    roles = [turn["role"] for turn in body["messages"]]
    pairs = list(itertools.pairwise(roles))
    if profile.alternates_roles:
        problems += [f"{one} twice" for one, two in pairs if one == two != "tool"]
    if profile.system_first:
        problems += ["a late system" for role in roles[1:] if role == "system"]
    if not profile.allows_user_after_tool and ("tool", "user") in pairs:
        problems.append("a user after a tool")
    if not profile.developer_role and "developer" in roles:
        problems.append("a developer")
    bare = [
        {key: value for key, value in turn.items() if key not in OWN_KEYS}
        for turn in body["messages"]
    ]
    native = {"random_seed", "top_k", *THINKING_KEYS.get(name, ())}
    rest = {key: value for key, value in body.items() if key not in native}
    if rest.get("tool_choice") == "any":
        rest["tool_choice"] = "required"
    return problems + complaints("openai", {**rest, "messages": bare})


@pytest.mark.slow
@pytest.mark.row("M-224", "T87", "T183")
@pytest.mark.parametrize("name", CHAT)
@given(talk=strategies.conversations())
def test_any_conversation_becomes_valid_for_any_host(name: str, talk: list[Message]) -> None:
    request = adapters.get(name).to_wire(talk)
    body = json.loads(request.body)
    assert breaches(name, body) == []
    texts = set(strings(body))
    for message in talk:
        for index, block in enumerate(message.content):
            assert is_carried(block, texts) or is_reported_loss(message, index, request.losses)


@needs_corpus
@pytest.mark.row("M-054", "M-055", "M-138", "M-224", "T15", "T87", "T210", "T211")
@pytest.mark.parametrize("name", [name for name in CHAT if name != "openai"])
@pytest.mark.parametrize("source", ["anthropic_messages", "openai_chat"])
def test_recorded_requests_become_valid_for_any_host(source: str, name: str) -> None:
    reader = adapters.get("anthropic" if source == "anthropic_messages" else "openai")
    for number, (key, body) in enumerate(requests(source)):
        if "messages" not in body or number % 4:
            continue
        request = reader.from_wire_request(body, CONTEXT)
        options = replace(request.options, model=None, stream=None)
        away = adapters.get(name).to_wire(request.messages, request.tools, options)
        sent = json.loads(away.body)
        assert breaches(name, sent) == [], key
        texts = set(strings(sent))
        for message in request.messages:
            for index, block in enumerate(message.content):
                assert is_carried(block, texts) or is_reported_loss(message, index, away.losses), (
                    key
                )


@pytest.mark.row("M-173", "T205")
@pytest.mark.parametrize("name", CHAT)
def test_host_receives_its_ids_and_keys_after_turns_elsewhere(name: str) -> None:
    host, other = adapters.get(name), adapters.get("anthropic")
    spelled = {
        "id": "Own456789",
        "type": "function",
        "function": {"name": "f", "arguments": '{ "a": 1 }'},
    }
    answer = answer_of(name, content=None, tool_calls=[spelled])
    (called,) = (block for block in answer.content if isinstance(block, ToolUseBlock))
    history = [user("go"), answer, tool("ok", answers=called.id)]
    away = json.loads(other.to_wire(history).body)
    assert away["messages"][1]["content"][0]["id"] == "toolu_" + called.id.removeprefix("tu_")
    back = json.loads(host.to_wire([*history, assistant("done"), user("more")]).body)["messages"]
    assert back[1]["tool_calls"] == [spelled]
    assert back[2]["tool_call_id"] == "Own456789"


def test_mistral_validator_accepts_requests() -> None:
    """Uses the validator that Mistral publishes, where it is installed."""
    validator = pytest.importorskip("mistral_common.protocol.instruct.validator")
    request = pytest.importorskip("mistral_common.protocol.instruct.request")
    one, two = call("f", tool_id(1), a=1), call("f", tool_id(2), a=2)
    talk = [
        system("s"),
        user("a"),
        user("b"),
        assistant("c", one, two),
        tool("x", answers=one.id),
        tool("y", answers=two.id),
        user("d"),
        replace(assistant("e"), metadata=provenance()),
    ]
    body = sent("mistral", *talk, tools=[TOOL], tool_choice=ToolChoice("required"))
    parsed = request.ChatCompletionRequest(**body)
    validator.MistralRequestValidatorV13().validate_request(parsed)
    assert re.fullmatch("[a-zA-Z0-9]{9}", parsed.messages[2].tool_calls[0].id)
    assert parsed.messages[-1].role == Role.USER
