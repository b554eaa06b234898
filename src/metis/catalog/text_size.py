"""The size of a text: counts of what costs tokens, taken in a few passes that run in C.

Vocabularies cut text by words, runs of digits and signs, and know some scripts better than others.
How many of each there are tells nearly how many tokens there will be; the weights that turn counts
into tokens belong to a family of models and are data.
"""

import re
from bisect import bisect_right
from collections import Counter
from functools import cache

FEATURES = (
    "word",
    "long",
    "foreign",
    "upper",
    "camel",
    "digit",
    "number",
    "mixed",
    "sign",
    "signs",
    "line",
    "indent",
    "latin",
    "greek",
    "cyrillic",
    "hebrew",
    "arabic",
    "indic",
    "thai",
    "cjk",
    "kana",
    "hangul",
    "wide",
    "typographic",
    "emoji",
    "other",
)
"""What is counted: in ASCII from `word` to `indent`, after that characters by script."""

_LONG = 18
_FOREIGN_SHARE = 100

_RANGES = (
    (0x80, "typographic"),
    (0xC0, "latin"),
    (0x250, "other"),
    (0x370, "greek"),
    (0x400, "cyrillic"),
    (0x530, "other"),
    (0x590, "hebrew"),
    (0x600, "arabic"),
    (0x780, "other"),
    (0x900, "indic"),
    (0xE00, "thai"),
    (0x1000, "other"),
    (0x1100, "hangul"),
    (0x1200, "other"),
    (0x1E00, "latin"),
    (0x1F00, "greek"),
    (0x2000, "typographic"),
    (0x200D, "emoji"),
    (0x200E, "typographic"),
    (0x2070, "other"),
    (0x2190, "emoji"),
    (0x2C00, "other"),
    (0x3000, "wide"),
    (0x3040, "kana"),
    (0x3100, "other"),
    (0x3400, "cjk"),
    (0xA000, "other"),
    (0xAC00, "hangul"),
    (0xD7B0, "other"),
    (0xF900, "cjk"),
    (0xFB00, "other"),
    (0xFB50, "arabic"),
    (0xFE00, "emoji"),
    (0xFE10, "other"),
    (0xFE70, "arabic"),
    (0xFF00, "wide"),
    (0xFFF0, "other"),
    (0x1F000, "emoji"),
    (0x1FB00, "other"),
    (0x20000, "cjk"),
    (0x40000, "other"),
)
"""Where each script begins; it goes on to the next."""

_STARTS = [start for start, _ in _RANGES]


@cache
def _script(char: str) -> str:
    return _RANGES[bisect_right(_STARTS, ord(char)) - 1][1]


def _table(letters: bytes) -> bytes:
    """Every ASCII character as its class: letters, digit, space, line or sign."""
    table = bytearray(b"p" * 256)
    for byte in range(256):
        char = chr(byte)
        if char.isascii() and char.isalpha():
            table[byte] = letters[0] if char.islower() else letters[1]
        elif char.isascii() and char.isdigit():
            table[byte] = ord("d")
    for byte in b" \t":
        table[byte] = ord("s")
    for byte in b"\r\n":
        table[byte] = ord("n")
    return bytes(table)


_CASED, _PLAIN = _table(b"lu"), _table(b"aa")
_LONG_WORD = b"a" * (_LONG + 1)
_long_words = re.compile(b"a{%d,}" % (_LONG + 1)).findall


def measure(text: str) -> dict[str, int]:
    """The counts of one text, by name; those of scripts that do not occur are left out."""
    plain = text.encode("ascii", "ignore")
    classes = plain.translate(_PLAIN)
    cased = plain.translate(_CASED)
    long_words = _long_words(classes) if _LONG_WORD in classes else []
    counts = {
        "word": _starts(classes, b"a", b"sndp"),
        "long": sum(map(len, long_words)) - _LONG * len(long_words),
        "upper": cased.count(b"u"),
        "camel": cased.count(b"lu"),
        "digit": classes.count(b"d"),
        "number": _starts(classes, b"d", b"snap"),
        "mixed": classes.count(b"da") + classes.count(b"ad"),
        "sign": classes.count(b"p"),
        "signs": _starts(classes, b"p", b"snda"),
        "line": _starts(classes, b"n", b"spda"),
        "indent": classes.count(b"ss"),
    }
    if len(plain) != len(text):
        for char, count in Counter(text).items():
            if char > "\x7f":
                script = _script(char)
                counts[script] = counts.get(script, 0) + count
        if counts.get("latin", 0) * _FOREIGN_SHARE > len(plain):
            counts["foreign"] = counts["word"]
    return counts


def _starts(classes: bytes, kind: bytes, before: bytes) -> int:
    """How many runs of one class there are."""
    pairs = sum(classes.count(bytes((one,)) + kind) for one in before)
    return pairs + classes.startswith(kind)
