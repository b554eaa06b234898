"""The router: slots, rules, capabilities, outages, aliases and errors."""

import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical import SideEffects
from metis.canonical.errors import (
    AmbiguousModelError,
    InvalidValueError,
    NoModelError,
    RefusedChoiceError,
    UnknownModelError,
)
from metis.canonical.metadata import ChainPolicy, RoutingMode
from metis.catalog.models import Catalog, read_catalog
from metis.routing import (
    AddressedPrompt,
    Neighbour,
    Outage,
    Policy,
    Reason,
    Router,
    Rule,
    RulesFile,
    Scope,
    Tier,
    TurnFacts,
    Verdict,
    parse_override,
    read_policy,
)
from metis.routing.predicates import read_conditions
from metis.routing.router import SLOTS

NOON = datetime(2026, 5, 8, 12, 0, tzinfo=UTC)
ALL = ["images", "tools", "system_prompt", "structured_output"]
NAMES = ("one", "two", "three", "four", "five", "six", "seven")


def models(lacking: Mapping[str, str] | None = None) -> Catalog:
    lacking = lacking or {}
    rows = {
        f"p{number}:{name}": {
            "max_context_tokens": 1000,
            "max_output_tokens": 100,
            "supports": [flag for flag in ALL if flag != lacking.get(name)],
            "accepted_image_media_types": ["image/png"],
        }
        for number, name in enumerate(NAMES, 1)
    }
    aliases = dict(zip(NAMES, rows, strict=True))
    return read_catalog({"models": rows, "aliases": aliases})


CATALOG = models()
IDS = {name: CATALOG.resolve(name) for name in NAMES}
PROVIDERS = frozenset(f"p{number}" for number in range(1, 8))
GIVE: dict[ChainPolicy, dict[str, Any]] = {
    ChainPolicy.PER_MESSAGE_OVERRIDE: {"override": "one"},
    ChainPolicy.MANUAL_STICKY: {"sticky": "two"},
    ChainPolicy.RULE: {"message": "by rule"},
    ChainPolicy.PATTERN: {
        "neighbours": (
            Neighbour(
                model=IDS["four"],
                similarity=1.0,
                success=1.0,
                sample_size=9,
                cost_usd=Decimal("0.1"),
            ),
        )
    },
    ChainPolicy.DELEGATE_REQUEST: {"tier": Tier.DEEP},
    ChainPolicy.WORKSPACE_DEFAULT: {"workspace_path": "/w"},
    ChainPolicy.GLOBAL_DEFAULT: {},
}
WINNERS = dict(zip(SLOTS, IDS.values(), strict=True))


def rule(name: str, use: str, **when: Any) -> Rule:
    return Rule(name=name, when=read_conditions(when, "$", []), use=use)


POLICY = Policy(
    common=Scope(
        default=IDS["seven"],
        tiers=dict.fromkeys(Tier, IDS["five"]),
        rules=(rule("ruled", IDS["three"], message_matches="rule"),),
    ),
    workspaces={"/w": Scope(default=IDS["six"])},
)


def router(
    policy: Policy | RulesFile = POLICY,
    *,
    known: Catalog = CATALOG,
    configured: frozenset[str] = PROVIDERS,
    outage: Callable[[str], Outage | None] = lambda _: None,
) -> Router:
    return Router(known, configured=configured, rules=policy, outage=outage)


def facts(*slots: ChainPolicy, **given: Any) -> TurnFacts:
    fields: dict[str, Any] = {"now": NOON}
    for slot in slots:
        fields |= GIVE[slot]
    return TurnFacts(**fields | given)


@pytest.mark.row("M-092", "M-093", "M-094", "M-095", "M-096", "M-097", "M-098", "M-085")
@pytest.mark.parametrize("pair", list(itertools.combinations(SLOTS, 2)), ids="-".join)
def test_earlier_slot_wins(pair: tuple[ChainPolicy, ChainPolicy]) -> None:
    decision = router().decide(facts(*pair))
    assert decision.chosen == WINNERS[pair[0]]
    assert decision.chain[-1].policy is pair[0]
    assert decision.chain[-1].verdict is Verdict.CHOSE
    assert [entry.policy for entry in decision.chain] == list(SLOTS)[: len(decision.chain)]
    assert all(entry.verdict is Verdict.NOT_APPLICABLE for entry in decision.chain[:-1])
    assert decision.winner_index == len(decision.chain) - 1
    assert decision.record is not None
    assert decision.record.mode is pair[0].mode
    assert (decision.record.rule_name is not None) == (decision.record.mode is RoutingMode.RULE)
    assert (decision.record.confidence is not None) == (decision.record.mode is RoutingMode.PATTERN)


@pytest.mark.row("M-079", "M-098", "M-309")
def test_both_defaults_give_equal_record_and_different_chain() -> None:
    default = Scope(default=IDS["one"])
    by_workspace = router(Policy(workspaces={"/w": default})).decide(facts(workspace_path="/w"))
    by_config = router(Policy(common=default)).decide(facts())
    assert by_workspace.record == by_config.record
    assert by_workspace.chain != by_config.chain
    assert len(by_config.chain) == 7


def test_first_matching_rule_wins_and_workspace_is_first() -> None:
    policy = Policy(
        common=Scope(rules=(rule("a", IDS["one"], has_images=False),)),
        workspaces={
            "/w": Scope(
                rules=(
                    rule("no", IDS["two"], has_images=True),
                    rule("b", IDS["three"], has_images=False),
                    rule("c", IDS["four"], has_images=False),
                )
            )
        },
    )
    decision = router(policy).decide(facts(workspace_path="/w"))
    assert decision.chosen == IDS["three"]
    assert decision.record is not None
    assert (decision.record.mode, decision.record.rule_name) == (RoutingMode.RULE, "b")
    assert router(policy).decide(facts()).chosen == IDS["one"]


NEEDS: list[tuple[str, dict[str, Any], Reason]] = [
    ("images", {"has_images": True}, Reason.NO_VISION_SUPPORT),
    ("tools", {"needs_tools": True}, Reason.NO_TOOL_SUPPORT),
    ("system_prompt", {"needs_system_prompt": True}, Reason.NO_SYSTEM_PROMPT_SUPPORT),
    ("structured_output", {"needs_structured_output": True}, Reason.NO_STRUCTURED_OUTPUT_SUPPORT),
]


@pytest.mark.row("M-205", "M-206", "M-207", "M-208", "M-217", "M-221")
@pytest.mark.parametrize(("flag", "need", "reason"), NEEDS)
def test_model_without_required_capability_is_skipped(
    flag: str, need: dict[str, Any], reason: Reason
) -> None:
    known = models({"three": flag})
    decision = router(known=known).decide(facts(ChainPolicy.RULE, **need))
    rejected = decision.chain[2]
    assert (rejected.verdict, rejected.reason) == (Verdict.REJECTED, reason)
    assert rejected.validation_failure is not None
    assert rejected.candidate_model == IDS["three"]
    assert decision.chosen == IDS["seven"]
    assert decision.record is not None
    assert decision.record.alternatives_considered == (IDS["three"],)
    assert reason in decision.record.reason
    idle = router(known=known).decide(facts(ChainPolicy.RULE))
    assert idle.chosen == IDS["three"], "what the turn does not need is not asked"


@pytest.mark.row("M-214", "M-217")
def test_turn_over_context_window_goes_to_another_model() -> None:
    known = models()
    turn = facts(ChainPolicy.RULE, estimated_input_tokens=900, reserved_output_tokens=100)
    assert router(known=known).decide(turn).chosen == IDS["three"]
    decision = router(known=known).decide(facts(estimated_input_tokens=1001))
    assert decision.chosen is None
    assert decision.chain[-1].reason == Reason.EXCEEDS_CONTEXT_WINDOW


@pytest.mark.row("M-119")
def test_policy_excludes_model_for_side_effect_class() -> None:
    text = 'schema_version = 1\nglobal_default = "two"\nexclude = { execute = ["one"] }\n'
    text += 'workspaces = { "/w" = { default = "one" } }'
    policy = read_policy(text.encode(), CATALOG)
    reading = facts(workspace_path="/w", side_effects={SideEffects.READ})
    running = facts(workspace_path="/w", side_effects={SideEffects.READ, SideEffects.EXECUTE})
    assert router(policy).decide(reading).chosen == IDS["one"]
    decision = router(policy).decide(running)
    assert decision.chosen == IDS["two"]
    assert decision.chain[5].reason == Reason.SIDE_EFFECTS_EXCLUDED
    with pytest.raises(RefusedChoiceError, match="execute"):
        router(policy).decide(facts(sticky="one", side_effects={SideEffects.EXECUTE})).require()


def test_provider_without_key_is_skipped() -> None:
    decision = router(configured=PROVIDERS - {"p3"}).decide(facts(ChainPolicy.RULE))
    assert decision.chain[2].reason == Reason.NOT_CONFIGURED
    assert decision.chosen == IDS["seven"]


def test_next_rule_applies_when_provider_is_down() -> None:
    policy = Policy(
        common=Scope(
            default=IDS["seven"],
            rules=(
                rule("a", IDS["one"], has_images=False),
                rule("b", IDS["two"], has_images=False),
            ),
        )
    )
    down = Outage(provider="p1", scope="provider", models=(), reason="gone", began_at=NOON)
    choose = router(policy, outage=lambda model: down if model == IDS["one"] else None)
    decision = choose.decide(facts())
    assert decision.chosen == IDS["two"]
    assert [entry.rule_name for entry in decision.chain[2:]] == ["a", "b"]
    assert decision.record is not None
    assert decision.record.rule_name == "b"
    assert "provider_unavailable" in decision.record.reason


@pytest.mark.parametrize("field", ["override", "sticky"])
@pytest.mark.row("M-217")
def test_explicitly_chosen_model_is_refused_not_replaced(field: str) -> None:
    decision = router(known=models({"one": "images"})).decide(
        facts(has_images=True, **{field: "one"})
    )
    assert decision.chosen is decision.record is None
    assert decision.winner_index == -1
    assert decision.chain[-1].verdict is Verdict.REJECTED
    with pytest.raises(RefusedChoiceError, match="does not support images") as caught:
        decision.require()
    assert (caught.value.model, caught.value.reason) == (IDS["one"], "no_vision_support")


def test_no_model_error_lists_attempts() -> None:
    decision = router(configured=frozenset({"other"})).decide(
        facts(ChainPolicy.RULE, ChainPolicy.WORKSPACE_DEFAULT)
    )
    assert len(decision.chain) == 7
    with pytest.raises(NoModelError) as caught:
        decision.require()
    assert [model for model, _ in caught.value.tried] == [IDS["three"], IDS["six"], IDS["seven"]]
    assert caught.value.providers == ("other",)
    with pytest.raises(NoModelError, match="no slot names a model"):
        router(Policy()).decide(facts()).require()


def test_model_names_are_resolved_by_catalogue() -> None:
    assert router().decide(facts(override="p4:four")).chosen == IDS["four"]
    assert router().decide(facts(sticky="FOUR")).chosen == IDS["four"]
    with pytest.raises(UnknownModelError):
        router().decide(facts(override="nobody"))
    twice = read_catalog(
        {
            "models": {
                f"{provider}:x-1": {"max_context_tokens": 9, "max_output_tokens": 9}
                for provider in ("p1", "p2")
            }
        }
    )
    with pytest.raises(AmbiguousModelError):
        router(known=twice).decide(facts(override="x-1"))


def test_swap_can_be_checked_in_advance() -> None:
    choose = router(known=models({"one": "images"}))
    failure = choose.check("one", facts(has_images=True))
    assert failure is not None
    assert failure.reason is Reason.NO_VISION_SUPPORT
    assert choose.check("two", facts(has_images=True)) is None


@pytest.mark.parametrize(
    ("text", "addressed"),
    [
        ("@haiku fix it", AddressedPrompt("fix it", "haiku")),
        ("@openai:gpt-5\n  fix\n it", AddressedPrompt("fix\n it", "openai:gpt-5")),
        (r"\@haiku is a name", AddressedPrompt("@haiku is a name")),
        (r"\\@haiku", AddressedPrompt(r"\\@haiku")),
        ("mail a@b now", AddressedPrompt("mail a@b now")),
        (" @haiku hi", AddressedPrompt(" @haiku hi")),
        ("@ home", AddressedPrompt("@ home")),
        ("", AddressedPrompt("")),
    ],
)
def test_alias_at_start_of_message_is_removed(text: str, addressed: AddressedPrompt) -> None:
    assert parse_override(text) == addressed


@pytest.mark.parametrize("text", ["@haiku", "@haiku  \n"])
def test_an_alias_needs_a_message(text: str) -> None:
    with pytest.raises(InvalidValueError, match="no message"):
        parse_override(text)


def test_worker_gets_model_of_its_tier_or_default() -> None:
    turn = facts(ChainPolicy.DELEGATE_REQUEST)
    assert router().decide(turn).record == router().decide(turn).record
    decision = router().decide(turn)
    assert decision.record is not None
    assert (decision.chosen, decision.record.mode) == (IDS["five"], RoutingMode.DELEGATE)
    fallen = router(configured=PROVIDERS - {"p5"}).decide(turn)
    assert fallen.chosen == IDS["seven"]
    none_set = router(Policy(common=Scope(default=IDS["one"]))).decide(turn)
    assert none_set.chain[4].reason == "no model is set for tier deep"
    ruled = router().decide(facts(ChainPolicy.RULE, ChainPolicy.DELEGATE_REQUEST))
    assert ruled.chosen == IDS["three"], "rules outrank a planner's request"


def test_budget_rule_selects_cheaper_model() -> None:
    policy = Policy(
        common=Scope(
            default=IDS["one"], rules=(rule("poor", IDS["two"], cost_today_exceeds_usd=1),)
        )
    )
    assert router(policy).decide(facts(cost_today_usd=Decimal(1))).chosen == IDS["one"]
    assert router(policy).decide(facts(cost_today_usd=Decimal("1.01"))).chosen == IDS["two"]


def test_broken_rules_file_is_reported_with_decision(tmp_path: Path) -> None:
    path = tmp_path / "routing.toml"
    path.write_text('schema_version = 1\nglobal_default = "one"')
    choose = router(RulesFile(path, CATALOG))
    first = choose.decide(facts())
    assert (first.chosen, first.policy_problem) == (IDS["one"], None)
    path.write_text("schema_version = 1\nglobal_default = 'nobody at all'")
    second = choose.decide(facts())
    assert second.chosen == IDS["one"]
    assert second.policy_problem is not None
    assert second.policy_version == first.policy_version


@given(
    st.sets(st.sampled_from(list(SLOTS))),
    st.sets(st.sampled_from(sorted(PROVIDERS))),
    st.fixed_dictionaries(
        {"needs_tools": st.booleans(), "estimated_input_tokens": st.integers(0, 1200)}
    ),
)
def test_decision_is_deterministic(
    slots: set[ChainPolicy], configured: set[str], needs: dict[str, Any]
) -> None:
    turn = facts(*sorted(slots), **needs)
    first = router(configured=frozenset(configured)).decide(turn)
    assert router(configured=frozenset(configured)).decide(turn) == first
    chose = [entry for entry in first.chain if entry.verdict is Verdict.CHOSE]
    chosen = [] if first.chosen is None else [first.chosen]
    assert [entry.candidate_model for entry in chose] == chosen
