"""Ranges and limits of requests: every row of the table, and rules without a row."""

import json
from typing import Any

import pytest

from build import assistant, system, text, user
from metis import adapters
from metis.canonical import ToolDefinition
from metis.canonical.errors import CatalogDataError, InvalidValueError
from metis.canonical.tools import SideEffects
from metis.catalog.limits import SHARED_LIMITS, LimitRule, read_limits
from metis.catalog.tables import limit_table
from metis.projection import Loss
from metis.wire.call import AdapterOptions
from metis.wire.json_access import maybe_list, maybe_object

TABLE = limit_table()
MODELS = {
    "anthropic": "claude-sonnet-4-0",
    "bedrock": "anthropic.claude-sonnet-4-20250514-v1:0",
    "bedrock-converse": "anthropic.claude-sonnet-4-20250514-v1:0",
    "vertex-claude": "claude-sonnet-4@20250514",
    "openai": "gpt-4o",
    "azure": "gpt-4o",
    "openai-responses": "gpt-4o",
    "azure-responses": "gpt-4o",
    "xai": "grok-3",
}
"""Models that accept the sampling options, where the default model does not."""
OLDER_MODELS = {"gemini:gemini-1*": "gemini-1.5-flash"}
PAIRS = [
    (rule, host)
    for rule in TABLE.rules
    for host in (adapters.names() if rule.hosts == ("*",) else rule.hosts)
]
NUMBERS = ("max_output_tokens", "temperature", "top_k", "top_p")


def model_of(rule: LimitRule, host: str) -> str:
    older = OLDER_MODELS.get(rule.models[0])
    return older or MODELS.get(host) or adapters.get(host).profile.default_model


def request(
    host: str, tools: list[ToolDefinition] | None = None, **options: Any
) -> tuple[str, list[Loss]]:
    sent = adapters.get(host).preview([user("Hi.")], tools or (), AdapterOptions(**options))
    return sent.body.decode(), sent.losses


def losses_of(losses: list[Loss], option: str) -> list[Loss]:
    return [loss for loss in losses if loss.path.startswith(f"$.{option}")]


def numbers(wire: Any) -> list[float]:
    """Return all numbers of a body, wherever a protocol has them."""
    if isinstance(wire, dict):
        return [number for value in maybe_object(wire).values() for number in numbers(value)]
    return [wire] if isinstance(wire, int | float) and not isinstance(wire, bool) else []


def test_every_host_of_a_row_exists_and_every_row_names_its_source() -> None:
    names = set(adapters.names())
    for rule in TABLE.rules:
        assert rule.hosts == ("*",) or set(rule.hosts) <= names, rule
        assert rule.source.startswith("https://"), rule


def test_first_matching_row_applies_to_model() -> None:
    older = TABLE.limits_for("gemini", "gemini:gemini-1.5-pro")["top_k"]
    assert (older.most, TABLE.limits_for("gemini", "gemini:gemini-3-pro")["top_k"].most) == (
        40,
        None,
    )


@pytest.mark.row("T213")
@pytest.mark.parametrize(
    ("rule", "host"),
    [pair for pair in PAIRS if pair[0].option in NUMBERS],
    ids=lambda value: value if isinstance(value, str) else value.option,
)
def test_number_out_of_range_is_clamped(rule: LimitRule, host: str) -> None:
    profile = adapters.get(host).profile
    if rule.option in profile.refused_options:
        pytest.skip("the host has no such option")
    model = model_of(rule, host)
    for bound, step in ((rule.least, -1), (rule.most, 1)):
        if bound is None:
            continue
        is_whole = rule.option in ("top_k", "max_output_tokens")
        value = int(bound + step) if is_whole else bound + step / 2
        wished: dict[str, Any] = {rule.option: value}
        body, losses = request(host, model=model, **wished)
        assert [loss.change for loss in losses_of(losses, rule.option)] == ["altered"]
        assert bound in numbers(json.loads(body)), body
        assert value not in numbers(json.loads(body)), body
        wished = {rule.option: bound}
        inside, losses = request(host, model=model, **wished)
        assert not losses_of(losses, rule.option)
        assert bound in numbers(json.loads(inside))


@pytest.mark.row("T214")
@pytest.mark.parametrize(
    ("rule", "host"),
    [pair for pair in PAIRS if pair[0].option == "stop_sequences"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_stop_sequences_over_limit_are_omitted(rule: LimitRule, host: str) -> None:
    profile, model = adapters.get(host).profile, model_of(rule, host)
    if rule is not adapters.get(host)._model(model).limits["stop_sequences"]:  # pyright: ignore[reportPrivateUsage] - which row applies
        pytest.skip("another row applies to the host")
    if "stop_sequences" in profile.refused_options:
        pytest.skip("the host has no such option")
    count = min(rule.max_items or 6, 16)
    stops = [f"stop{number}" for number in range(count)]
    unfit = ["", *([" \n"] if rule.visible else []), *(["x" * 33] if rule.max_length else [])]
    if rule.max_items is not None and rule.max_items < 100:
        unfit.append("one_more")
    given = (*unfit[:-1], *stops, unfit[-1])
    body, losses = request(host, model=model, stop_sequences=given)
    assert [json.dumps(stop) in body for stop in stops] == [True] * count
    assert not [stop for stop in ('"one_more"', '""', '" \\n"') if stop in body]
    assert len(losses_of(losses, "stop_sequences[")) == len(unfit)
    body, losses = request(host, model=model, stop_sequences=("",))
    assert len(losses_of(losses, "stop_sequences[0]")) == 1
    assert not [key for key in ("stop_sequences", "stopSequences", '"stop"') if key in body]


@pytest.mark.row("T215")
@pytest.mark.parametrize(
    ("rule", "host"),
    [pair for pair in PAIRS if pair[0].option == "tools"],
    ids=lambda value: value if isinstance(value, str) else str(value.max_items),
)
def test_too_many_tools_are_refused_before_sending(rule: LimitRule, host: str) -> None:
    model = model_of(rule, host)
    tools = [
        ToolDefinition(f"tool_{number}", "Does it.", {"type": "object"}, SideEffects.READ)
        for number in range((rule.max_items or 0) + 1)
    ]
    with pytest.raises(InvalidValueError, match=f"at most {rule.max_items} tools") as refused:
        request(host, tools, model=model)
    assert refused.value.path == "$.tools"
    body, _ = request(host, tools[:-1], model=model)
    assert f'"tool_{(rule.max_items or 0) - 1}"' in body


@pytest.mark.row("T215")
def test_native_numbers_become_the_nearest_ones_that_the_host_accepts() -> None:
    numbers = [(rule, host) for rule, host in PAIRS if rule.option not in SHARED_LIMITS]
    numbers = [(rule, host) for rule, host in numbers if rule.most is not None]
    assert numbers
    for rule, host in numbers:
        protocol = adapters.get(host).profile.protocol
        native = {protocol: {rule.option: (rule.most or 0) + 1}}
        body, losses = request(host, model=model_of(rule, host), native=native)
        assert json.loads(body)[rule.option] == rule.most
        found = [(loss.change, loss.path) for loss in losses_of(losses, rule.option)]
        assert found == [("altered", f"$.{rule.option}")]


@pytest.mark.row("T215")
@pytest.mark.parametrize(
    ("rule", "host"),
    [pair for pair in PAIRS if pair[0].option not in SHARED_LIMITS and pair[0].most is None],
    ids=lambda value: value if isinstance(value, str) else value.option,
)
def test_ids_are_hashed_and_metadata_is_cut_to_what_the_host_accepts(
    rule: LimitRule, host: str
) -> None:
    protocol = adapters.get(host).profile.protocol
    outer, _, inner = rule.option.partition(".")
    if rule.max_items is None:
        value: Any = "u" * ((rule.max_length or 0) + 1)
        native: dict[str, Any] = {outer: {inner: value} if inner else value}
    else:
        value = {f"key{number}": "v" for number in range(rule.max_items - 1)}
        value["long"] = "w" * ((rule.max_length or 0) + 1)
        value["k" * ((rule.max_key_length or 0) + 1)] = "v"
        value["excess"] = "v"
        native = {outer: value}
    before = json.dumps(native)
    body, losses = request(host, model=model_of(rule, host), native={protocol: native})
    wire = json.loads(body)[outer]
    sent = wire[inner] if inner else wire
    assert json.dumps(native) == before  # the caller's own value is not changed
    found = [(loss.change, loss.path) for loss in losses_of(losses, rule.option)]
    if rule.max_items is None:
        again, _ = request(host, model=model_of(rule, host), native={protocol: native})
        assert (len(sent), again) == (32, body)
        assert found == [("altered", f"$.{rule.option}")]
        return
    assert len(sent) == rule.max_items
    assert sent["long"] == "w" * (rule.max_length or 0)
    assert [change for change, _ in found] == ["altered", "dropped", "dropped"]


@pytest.mark.row("T181", "T216")
@pytest.mark.parametrize(
    ("host", "model", "limit"),
    [
        ("anthropic", "claude-sonnet-4-5", 64_000),
        ("anthropic", "claude-opus-4-1", 32_000),
        ("anthropic", "claude-3-haiku-20240307", 4096),
        ("anthropic", "claude-of-tomorrow", 32_000),
        ("bedrock", "anthropic.claude-haiku-4-5-20251001-v1:0", 64_000),
        ("vertex-claude", "claude-haiku-4-5@20251001", 64_000),
    ],
)
@pytest.mark.parametrize("stream", [True, None])
def test_default_max_tokens_is_model_limit(
    host: str, model: str, limit: int, *, stream: bool | None
) -> None:
    body, losses = request(host, model=model, stream=stream)
    assert json.loads(body)["max_tokens"] == limit
    assert not losses_of(losses, "max_output_tokens")


@pytest.mark.row("T216")
def test_default_max_tokens_leaves_space_for_prompt_in_shared_window() -> None:
    long = [user("word " * 170_000)]
    for model, is_reduced in (("claude-sonnet-4-0", True), ("claude-sonnet-4-5", False)):
        adapter = adapters.get("anthropic")
        body = json.loads(adapter.preview(long, (), AdapterOptions(model=model)).body)
        tokens = adapter.estimate_input_tokens(long, model=model)
        assert (tokens + body["max_tokens"] <= 200_000) is is_reduced
        stated = AdapterOptions(model=model, max_output_tokens=60_000)
        assert json.loads(adapter.preview(long, (), stated).body)["max_tokens"] == 60_000


@pytest.mark.row("T217")
@pytest.mark.parametrize("host", ["anthropic", "bedrock", "bedrock-converse", "vertex-claude"])
def test_blank_text_and_blank_instructions_are_omitted(host: str) -> None:
    messages = [system(text(" \n")), user(text("Hi."), text("  ")), assistant("A."), user("Go on.")]
    sent = adapters.get(host).preview(messages)
    wire = json.loads(sent.body)
    assert not wire.get("system")
    assert '"  "' not in sent.body.decode()
    assert len(sent.losses) >= 2


@pytest.mark.row("T217")
@pytest.mark.parametrize("host", ["anthropic", "bedrock", "bedrock-converse", "vertex-claude"])
def test_request_without_message_is_refused_before_sending(host: str) -> None:
    with pytest.raises(InvalidValueError, match="nothing of the messages") as refused:
        adapters.get(host).to_wire([system(text("  "))])
    assert refused.value.path == "$.messages"


def test_a_table_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(CatalogDataError, match="cannot be used"):
        read_limits({"rules": [{"hosts": ["x"], "option": "top_p", "source": "", "lowest": 0}]})


def test_rule_applies_only_to_its_models_and_hosts() -> None:
    rule = LimitRule(option="top_k", hosts=("gemini",), models=("*-pro",), most=40, source="x")
    assert rule.applies_to("gemini", "gemini-3-pro")
    assert not rule.applies_to("gemini", "gemini-3-flash")
    assert not rule.applies_to("vertex", "gemini-3-pro")


ODD_NAMES = ("1tool", "-tool", "a.b:c", "n" * 200, "名前", "has space", "files/read", ".")
ODD_IDS = ("functions.Bash:0", "x" * 100, "名", "a b", "abc")


def texts_at(wire: Any, keys: frozenset[str]) -> list[str]:
    """Return all texts of a body under some keys."""
    if isinstance(wire, list):
        return [text for value in maybe_list(wire) for text in texts_at(value, keys)]
    found: list[str] = []
    for key, value in maybe_object(wire).items():
        found += [value] if key in keys and isinstance(value, str) else texts_at(value, keys)
    return found


@pytest.mark.parametrize("host", adapters.names())
def test_names_of_tools_and_ids_of_calls_become_those_that_the_host_accepts(host: str) -> None:
    adapter = adapters.get(host)
    tools = [ToolDefinition(name, "", {"type": "object"}, SideEffects.READ) for name in ODD_NAMES]
    client = adapters.get("openai" if adapter.profile.protocol != "openai_chat" else "anthropic")
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for wire_id, name in zip(ODD_IDS, ODD_NAMES, strict=False):
        if client.name == "openai":
            call = {"type": "function", "function": {"name": name, "arguments": "{}"}}
            history.append({"role": "assistant", "tool_calls": [{"id": wire_id, **call}]})
            history.append({"role": "tool", "tool_call_id": wire_id, "content": "1"})
        else:
            use: dict[str, Any] = {"type": "tool_use", "id": wire_id, "name": name, "input": {}}
            result = {"type": "tool_result", "tool_use_id": wire_id, "content": "1"}
            history.append({"role": "assistant", "content": [use]})
            history.append({"role": "user", "content": [result]})
    messages = client.from_wire_request({"messages": history, "max_tokens": 9}).messages
    body = json.loads(adapter.preview(messages, tools).body)
    again = json.loads(adapter.preview(messages, tools).body)
    assert body == again
    rules = TABLE.limits_for(host, adapter.profile.default_model)
    names = texts_at(body, frozenset({"name", "tool_name"}))
    assert len(set(names)) >= len(ODD_NAMES), "two tools must not get one name"
    assert [name for name in names if not rules["tool_name"].accepts(name)] == []
    ids = texts_at(body, frozenset({"call_id", "tool_call_id", "tool_use_id", "toolUseId"}))
    if "call_id" in rules:
        assert len(set(ids)) == len(ODD_IDS)
        assert [wire_id for wire_id in ids if not rules["call_id"].accepts(wire_id)] == []
