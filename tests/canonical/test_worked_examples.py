"""The worked examples of the base specification."""

from decimal import Decimal

import pytest

from metis.canonical import (
    ImageBlock,
    Role,
    RoutingMode,
    ToolResultBlock,
    ToolUseBlock,
    decode,
    encode,
    validate_session,
)
from metis.canonical.errors import SwapRefusedError
from metis.canonical.ids import is_ulid
from worked_examples import worked_examples


@pytest.mark.row("M-238", "M-189", "M-190")
def test_simple_exchange_has_cost_of_specification() -> None:
    question, answer = worked_examples()[0].messages
    usage, routing = answer.metadata.usage, answer.metadata.routing
    assert usage is not None
    assert routing is not None
    assert question.role is Role.USER
    assert (usage.input_tokens, usage.output_tokens, usage.latency_ms) == (8, 42, 820)
    assert (usage.cost_usd, usage.pricing_version) == (Decimal("0.000654"), "2026-05-08")
    assert (routing.mode, routing.reason) == (RoutingMode.DEFAULT, "workspace default")


@pytest.mark.row("M-239", "M-044", "M-070")
def test_the_tool_round_trip_is_linked_by_one_id() -> None:
    messages = worked_examples()[1].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    call, result = messages[1].content[1], messages[2].content[0]
    assert isinstance(call, ToolUseBlock)
    assert isinstance(result, ToolResultBlock)
    assert call.id == result.tool_use_id == messages[2].metadata.parent_tool_use_id
    assert messages[1].metadata.usage != messages[3].metadata.usage


@pytest.mark.row("M-240")
def test_swap_keeps_structure_with_new_id() -> None:
    before, after = worked_examples()[1].messages, worked_examples()[2].messages
    call = after[1].content[0]
    assert isinstance(call, ToolUseBlock)
    assert call.id not in {b.id for m in before for b in m.content if isinstance(b, ToolUseBlock)}
    assert (after[1].metadata.model, after[1].metadata.provider) == ("openai:gpt-5", "openai")
    routing = after[1].metadata.routing
    assert routing is not None
    assert (routing.mode, routing.reason) == (RoutingMode.MANUAL, "user swap via /model command")
    assert validate_session([*before, *after], "strict") == []


@pytest.mark.row("M-026", "M-040", "M-238", "M-239", "M-240")
@pytest.mark.parametrize("number", range(4))
def test_every_example_is_valid(number: int) -> None:
    messages = worked_examples()[number].messages
    assert validate_session(messages, "strict") == []
    assert validate_session(messages, "full") == []
    assert all(is_ulid(message.id) for message in messages)
    calls = [block for m in messages for block in m.content if isinstance(block, ToolUseBlock)]
    assert all(is_ulid(call.id.removeprefix("tu_")) for call in calls)


@pytest.mark.row("M-238", "M-239", "M-240", "M-247")
def test_every_example_round_trips_and_image_can_refuse_swap() -> None:
    examples = worked_examples()
    for example in examples:
        assert [decode(encode(message)) for message in example.messages] == example.messages
    has_image = any(isinstance(b, ImageBlock) for m in examples[3].messages for b in m.content)
    why = "session contains images that this model can't process"
    refused = SwapRefusedError("Haiku-text-only", capability="vision", why=why, active=None)
    assert has_image
    assert str(refused) == f"Cannot swap to Haiku-text-only: {why}. Active model unchanged."
