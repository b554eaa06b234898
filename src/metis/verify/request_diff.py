"""Two request bodies side by side: lines of JSON, aligned where they are equal."""

import difflib
from collections.abc import Iterator
from typing import Any

import msgspec

from metis.wire.json_access import maybe_list, maybe_object

EQUAL, FIRST_ONLY, SECOND_ONLY, DIFFERENT = " ", "<", ">", "|"
"""The marks of a pair of lines: equal, only in the first or second body, or different."""

_WINDOW = 150
"""How many lines of each side are compared at a time."""
_MAX_STRING = 240
_SHORTENED_STRING = 40


def body_lines(body: Any) -> list[str]:
    """Return a request body as lines of indented JSON, with long strings shortened."""
    return msgspec.json.format(msgspec.json.encode(_shortened(body)), indent=2).decode().split("\n")


def _shortened(value: Any) -> Any:
    """Return a JSON value with long strings, such as images, shortened."""
    if isinstance(value, str) and len(value) > _MAX_STRING:
        return f"{value[:_SHORTENED_STRING]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in maybe_object(value).items()}
    if isinstance(value, list):
        return [_shortened(item) for item in maybe_list(value)]
    return value


def aligned_lines(first: list[str], second: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of lines with a mark: equal, different, or on one side only."""
    keys = [[_comparison_key(line) for line in lines] for lines in (first, second)]
    for kind, first_start, first_end, second_start, second_end in _opcodes(keys[0], keys[1]):
        first_lines, second_lines = first[first_start:first_end], second[second_start:second_end]
        shared = min(len(first_lines), len(second_lines))
        # Replaced runs may have different lengths: the remaining lines are on one side only.
        mark = EQUAL if kind == "equal" else DIFFERENT
        yield from ((mark, a, b) for a, b in zip(first_lines, second_lines, strict=False))
        yield from ((FIRST_ONLY, line, "") for line in first_lines[shared:])
        yield from ((SECOND_ONLY, "", line) for line in second_lines[shared:])


def _opcodes(first: list[str], second: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the opcodes of `difflib` for runs of lines, in linear time.

    With many equal lines, such as brackets, the time of the matcher is the product of both lengths.
    Therefore it gets a window of each side, and the next windows begin after the last match.
    """
    first_start = second_start = 0
    while first_start < len(first) or second_start < len(second):
        window = first[first_start : first_start + _WINDOW]
        other = second[second_start : second_start + _WINDOW]
        matcher = difflib.SequenceMatcher(None, window, other, autojunk=False)
        opcodes = matcher.get_opcodes()
        is_last = max(len(first) - first_start, len(second) - second_start) <= _WINDOW
        # Lines after the last match of a window may match lines after the window.
        if not is_last and len(opcodes) > 1 and opcodes[-1][0] != "equal":
            opcodes.pop()
        for kind, a, b, c, d in opcodes:
            yield kind, first_start + a, first_start + b, second_start + c, second_start + d
        first_start += opcodes[-1][2]
        second_start += opcodes[-1][4]


def _comparison_key(line: str) -> str:
    """Return a line without indent and comma; a single bracket with its indent."""
    bare = line.strip().rstrip(",")
    return line.rstrip(",") if len(bare) == 1 else bare
