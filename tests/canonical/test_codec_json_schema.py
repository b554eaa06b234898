"""The published JSON Schema of messages agrees with the decoder."""

import json
from typing import Any, cast

import jsonschema_rs
import pytest
from hypothesis import given

from build import EVERY_BLOCK, EVERYTHING, assistant, user
from metis.canonical import Message, decode, encode, json_schema
from metis.canonical.errors import DecodeError
from strategies import Unknown, conversations, messages

SCHEMA = json_schema()
JUDGE = jsonschema_rs.validator_for(SCHEMA)


def accepts(data: bytes) -> bool:
    return JUDGE.is_valid(json.loads(data))


@pytest.mark.row("M-037")
def test_the_schema_is_a_schema() -> None:
    assert jsonschema_rs.meta.is_valid(SCHEMA)
    assert json.dumps(SCHEMA) == json.dumps(json_schema())
    assert "version 1" in SCHEMA["title"]
    assert b"sealed" not in json.dumps(SCHEMA).encode()


@given(messages(Unknown.FIELDS))
@pytest.mark.row("M-010", "M-276")
def test_the_schema_accepts_every_message_with_any_unknown_fields(message: Message) -> None:
    assert accepts(encode(message))


@given(conversations())
@pytest.mark.row("M-010")
def test_the_schema_accepts_every_conversation(conversation: list[Message]) -> None:
    assert all(accepts(encode(each)) for each in conversation)


def _leaves(value: Any, steps: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        items = list(cast("dict[Any, Any]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[Any]", value)))
    else:
        return [steps]
    return [steps, *(leaf for step, item in items for leaf in _leaves(item, (*steps, step)))]


SPOTS = [steps for steps in _leaves(json.loads(encode(EVERYTHING))) if steps]
OPEN = {"role", "status", "mode", "stop_reason", "type"}
"""Fields with unknown strings allowed; the schema lists the values of this version."""


REPLACEMENTS: list[Any] = [..., None, True, 7, 1.5, [], {}, [None], {"a": []}]
"""Values that replace another one; `...` removes it."""


def _mutated(steps: tuple[Any, ...], stranger: Any) -> Any:
    tree: Any = json.loads(encode(EVERYTHING))
    spot = tree
    for step in steps[:-1]:
        spot = spot[step]
    if stranger is ...:
        del spot[steps[-1]]
    else:
        spot[steps[-1]] = stranger
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("steps", SPOTS, ids=lambda steps: ".".join(map(str, steps)))
@pytest.mark.row("M-010")
def test_schema_and_decoder_agree_on_damaged_messages(steps: tuple[Any, ...]) -> None:
    for stranger in REPLACEMENTS:
        tree = _mutated(steps, stranger)
        try:
            decode(json.dumps(tree))
        except DecodeError:
            taken = False
        else:
            taken = True
        if steps[-1] in ("cost_usd", "reported_cost_usd") and stranger in (7, 1.5):
            continue  # readers are lenient with money that was written as a number
        assert JUDGE.is_valid(tree) is taken, stranger


@pytest.mark.parametrize("tag", EVERY_BLOCK)
@pytest.mark.row("M-019", "M-037")
def test_schema_discriminates_blocks_by_tag(tag: str) -> None:
    tree = json.loads(encode(user(EVERY_BLOCK[tag])))
    assert JUDGE.is_valid(tree)
    for other in set(EVERY_BLOCK) - {tag}:
        tree["content"][0]["type"] = other
        try:
            decode(json.dumps(tree))
        except DecodeError:
            assert not JUDGE.is_valid(tree)
        else:
            assert JUDGE.is_valid(tree)


@pytest.mark.row("M-032", "M-103")
def test_schema_types_of_versions_and_money() -> None:
    tree = json.loads(encode(assistant("a")))
    assert isinstance(tree["metadata"]["usage"]["cost_usd"], str)
    assert JUDGE.is_valid(tree)
    assert not JUDGE.is_valid(tree | {"schema_version": 0})
    assert not JUDGE.is_valid(tree | {"schema_version": "1"})
