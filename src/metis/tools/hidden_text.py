r"""Text that users cannot see, or may overlook, in a call that they are asked to confirm.

Every search takes time in proportion to the text, which may have megabytes.
"""

import re
from collections.abc import Iterable, Iterator

LONG_LINE = 500
"""The length from which a line is reported, because its end is easily overlooked."""

_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"

# Characters that a terminal interprets, reorders or does not show. Tabs and line breaks are common,
# and so are joiners inside emoji and some scripts, but not beside ASCII. Combining marks that
# strike a letter through, and the fifth mark on one letter, make it unreadable.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\u0334-\u0338\u20d2\u20d3\u20d8-\u20da\u20e5\u20ea\u20eb"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
    f"|(?<=[{_MARKS}][{_MARKS}][{_MARKS}][{_MARKS}])[{_MARKS}]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
"""Matches one invisible character."""

# Text after this number of spaces may be outside of the visible area; a tab counts as eight. At the
# beginning of a line more are allowed, because code is indented.
_BLANK = r"[^\S\r\n]"
_SPACES = re.compile(
    rf"(?<=\S)(?:{_BLANK}{{40}}|(?:\t {{0,40}}){{5}})|^{_BLANK}{{160}}|^\t{{20}}", re.MULTILINE
)
_BLANKS = re.compile(rf"{_BLANK}+")

# Letters of Cyrillic and Greek that look like Latin ones, beside Latin letters.
_LOOKALIKE = (
    "[\u0400-\u052f\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4"
    "\u03a5\u03a7\u03bd\u03bf\u03c1]"
)
_MIXED_SCRIPTS = re.compile(f"[A-Za-z]{_LOOKALIKE}|{_LOOKALIKE}[A-Za-z]")


def hidden_notes(texts: Iterable[str]) -> Iterator[str]:
    """Yield the warnings about text that is hard to see, one sentence each."""
    longest = hidden = 0
    has_spaces = has_blank_lines = False
    for text in texts:
        longest = max(longest, *map(len, text.split("\n")))
        hidden += 0 if text.isascii() and text.isprintable() else _hidden_count(text)
        has_spaces = has_spaces or _SPACES.search(text) is not None
        has_blank_lines = has_blank_lines or "\n" * 20 in _BLANKS.sub("", text)
    if hidden:
        characters = (
            "a control or invisible character"
            if hidden == 1
            else (f"{hidden:,} control or invisible characters")
        )
        yield f"contains {characters}, shown in reverse"
    if longest > LONG_LINE:
        yield f"has a line of {longest:,} characters"
    if has_spaces or has_blank_lines:
        yield "has text behind a long blank space"


def mixed_script_notes(text: str) -> Iterator[str]:
    """Yield a note for a word with lookalike letters of another script, such as Cyrillic."""
    if not text.isascii() and _MIXED_SCRIPTS.search(text):
        yield "mixes letters of several alphabets in one word, which look alike"


def _hidden_count(text: str) -> int:
    # A carriage return before a line break is the line end of some systems.
    return sum(1 for _ in HIDDEN.finditer(text.replace("\r\n", "\n")))
