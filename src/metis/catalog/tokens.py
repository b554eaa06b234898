"""Tokens: how many a model makes of texts, pictures and what stands around them, as data.

Each family of models has weights for the counts of a text (see `text_size`), and rules for media;
the table of models says which family a model belongs to. All of it is an estimate: what a request
really took is told by the provider afterwards.
"""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError
from metis.canonical.problem import Problem
from metis.catalog.text_size import FEATURES, measure

UNKNOWN_SIZE = (1024, 1024)
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

    def of_text(self, text: str) -> float:
        """The tokens of a text."""
        weights = self.text
        return self.scale * sum(weights[name] * count for name, count in measure(text).items())


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
