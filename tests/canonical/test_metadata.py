"""Message metadata: enums, usage, money, routing and free fields."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build import FULL_METADATA, assistant, provenance, routing, usage, user
from metis.canonical import (
    ChainPolicy,
    MessageMetadata,
    MessageStatus,
    MetisError,
    Outcome,
    OutcomeStatus,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    Usage,
    decode,
    encode,
)
from metis.canonical.errors import EncodeError, InvalidValueError
from metis.canonical.metadata import MODE_OF_POLICY, exact_usd
from metis.canonical.value import OpenEnum, fields_of
from strategies import json_objects, money

STOP_REASONS = (
    "end_turn stop_sequence max_tokens tool_use refusal "
    "content_filter pause cancelled error unknown"
)


@pytest.mark.row("M-075", "M-076", "M-077", "M-078", "M-080")
@pytest.mark.row("M-086", "M-087", "M-088", "M-089", "M-090", "M-091")
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (MessageStatus, "complete partial cancelled error"),
        (RoutingMode, "override manual rule pattern delegate default"),
        (OutcomeStatus, "success error aborted"),
        (StopReason, STOP_REASONS),
    ],
)
def test_enum_strings(kind: type[OpenEnum], values: str) -> None:
    assert [(member.name, member.value) for member in kind] == [
        (value.upper(), value) for value in values.split()
    ]
    assert [str(member) for member in kind] == values.split()
    assert all(member.is_known for member in kind)


@pytest.mark.row("M-092", "M-093", "M-094", "M-095", "M-096", "M-097", "M-098")
def test_routing_modes_of_the_seven_slots() -> None:
    assert {policy.name: policy.mode.name for policy in ChainPolicy} == {
        "PER_MESSAGE_OVERRIDE": "OVERRIDE",
        "MANUAL_STICKY": "MANUAL",
        "RULE": "RULE",
        "PATTERN": "PATTERN",
        "DELEGATE_REQUEST": "DELEGATE",
        "WORKSPACE_DEFAULT": "DEFAULT",
        "GLOBAL_DEFAULT": "DEFAULT",
    }
    assert set(MODE_OF_POLICY) == set(ChainPolicy)
    assert set(MODE_OF_POLICY.values()) == set(RoutingMode)


@pytest.mark.row("M-028")
def test_unknown_enum_value_is_accepted() -> None:
    strange = StopReason("bored")
    assert strange == "bored" == StopReason("bored")
    assert hash(strange) == hash(StopReason("bored"))
    assert not strange.is_known
    assert "bored" not in list(StopReason)
    with pytest.raises(ValueError, match="5"):
        StopReason(5)


@pytest.mark.row("M-080")
def test_a_routing_record_has_only_the_six_fields() -> None:
    assert {field.name for field in fields_of(RoutingDecisionRecord)} == {
        "mode",
        "chosen_model",
        "reason",
        "rule_name",
        "confidence",
        "alternatives_considered",
    }


@pytest.mark.row("M-066", "M-067", "M-069", "M-070", "M-071", "M-072")
def test_metadata_has_base_spec_fields_and_all_are_optional() -> None:
    fields = {field.name: field for field in fields_of(MessageMetadata)}
    null = [
        "model",
        "provider",
        "routing",
        "usage",
        "parent_tool_use_id",
        "provider_raw",
        "user_id",
        "team_id",
    ]
    for name in null:
        assert fields[name].default is None
    assert fields["status"].default is MessageStatus.COMPLETE
    assert not any(field.required for field in fields.values())
    assert all(getattr(MessageMetadata(), name) is None for name in null)


@pytest.mark.row("M-099", "M-100", "M-101", "M-102", "M-103", "M-105")
def test_usage_has_base_spec_fields() -> None:
    fields = {field.name: field for field in fields_of(Usage)}
    required = {name for name, field in fields.items() if field.required}
    assert required == {
        "input_tokens",
        "output_tokens",
        "cost_usd",
        "pricing_version",
        "latency_ms",
    }
    assert fields["cached_input_tokens"].default == 0
    assert fields["cache_creation_input_tokens"].default == 0
    assert usage(cached_input_tokens=3, cache_creation_input_tokens=5).prompt_tokens == 16


@given(money)
@pytest.mark.row("M-103")
def test_money_round_trips_exactly(amount: Decimal) -> None:
    again = decode(encode(assistant("a", metadata=provenance(usage=usage(cost_usd=amount)))))
    assert again.metadata.usage is not None
    assert again.metadata.usage.cost_usd.as_tuple() == amount.as_tuple()


@pytest.mark.parametrize("name", ["cost_usd", "reported_cost_usd"])
@pytest.mark.parametrize(
    "amount",
    [0.1, float("nan"), Decimal("NaN"), Decimal("Infinity"), "sNaN", "a", "", Decimal("-Inf")],
)
@pytest.mark.row("M-103")
def test_money_is_a_finite_decimal_and_never_a_float(name: str, amount: object) -> None:
    with pytest.raises(InvalidValueError) as caught:
        usage(**{name: amount})
    assert caught.value.path == f"$.{name}"


@pytest.mark.parametrize("amount", ["0.10", 3, Decimal("0.10"), "-1", "1E-7"])
@pytest.mark.row("M-103")
def test_money_may_be_given_as_text_or_whole_dollars(amount: Any) -> None:
    made = usage(cost_usd=amount).cost_usd
    assert type(made) is Decimal
    assert str(made) == str(amount)
    assert exact_usd(amount) == made


@given(json_objects())
@pytest.mark.row("M-072")
def test_any_json_object_round_trips_in_free_fields(value: dict[str, Any]) -> None:
    metadata = MessageMetadata(provider_raw=value, external=value, options=value)
    again = decode(encode(user("a", metadata=metadata))).metadata
    assert again == metadata
    assert again.provider_raw == value


@pytest.mark.parametrize("name", ["external", "options", "provider_raw"])
@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1: 2}, {"a": {1}}])
@pytest.mark.row("M-072")
def test_free_field_refuses_non_json_values(name: str, value: object) -> None:
    with pytest.raises(MetisError) as caught:
        encode(user("a", metadata=provenance(**{name: {"k": value}})))
    assert isinstance(caught.value, InvalidValueError | EncodeError)
    assert f"{name}.k" in caught.value.path


@pytest.mark.parametrize("name", ["ui", "value", "side_effects"])
@pytest.mark.row("M-072")
def test_outcome_refuses_non_json_values(name: str) -> None:
    given: dict[str, Any] = {name: (float("nan"),)}
    with pytest.raises(InvalidValueError) as caught:
        Outcome(status=OutcomeStatus.SUCCESS, **given)
    assert caught.value.path == f"$.{name}[0]"


@pytest.mark.row("M-010")
def test_absent_and_null_outcome_values_differ() -> None:
    absent = Outcome(status=OutcomeStatus.SUCCESS)
    null = Outcome(status=OutcomeStatus.SUCCESS, value=None, ui=None)
    assert absent != null
    for outcome in (absent, null):
        again = decode(encode(user("a", metadata=MessageMetadata(outcome=outcome))))
        assert again.metadata.outcome == outcome


@pytest.mark.row("M-085")
def test_lists_become_tuples_and_strings_become_members() -> None:
    made = routing(alternatives_considered=["a:b"], mode="rule")
    assert made.alternatives_considered == ("a:b",)
    assert made.mode is RoutingMode.RULE
    about = provenance(status="error", stop_reason="error", parents=["a"])
    assert about.status is MessageStatus.ERROR
    assert about.stop_reason is StopReason.ERROR
    assert about.parents == ("a",)


@pytest.mark.parametrize("confidence", [float("nan"), float("inf")])
@pytest.mark.row("M-084")
def test_a_confidence_is_a_number(confidence: float) -> None:
    with pytest.raises(InvalidValueError) as caught:
        routing(confidence=confidence)
    assert caught.value.path == "$.confidence"


@pytest.mark.row("M-099")
@given(st.integers(-(2**63), 2**63 - 1))
def test_counts_are_whole_numbers_of_64_bits(count: int) -> None:
    made = user("a", metadata=MessageMetadata(usage=usage(input_tokens=count)))
    assert decode(encode(made)) == made


@pytest.mark.row("M-197")
def test_meaning_omits_only_raw_and_hints() -> None:
    bare = FULL_METADATA.comparable()
    assert bare == FULL_METADATA
    assert (bare.provider_raw, bare.hints) == (None, ())
    assert bare.usage == FULL_METADATA.usage
