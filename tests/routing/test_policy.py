"""Routing rules files: predicates, problems, reloading and precedence."""

import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical import SideEffects
from metis.canonical.errors import InvalidValueError, RoutingPolicyError
from metis.catalog import catalog
from metis.routing import (
    RULES_PATH,
    Policy,
    RulesFile,
    Scope,
    Tier,
    TurnFacts,
    read_policy,
)
from metis.routing.predicates import PREDICATES, all_hold, read_conditions

NOON = datetime(2026, 5, 8, 12, 0, tzinfo=UTC)
HAIKU = "anthropic:claude-haiku-4-5"
OPUS = "anthropic:claude-opus-4-7"
SONNET = "anthropic:claude-sonnet-4-6"
WHOLE = b"""
schema_version = 1
global_default = "sonnet"
tiers = { fast = "haiku", balanced = "sonnet", deep = "opus" }

[pattern]
cost_weight = 0.5
min_confidence = 0.2
min_sample_size = 3

[[rules]]
when = { has_images = true }
use = "opus"

[[rules]]
name = "typos"
when = { message_contains_any = ["Typo"], estimated_input_tokens_lt = 2000 }
use = "haiku"

[exclude]
execute = ["haiku"]

[workspaces."/shop"]
default = "opus"
rules = [{ when = { message_matches = "^deploy" }, use = "opus" }]
"""


def facts(**given: Any) -> TurnFacts:
    fields: dict[str, Any] = {"now": NOON}
    return TurnFacts(**fields | given)


def test_file_has_every_policy_field() -> None:
    policy = read_policy(WHOLE, catalog())
    assert policy.common.default == SONNET
    assert policy.tiers("/elsewhere") == {"fast": HAIKU, "balanced": SONNET, "deep": OPUS}
    assert [rule.name for rule in policy.rules("/shop")] == ["rule_0", "rule_0", "typos"]
    assert [rule.name for rule in policy.rules("/shop/inner")] == ["rule_0", "typos"]
    assert policy.workspace_default("/shop") == OPUS
    assert policy.workspace_default("/") is None
    assert policy.pattern("/shop").cost_weight == 0.5
    assert policy.exclude[SideEffects.EXECUTE] == {HAIKU}
    assert policy.version == read_policy(WHOLE, catalog()).version != "none"


def test_workspace_policy_replaces_user_policy() -> None:
    own = b'[workspaces."/a"]\npattern = { cost_weight = 1 }\ntiers = { fast = "opus", balanced '
    own += b'= "opus", deep = "opus" }\n'
    policy = read_policy(WHOLE + own, catalog())
    assert policy.pattern("/a").min_sample_size == 5
    assert set(policy.tiers("/a").values()) == {OPUS}
    assert policy.tiers("/b")[Tier.FAST] == HAIKU


BROKEN = [
    ("schema_version = [", "$"),
    ("\xff", "$"),
    ("", "$.schema_version"),
    ("schema_version = 2", "$.schema_version"),
    ("schema_version = true", "$.schema_version"),
    ("schema_version = 1\nextra = 1", "$.extra"),
    ('schema_version = 1\nglobal_default = "nobody"', "$.global_default"),
    ("schema_version = 1\nglobal_default = 4", "$.global_default"),
    ('schema_version = 1\ntiers = { fast = "haiku" }', "$.tiers"),
    ("schema_version = 1\ntiers = 1", "$.tiers"),
    ("schema_version = 1\npattern = { cost_weight = 2 }", "$.pattern.cost_weight"),
    ("schema_version = 1\npattern = { min_sample_size = 0 }", "$.pattern.min_sample_size"),
    ("schema_version = 1\npattern = { other = 0 }", "$.pattern"),
    ("schema_version = 1\npattern = { fingerprint_version = 3 }", "$.pattern.fingerprint_version"),
    ("schema_version = 1\npattern = { fingerprint_version = 2 }", "$.pattern.embedding_provider"),
    ("schema_version = 1\nrules = 1", "$.rules"),
    ('schema_version = 1\nrules = [{ use = "haiku" }]', "$.rules[0].when"),
    ("schema_version = 1\nrules = [{ when = { has_images = true } }]", "$.rules[0].use"),
    ("schema_version = 1\nexclude = { fly = [] }", "$.exclude.fly"),
    ('schema_version = 1\nexclude = { write = ["x"] }', "$.exclude.write[0]"),
    ("schema_version = 1\nexclude = { write = 1 }", "$.exclude.write"),
    ("schema_version = 1\nworkspaces = 1", "$.workspaces"),
    ('schema_version = 1\nworkspaces = { "/a" = 1 }', '$.workspaces["/a"]'),
    ('schema_version = 1\nworkspaces = { "/a" = { no = 1 } }', '$.workspaces["/a"].no'),
]


@pytest.mark.row("M-177")
@pytest.mark.parametrize(("text", "path"), BROKEN)
def test_broken_file_error_names_the_path(text: str, path: str) -> None:
    with pytest.raises(RoutingPolicyError) as caught:
        read_policy(text.encode("latin-1"), catalog())
    assert path in [problem.path for problem in caught.value.problems]


BAD_CONDITIONS: list[tuple[str, str]] = [
    ("{}", ""),
    ("3", ""),
    ("{ unheard_of = 1 }", ".unheard_of"),
    ('{ message_matches = "(" }', ".message_matches"),
    ("{ message_matches = 1 }", ".message_matches"),
    ('{ workspace_path_matches = "(a" }', ".workspace_path_matches"),
    ("{ message_contains_any = [] }", ".message_contains_any"),
    ('{ message_contains_any = ["a", ""] }', ".message_contains_any"),
    ("{ estimated_input_tokens_gt = -1 }", ".estimated_input_tokens_gt"),
    ("{ estimated_input_tokens_lt = true }", ".estimated_input_tokens_lt"),
    ("{ has_images = 1 }", ".has_images"),
    ('{ time_of_day_between = ["22:00"] }', ".time_of_day_between"),
    ('{ time_of_day_between = ["22:00", "25:00"] }', ".time_of_day_between"),
    ('{ time_of_day_between = ["22:00", "22:00"] }', ".time_of_day_between"),
    ('{ time_of_day_between = ["22:00+02:00", "06:00"] }', ".time_of_day_between"),
    ("{ cost_today_exceeds_usd = -0.5 }", ".cost_today_exceeds_usd"),
    ("{ cost_today_exceeds_usd = nan }", ".cost_today_exceeds_usd"),
    ('{ team_budget_remaining_lt = "5" }', ".team_budget_remaining_lt"),
    ("{ any_of = [] }", ".any_of"),
    ("{ all_of = [{ no = 1 }] }", ".all_of[0].no"),
    ("{ not = [] }", ".not"),
]


@pytest.mark.parametrize(("when", "place"), BAD_CONDITIONS)
def test_invalid_condition_error_names_the_path(when: str, place: str) -> None:
    text = f'schema_version = 1\nrules = [{{ when = {when}, use = "haiku" }}]'
    with pytest.raises(RoutingPolicyError) as caught:
        read_policy(text.encode(), catalog())
    assert [problem.path for problem in caught.value.problems] == [f"$.rules[0].when{place}"]


def test_every_problem_is_reported() -> None:
    text = (
        b'schema_version = 3\nglobal_default = "x"\nother = 1\n'
        b'[[rules]]\nname = "a"\nwhen = { has_images = 1, no = 2 }\nuse = "claude"\n'
        b'[[rules]]\nname = "a"\nwhen = { has_images = true }\nuse = "haiku"\n'
        b'[[rules]]\nname = ""\nwhen = { has_images = true }\nuse = "haiku"\nthen = 1\n'
    )
    with pytest.raises(RoutingPolicyError) as caught:
        read_policy(text, catalog(), name="routing.toml")
    assert {problem.path for problem in caught.value.problems} == {
        *("$.schema_version", "$.global_default", "$.other"),
        *("$.rules[0].when.has_images", "$.rules[0].when.no", "$.rules[0].use"),
        *("$.rules[1]", "$.rules[2].name", "$.rules[2].then"),
    }
    assert str(caught.value).startswith("routing.toml:")


def holds(when: dict[str, Any], turn: TurnFacts) -> bool:
    problems: list[Any] = []
    conditions = read_conditions(when, "$", problems)
    assert problems == []
    return all_hold(conditions, turn)


CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"message_matches": r"\bfix\b"}, {"message": "fix it"}, {"message": "prefix"}),
    ({"message_contains_any": ["TYPO"]}, {"message": "a Typo"}, {"message": "a test"}),
    (
        {"estimated_input_tokens_gt": 5},
        {"estimated_input_tokens": 6},
        {"estimated_input_tokens": 5},
    ),
    (
        {"estimated_input_tokens_lt": 5},
        {"estimated_input_tokens": 4},
        {"estimated_input_tokens": 5},
    ),
    ({"has_images": True}, {"has_images": True}, {}),
    ({"has_images": False}, {}, {"has_images": True}),
    ({"has_tool_calls_in_history": True}, {"has_tool_calls_in_history": True}, {}),
    (
        {"skills_matching_message_includes": ["pdf", "csv"]},
        {"skills_matching_message": {"csv"}},
        {"skills_matching_message": {"xls"}},
    ),
    (
        {"file_extensions_in_context": ["PY", ".rs"]},
        {"file_extensions_in_context": {".py"}},
        {"file_extensions_in_context": {".c"}},
    ),
    ({"workspace_path_matches": "/shop$"}, {"workspace_path": "/a/shop"}, {"workspace_path": "/"}),
    ({"time_of_day_between": ["09:00", "17:00"]}, {}, {"now": NOON.replace(hour=17)}),
    ({"time_of_day_between": ["22:00", "06:00"]}, {"now": NOON.replace(hour=23)}, {}),
    ({"time_of_day_between": ["22:00", "06:00"]}, {"now": NOON.replace(hour=22)}, {}),
    (
        {"time_of_day_between": ["22:00", "06:00"]},
        {"now": NOON.replace(hour=5, minute=59)},
        {"now": NOON.replace(hour=6)},
    ),
    (
        {"cost_today_exceeds_usd": Decimal("1.10")},
        {"cost_today_usd": Decimal("1.11")},
        {"cost_today_usd": Decimal("1.10")},
    ),
    (
        {"team_budget_remaining_lt": 5},
        {"team_budget_remaining_usd": Decimal("4.99")},
        {"team_budget_remaining_usd": None},
    ),
    ({"any_of": [{"has_images": True}, {"message_matches": "x"}]}, {"message": "x"}, {}),
    (
        {"all_of": [{"has_images": True}, {"message_matches": "x"}]},
        {"message": "x", "has_images": True},
        {"message": "x"},
    ),
    ({"not": {"has_images": True, "message_matches": "x"}}, {"message": "x"}, {"has_images": True}),
]
CASES[-1][2]["message"] = "x"


@pytest.mark.parametrize(("when", "yes", "no"), CASES, ids=lambda value: str(value)[:40])
def test_each_predicate(when: dict[str, Any], yes: dict[str, Any], no: dict[str, Any]) -> None:
    assert holds(when, facts(**yes)) is True
    assert holds(when, facts(**no)) is False


def test_every_predicate_is_tested() -> None:
    assert {name for when, _, _ in CASES for name in when} == set(PREDICATES)


def test_times_may_be_toml_times() -> None:
    text = b"schema_version = 1\nrules = [{ when = { time_of_day_between = [09:00:00, 17:00:00] }, "
    policy = read_policy(text + b'use = "haiku" }]', catalog())
    assert all_hold(policy.rules("")[0].when, facts())


@pytest.mark.parametrize("field", ["cost_today_usd", "team_budget_remaining_usd"])
def test_non_numeric_amounts_are_refused(field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        facts(**{field: Decimal("NaN")})


def test_several_predicates_in_a_table_must_all_hold() -> None:
    when = {"has_images": True, "message_matches": "x"}
    assert holds(when, facts(has_images=True, message="x"))
    assert not holds(when, facts(has_images=True))


LEAVES = st.sampled_from([when for when, _, _ in CASES[:-3]])
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"any_of": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"all_of": parts}),
        inner.map(lambda part: {"not": part}),
        st.tuples(inner, inner).map(lambda pair: {**pair[0], **pair[1]}),
    ),
    max_leaves=10,
)
TURNS = st.builds(
    TurnFacts,
    now=st.datetimes(timezones=st.just(UTC)),
    message=st.text(max_size=40),
    workspace_path=st.text(max_size=10),
    estimated_input_tokens=st.integers(0, 10),
    has_images=st.booleans(),
    has_tool_calls_in_history=st.booleans(),
    skills_matching_message=st.frozensets(st.sampled_from(["pdf", "other"])),
    file_extensions_in_context=st.frozensets(st.sampled_from([".py", ".c"])),
    cost_today_usd=st.decimals(0, 5, allow_nan=False, places=2),
    team_budget_remaining_usd=st.none() | st.decimals(0, 9, places=2),
)


@given(CONDITIONS, TURNS)
def test_any_combination_of_predicates_is_true_or_false(
    when: dict[str, Any], turn: TurnFacts
) -> None:
    first = holds(when, turn)
    assert isinstance(first, bool)
    assert holds(when, turn) is first
    assert holds({"not": when}, turn) is not first


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        _ := lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*PREDICATES, "x"]), inner, max_size=3)
        ),
    ),
    TURNS,
)
def test_any_value_is_a_condition_or_a_list_of_problems(value: object, turn: TurnFacts) -> None:
    problems: list[Any] = []
    conditions = read_conditions(value, "$", problems)
    if not problems:
        assert all_hold(conditions, turn) in (True, False)


def test_nesting_of_conditions_is_bounded() -> None:
    when: dict[str, Any] = {"has_images": True}
    for _ in range(30):
        when = {"not": when}
    problems: list[Any] = []
    read_conditions(when, "$", problems)
    assert "nested deeper" in problems[0].text


def write(path: Path, text: str, at: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(at, at))


def test_changed_file_applies_from_next_turn(tmp_path: Path) -> None:
    path = tmp_path / RULES_PATH
    fallback = Policy(common=Scope(default=OPUS))
    rules = RulesFile(path, catalog(), fallback=fallback)
    assert rules.read().policy is fallback
    write(path, 'schema_version = 1\nglobal_default = "haiku"', 1)
    first = rules.read()
    assert first.policy.common.default == HAIKU
    assert rules.read() is first, "nothing changed, nothing is read"
    write(path, 'schema_version = 1\nglobal_default = "sonnet"', 2)
    assert rules.read().policy.common.default == SONNET
    path.unlink()
    assert rules.read().policy is fallback


def test_a_broken_file_leaves_the_last_good_rules_in_force(tmp_path: Path) -> None:
    path = tmp_path / RULES_PATH
    rules = RulesFile(path, catalog())
    write(path, 'schema_version = 1\nglobal_default = "haiku"', 1)
    assert rules.read().problem is None
    write(path, 'schema_version = 1\nglobal_default = "haik"', 2)
    broken = rules.read()
    assert broken.policy.common.default == HAIKU
    assert broken.problem is not None
    assert [problem.path for problem in broken.problem.problems] == ["$.global_default"]
    assert rules.read() is broken
    write(path, "#" * 1_000_001, 3)
    assert "larger than" in str(rules.read().problem)
    write(path, 'schema_version = 1\nglobal_default = "opus"', 4)
    assert rules.read().policy.common.default == OPUS


def test_directory_in_place_of_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / RULES_PATH).mkdir(parents=True)
    assert "cannot be read" in str(RulesFile(tmp_path / RULES_PATH, catalog()).read().problem)
