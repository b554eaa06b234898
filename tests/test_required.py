"""The tests that section 11.1 of the base specification requires, under its names."""

import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, json
from msgspec.structs import replace

from build import assistant, image, system, text, thinking, tool, user
from cassette import FOLDER, NOWHERE, cassette
from golden import golden
from judges import complaints
from metis import adapters
from metis.canonical import (
    SCHEMA_VERSION,
    Message,
    Migrations,
    SideEffects,
    ToolDefinition,
    ToolSet,
    ToolUseBlock,
    decode,
    encode,
)
from metis.canonical.codec import RawFields
from metis.canonical.errors import CriticalLossError, ToolDefinitionError
from metis.catalog import price, price_table
from metis.wire.call import RequestContext
from scenario import play, scenarios
from test_laws import ADAPTERS, faults

CONTEXT = RequestContext(session_id="sess_42")
SCENARIOS = scenarios()


@pytest.mark.row("M-282")
@pytest.mark.parametrize("name", [name for name in SCENARIOS if "-call-" in name])
def test_round_trip_per_provider(name: str) -> None:
    """Canonical to wire, recorded cassette, wire to canonical: the bytes of the golden file."""
    with cassette(name):
        played = play(SCENARIOS[name], NOWHERE)
    assert golden(played) == (FOLDER / f"{name}.jsonl").read_bytes()


def anthropic_answer(number: int) -> dict[str, Any]:
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {"n": number}}
    thought = {"type": "thinking", "thinking": "hm", "signature": f"sig{number}"}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": [thought, {"type": "text", "text": f"turn {number}"}, call],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def openai_answer(number: int) -> dict[str, Any]:
    function = {"name": "f", "arguments": f'{{"n": {number}}}'}
    call = {"id": "call_0", "type": "function", "function": function}
    wire_message = {"role": "assistant", "content": f"turn {number}", "tool_calls": [call]}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": "gpt-5",
        "choices": [{"index": 0, "message": wire_message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


ANSWERS = {"anthropic": anthropic_answer, "openai": openai_answer}


@pytest.mark.parametrize("third", adapters.names())
def test_cross_provider_continuity(third: str, tmp_path: Path) -> None:
    """Turns that alternate between providers are stored, loaded and continued on a third."""
    session: list[Message] = [system(text("be brief"))]
    for number in range(6):
        name = ("anthropic", "openai")[number % 2]
        session.append(user(text(f"question {number}")))
        adapters.get(name).to_wire(session)
        answer = adapters.get(name).from_wire_response(ANSWERS[name](number), CONTEXT)
        calls = [block for block in answer.content if isinstance(block, ToolUseBlock)]
        session += [answer, *(tool(text(f"result {number}"), answers=call.id) for call in calls)]

    kept = tmp_path / "session.jsonl"
    kept.write_bytes(b"\n".join(encode(message) for message in session))
    read = [decode(line) for line in kept.read_bytes().split(b"\n")]
    assert read == session
    assert [message.digest() for message in read] == [message.digest() for message in session]

    wire = adapters.get(third).to_wire([*read, user(text("and now?"))])
    body = json.decode(wire.body)
    if third in ADAPTERS:
        assert complaints(third, body) == []
        assert faults(third, body) == []
    ids = [
        block.id for message in read for block in message.content if isinstance(block, ToolUseBlock)
    ]
    assert len(set(ids)) == 6
    assert all(f"result {number}" in wire.body.decode() for number in range(6))


def test_capability_mismatch() -> None:
    """A history with a critical part is refused, with the reason, by a model that lacks support."""
    picture = user(replace(image(), critical=True))
    adapters.get("anthropic").to_wire([picture])
    with pytest.raises(CriticalLossError) as caught:
        adapters.get("openai-compatible").to_wire([picture])
    assert caught.value.path == "$.content[0]"
    assert "image is not supported by the model" in str(caught.value)


@pytest.mark.row("M-285")
def test_schema_migration() -> None:
    """A version 1 message is read under version 2: the step runs, and the result is correct."""

    def step(row: RawFields) -> RawFields:
        row["session_id"] = Raw(b'"renamed"')
        return row

    old = user(text("kept"))
    new = decode(encode(old), migrations=Migrations(current=2, steps={1: step}))
    assert (old.schema_version, new.schema_version) == (SCHEMA_VERSION, 2)
    assert (new.session_id, new.content) == ("renamed", old.content)


@pytest.mark.row("M-286")
@pytest.mark.parametrize(
    "construct",
    [
        {"$ref": "#/a"},
        {"oneOf": [{"type": "string"}]},
        {"anyOf": [{"type": "string"}]},
        {"allOf": [{"type": "string"}]},
        {"not": {"type": "string"}},
        {"if": {}, "then": {}},
        {"patternProperties": {"^a": {}}},
        {"additionalProperties": {"type": "string"}},
    ],
    ids=lambda construct: next(iter(construct)),
)
def test_tool_schema_validation(construct: dict[str, Any]) -> None:
    """A schema with a forbidden construct is refused at registration."""
    schema = {"type": "object", "properties": {"a": {"type": "object", **construct}}}
    wrong = ToolDefinition(
        name="f", description="", input_schema=schema, side_effects=SideEffects.READ
    )
    with pytest.raises(ToolDefinitionError, match=r"properties\.a"):
        ToolSet([wrong])


@pytest.mark.row("M-287")
def test_lossy_projection_logging(caplog: pytest.LogCaptureFixture) -> None:
    """Thinking that is dropped for OpenAI gives one WARN record with five facts.

    There is no bus event: projection and adapters are below the events package and cannot import
    it.
    """
    thought = assistant(thinking("hm", signature="c2ln", issuer="anthropic"), text("hi"))
    with caplog.at_level(logging.DEBUG, logger="metis.adapters"):
        adapters.get("openai").to_wire([user(text("go")), thought])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    facts = ("session_id", "message_id", "block_type", "adapter")
    assert [getattr(record, name) for name in facts] == [
        thought.session_id,
        thought.id,
        "thinking",
        "openai",
    ]
    assert getattr(record, "reason", "") != ""


@pytest.mark.row("M-288")
def test_cost_computation() -> None:
    """Given usage and prices, the cost is exact."""
    first = anthropic_answer(1)
    first["usage"] = {
        "input_tokens": 1200,
        "cache_read_input_tokens": 8000,
        "cache_creation_input_tokens": 2000,
        "output_tokens": 350,
    }
    second = openai_answer(2)
    second["usage"] = {"prompt_tokens": 5000, "completion_tokens": 800, "total_tokens": 5800}
    answers = [
        adapters.get("anthropic").from_wire_response(first, CONTEXT),
        adapters.get("openai").from_wire_response(second, CONTEXT),
    ]
    table = price_table("2026-05-08")
    costs: list[Decimal] = []
    for answer in answers:
        about = answer.metadata
        assert about.usage is not None
        assert about.model is not None
        costs.append(price(about.usage, about.model, table=table).cost_usd)
    # 1200 * 3 + 8000 * 0.30 + 2000 * 3.75 + 350 * 15, and 5000 * 2.50 + 800 * 10, in millionths
    assert costs == [Decimal("0.01875"), Decimal("0.0205")]
    assert sum(costs) == Decimal("0.03925")
