"""JSON paths, nesting depth and line numbers of values in bytes."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.json_value import join_path, line_of, path_at, path_deeper_than
from strategies import json_texts


def paths(value: Any, path: str = "$") -> Iterator[tuple[str, int]]:
    yield path, 0
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from ((at, depth + 1) for at, depth in paths(item, join_path(path, key)))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from ((at, depth + 1) for at, depth in paths(item, join_path(path, index)))


def containers(value: Any) -> Iterator[tuple[str, int]]:
    """Yield objects and arrays with the number of enclosing ones."""
    if isinstance(value, dict):
        items = list(cast("dict[str | int, Any]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[Any]", value)))
    else:
        return
    yield "$", 0
    for step, item in items:
        inner = containers(item)
        yield from ((join_path("$", step) + at[1:], level + 1) for at, level in inner)


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        (["content", 0, "text"], "$.content[0].text"),
        (["a b"], '$["a b"]'),
        ([""], '$[""]'),
        (["é", '"', "\n", "0"], '$["é"]["\\""]["\\n"]["0"]'),
        (["_a1", "1a", "a.b", "a\n"], '$._a1["1a"]["a.b"]["a\\n"]'),
    ],
)
@pytest.mark.row("M-010")
def test_path_format(steps: list[str | int], path: str) -> None:
    found = "$"
    for step in steps:
        found = join_path(found, step)
    assert found == path


@given(json_texts())
@pytest.mark.row("M-010")
def test_path_of_every_value_is_found_from_its_bytes(data: bytes) -> None:
    expected = {path for path, _ in paths(json.loads(data))}
    assert {path_at(data, offset) for offset in range(len(data))} == expected


@given(json_texts(), st.integers(0, 4))
@pytest.mark.row("M-010")
def test_first_value_beyond_depth_limit_is_found(data: bytes, depth: int) -> None:
    tree = json.loads(data)
    too_deep = [path for path, level in containers(tree) if level >= depth]
    found = path_deeper_than(data, depth)
    if too_deep:
        assert found is not None
        assert found.startswith(too_deep[0])
    else:
        assert found is None


@given(st.binary(max_size=60), st.integers(0, 70), st.integers(0, 5))
@pytest.mark.row("M-010")
def test_any_bytes_have_paths(data: bytes, offset: int, depth: int) -> None:
    assert path_at(data, offset).startswith("$")
    deeper = path_deeper_than(data, depth)
    assert deeper is None or deeper.startswith("$")  # None if nothing is deeper
    assert 1 <= line_of(data, "$.a") <= data.count(b"\n") + 1


@pytest.mark.row("M-010")
def test_the_line_of_a_value_counts_from_one() -> None:
    data = b'{\n"a": [1,\n2,\n{"b c":\n3}],\n"ab": 4}'
    lines = {"$": 1, "$.a": 2, "$.a[0]": 2, "$.a[1]": 3, "$.a[2]": 4, '$.a[2]["b c"]': 5, "$.ab": 6}
    assert {path: line_of(data, path) for path in lines} == lines
    assert line_of(data, "$.a[2].missing") == 4
    assert line_of(data, "$.abc") == 1
    assert line_of(data, "$.missing") == 1
