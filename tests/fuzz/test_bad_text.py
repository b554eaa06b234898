"""Bytes that are not UTF-8, and halves of surrogate pairs, in every text of every input.

Each string of a stream, response, request, import and message file gets them in turn: the result is
a value or a typed error, and what is stored of it can be written again.
"""

import logging

import pytest

from fuzz.mutation import Seed
from fuzz.run import fault_of
from fuzz.targets import TARGETS

BAD = {
    "byte": b"\xff",
    "half a character": b"\xc3",
    "surrogate in UTF-8": b"\xed\xa0\x80",
    "escaped surrogate": b"\\ud800",
    "escaped low surrogate": b"\\udc00x",
    "NUL": b"\\u0000",
}
READERS = [
    name
    for name in TARGETS
    if not name.startswith("export")
    and (
        name.endswith(("-request", "-response", "-stream"))
        or name.startswith(("import", "message"))
    )
]
MAX_STRINGS = 12


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", READERS)
def test_bad_text_in_every_string(name: str, bad: str) -> None:
    target, count = TARGETS[name], 0
    # The last seed is the longest, with the most keys.
    for seed in map(Seed, target.seeds()[-1:]):
        texts = [span for span in (*seed.values, *seed.keys) if seed.data[span.start] == ord('"')]
        step = max(1, len(texts) // MAX_STRINGS)
        for start, end in texts[::step]:
            place = (start + end) // 2 if end - start > 2 else start + 1
            data = seed.data[:place] + BAD[bad] + seed.data[place:]
            fault = fault_of(target.run, target.pack(data) if target.pack else data)
            assert fault is None or fault.startswith("slow"), (fault, data[:2000])
            count += 1
    assert count
