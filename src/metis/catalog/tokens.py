"""Token estimates: text features, weights per model family, and rules for media."""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError, Problem

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


def count_features(text: str) -> dict[str, int]:
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


DEFAULT_IMAGE_SIZE = (1024, 1024)
"""The size that a picture is taken to have if its bytes are elsewhere."""


class ImageRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a picture is counted: by squares of `side` pixels, after it was scaled down."""

    longest: int
    """The longest side that is looked at."""
    shortest: int | None = None
    """The shorter side to which larger pictures are brought; None if there is no such rule."""
    side: int
    base: float = 0
    each: float = 1
    most: int | None = None
    """The most squares that one picture has."""
    rounding: Literal["up", "none"] = "up"

    def tokens(self, width: int, height: int) -> int:
        """The tokens of a picture."""
        scale = min(1.0, self.longest / max(width, height))
        if self.shortest is not None:
            scale = min(scale, self.shortest / min(width, height))
        across, down = width * scale / self.side, height * scale / self.side
        squares = math.ceil(across) * math.ceil(down) if self.rounding == "up" else across * down
        if self.most is not None:
            squares = min(squares, self.most)
        return math.ceil(self.base + self.each * squares)


class TokenRates(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What costs tokens in one family of models, and how many."""

    text: Mapping[str, float]
    scale: float = 1
    message: float = 4
    """Around each message."""
    call: float = 8
    """Around each call of a tool and around each result."""
    request: float = 3
    tools: float = 0
    """Once, if there are tools."""
    tool: float = 8
    """Around each tool."""
    schema: float = 1
    """How the definition of a tool compares to its JSON."""
    image: ImageRule
    page: int = 1500
    """A page of a document that is no text."""
    sound: float = 25
    """A second of sound."""
    film: float = 263
    """A second of film."""

    def text_tokens(self, text: str) -> float:
        """The tokens of a text."""
        weights = self.text
        return self.scale * sum(
            weights[name] * count for name, count in count_features(text).items()
        )


class _Family(Struct, frozen=True, forbid_unknown_fields=True):
    """One row: which models, whose weights, and what is special."""

    models: tuple[str, ...]
    text: str
    image: str
    rates: Mapping[str, float] = {}


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    text: Mapping[str, Mapping[str, float]]
    image: Mapping[str, ImageRule]
    family: tuple[_Family, ...]


class TokenTable(Struct, frozen=True):
    """The families in order; the first whose pattern fits a model is its own."""

    rows: tuple[tuple[tuple[str, ...], TokenRates], ...]

    def rates(self, model: str) -> TokenRates:
        """The rates of a model, given by its canonical id; the last family takes all others."""
        name = model.lower()
        return next(
            rates
            for patterns, rates in self.rows
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        )


def read_token_table(data: Mapping[str, object]) -> TokenTable:
    """Read the families from plain data, as a TOML file gives them."""
    try:
        table = msgspec.convert(data, _Table, strict=False)
        return TokenTable(tuple((row.models, _rates(row, table)) for row in table.family))
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        problem = Problem("$", "M-202", str(error))
        raise CatalogDataError("the rates of tokens cannot be used", [problem]) from None


def _rates(row: _Family, table: _Table) -> TokenRates:
    weights = {name: float(table.text[row.text].get(name, 1)) for name in FEATURES}
    more = {name: float(value) for name, value in row.rates.items()}
    return TokenRates(text=weights, image=table.image[row.image], **more)  # pyright: ignore[reportArgumentType] - the names are checked at run time
