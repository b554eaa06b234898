import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.streaming import JsonArrayParser

VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a"\\{}[],é\n'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
ELEMENTS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=5)


@given(ELEMENTS, st.integers(1, 9), st.sampled_from([None, 2]))
def test_elements_come_out_wherever_the_bytes_are_cut(
    elements: list[object], size: int, indent: int | None
) -> None:
    data = json.dumps(elements, indent=indent, ensure_ascii=False).encode()
    parser = JsonArrayParser()
    found: list[object] = []
    for at in range(0, len(data), size):
        found += [json.loads(element) for element in parser.feed(data[at : at + size])]
    assert found == elements
    assert parser.finish() == b""


def test_an_element_comes_out_as_soon_as_it_is_whole() -> None:
    parser = JsonArrayParser()
    assert parser.feed(b'[{"a": "}') == []
    assert parser.feed(b'"}') == [b'{"a": "}"}']
    assert parser.feed(b',\r\n{"b":') == []
    assert parser.finish() == b'{"b":'


@pytest.mark.parametrize("data", [b"", b"]", b"[", b"[]", b" [ ] "])
def test_nothing_is_no_element(data: bytes) -> None:
    parser = JsonArrayParser()
    assert parser.feed(data) == []
    assert parser.finish() in (b"", b"[", b"[ ")
