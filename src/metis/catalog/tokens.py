"""Token estimates: text features, weights per model family, and rules for media.

Tokenizers split text into words, runs of digits and signs, and need fewer tokens for some scripts
than for others. The number of such features predicts the number of tokens; the weights of each
model family are data. The results are estimates: the provider reports the exact count afterwards.
"""

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
    *("word", "long", "foreign", "upper", "camel", "digit", "number", "mixed"),
    *("sign", "signs", "line", "indent"),
    *("latin", "greek", "cyrillic", "hebrew", "arabic", "indic", "thai", "cjk", "kana"),
    *("hangul", "wide", "typographic", "emoji", "other"),
)
"""The features of a text: of its ASCII part (`word` to `indent`), then characters by script."""

# Characters beyond this length are counted, because tokenizers split longer words.
_LONG_WORD_LENGTH = 18
# A text with more than one accented letter per this number of characters is not English.
_FOREIGN_SHARE = 100

_SCRIPT_STARTS: Mapping[str, tuple[int, ...]] = {
    "typographic": (0x80, 0x2000, 0x200E),
    "latin": (0xC0, 0x1E00),
    "other": (
        0x250,
        0x530,
        0x780,
        0x1000,
        0x1200,
        0x2070,
        0x2C00,
        0x3100,
        0xA000,
        0xD7B0,
        0xFB00,
        0xFE10,
        0xFFF0,
        0x1FB00,
        0x40000,
    ),
    "greek": (0x370, 0x1F00),
    "cyrillic": (0x400,),
    "hebrew": (0x590,),
    "arabic": (0x600, 0xFB50, 0xFE70),
    "indic": (0x900,),
    "thai": (0xE00,),
    "hangul": (0x1100, 0xAC00),
    "emoji": (0x200D, 0x2190, 0xFE00, 0x1F000),
    "wide": (0x3000, 0xFF00),
    "kana": (0x3040,),
    "cjk": (0x3400, 0xF900, 0x20000),
}
"""The first code points of the ranges of each script; a range ends where the next one begins."""
_RANGES = sorted((start, script) for script, starts in _SCRIPT_STARTS.items() for start in starts)
_RANGE_STARTS = [start for start, _ in _RANGES]


# Cached, because texts repeat few characters.
@cache
def _script(char: str) -> str:
    return _RANGES[bisect_right(_RANGE_STARTS, ord(char)) - 1][1]


def _class_table(letters: bytes) -> bytes:
    """Return a translation table from characters to classes: letter, digit, space, line or sign."""
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


_CASE_CLASSES, _PLAIN_CLASSES = _class_table(b"lu"), _class_table(b"aa")
_LONG_WORD = b"a" * (_LONG_WORD_LENGTH + 1)
_long_words = re.compile(b"a{%d,}" % (_LONG_WORD_LENGTH + 1)).findall


def count_features(text: str) -> dict[str, int]:
    """Count the features of a text in a few passes of C code; absent scripts are omitted."""
    plain = text.encode("ascii", "ignore")
    classes = plain.translate(_PLAIN_CLASSES)
    cased = plain.translate(_CASE_CLASSES)
    long_words = _long_words(classes) if _LONG_WORD in classes else []
    counts = {
        "word": _count_runs(classes, b"a", b"sndp"),
        "long": sum(map(len, long_words)) - _LONG_WORD_LENGTH * len(long_words),
        "upper": cased.count(b"u"),
        "camel": cased.count(b"lu"),
        "digit": classes.count(b"d"),
        "number": _count_runs(classes, b"d", b"snap"),
        "mixed": classes.count(b"da") + classes.count(b"ad"),
        "sign": classes.count(b"p"),
        "signs": _count_runs(classes, b"p", b"snda"),
        "line": _count_runs(classes, b"n", b"spda"),
        "indent": classes.count(b"ss"),
    }
    if len(plain) != len(text):
        for char, count in Counter(text).items():
            if char > "\x7f":
                script = _script(char)
                counts[script] = counts.get(script, 0) + count
        # Words of other Latin languages, even those without accents, have more tokens than English
        # ones.
        if counts.get("latin", 0) * _FOREIGN_SHARE > len(plain):
            counts["foreign"] = counts["word"]
    return counts


def _count_runs(classes: bytes, kind: bytes, others: bytes) -> int:
    """Return the number of runs of one class."""
    pairs = sum(classes.count(bytes((other,)) + kind) for other in others)
    return pairs + classes.startswith(kind)


DEFAULT_IMAGE_SIZE = (1024, 1024)
"""The assumed size of an image whose bytes are not available."""


class ImageRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule for the tokens of an image: the number of square tiles after scaling it down."""

    max_long_side: int
    """The pixels to which the longer side is scaled down."""
    max_short_side: int | None = None
    """The pixels to which the shorter side is then scaled down; None for no such rule."""
    tile_side: int
    base: float = 0
    tokens_per_tile: float = 1
    max_tiles: int | None = None
    rounding: Literal["up", "none"] = "up"

    def tokens(self, width: int, height: int) -> int:
        """Return the tokens of an image."""
        scale = min(1.0, self.max_long_side / max(width, height))
        if self.max_short_side is not None:
            scale = min(scale, self.max_short_side / min(width, height))
        across, down = width * scale / self.tile_side, height * scale / self.tile_side
        tiles = math.ceil(across) * math.ceil(down) if self.rounding == "up" else across * down
        if self.max_tiles is not None:
            tiles = min(tiles, self.max_tiles)
        return math.ceil(self.base + self.tokens_per_tile * tiles)


_SAMPLED_LENGTH = 400_000
_PART_LENGTH = 4_000
_SAMPLE_LENGTH = 200_000


def _sample(text: str) -> str:
    """Return a text, or evenly spaced parts of it if it is very long.

    Counting takes 40 ms for a megabyte, which would block the event loop.
    """
    if len(text) <= _SAMPLED_LENGTH:
        return text
    count = _SAMPLE_LENGTH // _PART_LENGTH
    step = (len(text) - _PART_LENGTH) / (count - 1)
    starts = (round(number * step) for number in range(count))
    return "".join(text[start : start + _PART_LENGTH] for start in starts)


class TokenRates(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokens of each part of a request in one model family."""

    text: Mapping[str, float]
    scale: float = 1
    message: float = 4
    """Overhead of a message."""
    call: float = 8
    """Overhead of a tool call, and of a tool result."""
    request: float = 3
    tools: float = 0
    """Overhead of a request with tools."""
    tool: float = 8
    """Overhead of a tool definition."""
    schema: float = 1
    """The ratio of the tokens of a tool definition to those of its JSON."""
    image: ImageRule
    page: int = 1500
    """The tokens of one page of a document that is not text."""
    audio_second: float = 25
    video_second: float = 263

    def text_tokens(self, text: str) -> float:
        """Return the estimated tokens of a text; a very long text is sampled."""
        weights, counts = self.text, count_features(_sample(text))
        tokens = self.scale * sum(weights[name] * count for name, count in counts.items())
        return tokens if len(text) <= _SAMPLED_LENGTH else tokens * len(text) / _SAMPLE_LENGTH


class _Family(Struct, frozen=True, forbid_unknown_fields=True):
    """One row: patterns of models, the name of their weights, and overridden rates."""

    models: tuple[str, ...]
    text: str
    image: str
    rates: Mapping[str, float] = {}


class _TokenData(Struct, frozen=True, forbid_unknown_fields=True):
    text: Mapping[str, Mapping[str, float]]
    image: Mapping[str, ImageRule]
    family: tuple[_Family, ...]


class TokenTable(Struct, frozen=True):
    """The families in order; the first that matches a model applies."""

    rows: tuple[tuple[tuple[str, ...], TokenRates], ...]

    def rates(self, model: str) -> TokenRates:
        """Return the rates of a canonical model id; the last family matches all others."""
        # Hosts write the same model name in upper or lower case.
        name = model.lower()
        return next(
            rates
            for patterns, rates in self.rows
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        )


def read_token_table(data: Mapping[str, object]) -> TokenTable:
    """Read the families from the data of a TOML file."""
    try:
        table = msgspec.convert(data, _TokenData, strict=False)
        return TokenTable(tuple((row.models, _rates(row, table)) for row in table.family))
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        problem = Problem("$", "M-202", str(error))
        raise CatalogDataError("the token rates cannot be used", [problem]) from None


def _rates(row: _Family, table: _TokenData) -> TokenRates:
    weights = {name: float(table.text[row.text].get(name, 1)) for name in FEATURES}
    overrides = {name: float(value) for name, value in row.rates.items()}
    return TokenRates(text=weights, image=table.image[row.image], **overrides)  # pyright: ignore[reportArgumentType] - the names are checked at run time
