import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.streaming import NdjsonParser


def lines_of(*chunks: bytes) -> list[bytes]:
    parser = NdjsonParser()
    return [line for chunk in chunks for line in parser.feed(chunk)] + parser.finish()


@pytest.mark.row("T121")
@pytest.mark.parametrize(
    "stream", [b'{"a":1}\n{"b":2}\n', b'{"a":1}\r\n\r\n{"b":2}', b'\n{"a":1}\n\n{"b":2}\n\n']
)
def test_lines_come_whole_however_the_stream_is_cut(stream: bytes) -> None:
    wanted = [b'{"a":1}', b'{"b":2}']
    for at in range(len(stream) + 1):
        assert lines_of(stream[:at], stream[at:]) == wanted
    assert lines_of(*(bytes([byte]) for byte in stream)) == wanted


@given(st.binary(), st.integers(0, 40))
def test_any_cut_gives_the_same_lines(stream: bytes, at: int) -> None:
    assert lines_of(stream[:at], stream[at:]) == lines_of(stream)
