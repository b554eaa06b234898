"""Partial tool arguments for display, and concatenated argument objects."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.streaming import Accumulator, TextDelta, ToolUseInputDelta, ToolUseStart
from metis.streaming.arguments import (
    parse_arguments,
    partial_arguments,
    split_joined_objects,
)
from strategies import json_objects


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("", {}),
        ("[1", {}),
        ("{", {}),
        ('{"pa', {}),
        ('{"path"', {}),
        ('{"path":', {}),
        ('{"path": "notes.t', {"path": "notes.t"}),
        ('{"path": "a\\', {"path": "a"}),
        ('{"path": "a\\\\', {"path": "a\\"}),
        ('{"path": "a\\u00e', {"path": "a"}),
        ('{"path": "[{", "n": 12', {"path": "[{", "n": 12}),
        ('{"deep": [{"a": 1}, {"b": tr', {"deep": [{"a": 1}, {}]}),
        ('{"a": 1}', {"a": 1}),
        ("nonsense", {}),
    ],
)
@pytest.mark.row("M-294")
def test_partial_arguments_are_shown(text: str, view: dict[str, Any]) -> None:
    assert partial_arguments(text) == view


@pytest.mark.row("M-294", "T123")
@given(json_objects(), st.data())
def test_any_prefix_has_a_view_and_the_whole_is_the_input(
    value: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(text)))
    assert type(partial_arguments(text[:cut])) is dict
    assert partial_arguments(text) == parse_arguments(text)[0]


@pytest.mark.row("M-294")
def test_view_never_becomes_the_input() -> None:
    """The raw text is preserved; the view for a screen never becomes an input."""
    total = Accumulator()
    total.add(TextDelta("m", 0, "hi"))
    total.add(ToolUseStart("m", 1, "tu_1", "write"))
    total.add(ToolUseInputDelta("m", 1, "tu_1", '{"path": "a.t'))
    assert total.partial_input(1) == {"path": "a.t"}
    assert (total.partial_input(0), total.partial_input(9)) == ({}, {})
    call = total.content[1]
    assert getattr(call, "input", None) == {}
    assert getattr(call, "invalid", None) is not None


@pytest.mark.row("T35")
def test_concatenated_objects_are_split() -> None:
    assert split_joined_objects(' {"a": 1}{"b": 2}\n {} ') == [{"a": 1}, {"b": 2}, {}]
    assert split_joined_objects('{"a": 1}') == []
    assert split_joined_objects('{"a": 1} x') == []
    assert split_joined_objects("{}{}") == []
