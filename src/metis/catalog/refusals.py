"""Refusals: options that single models do not take, although their provider's API knows them."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError
from metis.canonical.problem import Problem


class _Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule: the options, and the models that it holds for."""

    models: tuple[str, ...]
    options: tuple[str, ...]
    excluded: tuple[str, ...] = msgspec.field(default=(), name="except")

    def holds_for(self, model: str) -> bool:
        return _matches(model, self.models) and not _matches(model, self.excluded)


def _matches(model: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)


class _Least(Struct, frozen=True, forbid_unknown_fields=True):
    """How long a prefix some models keep at least."""

    models: tuple[str, ...]
    tokens: int


class Refusals(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What models refuse, and which options exclude each other."""

    refuses: tuple[_Row, ...] = ()
    conflicts: tuple[_Row, ...] = ()
    least_cached: tuple[_Least, ...] = ()

    def of(self, model: str) -> frozenset[str]:
        """The options that a model, given by its canonical id, does not take."""
        rows = (row for row in self.refuses if row.holds_for(model))
        return frozenset(option for row in rows for option in row.options)

    def least_cached_of(self, model: str) -> int:
        """How many tokens a prefix needs for a model to keep it; 0 if that is not known."""
        fitting = (row.tokens for row in self.least_cached if _matches(model, row.models))
        return next(fitting, 0)

    def conflicts_of(self, model: str) -> tuple[tuple[str, ...], ...]:
        """Options of which a model takes one only: the first of each group that is stated."""
        return tuple(row.options for row in self.conflicts if row.holds_for(model))


def read_refusals(data: Mapping[str, object]) -> Refusals:
    """Read the rules from plain data, as a TOML file gives them."""
    try:
        return msgspec.convert(data, Refusals)
    except msgspec.ValidationError as error:
        problem = Problem("$", "T183", str(error))
        raise CatalogDataError("the refusals cannot be used", [problem]) from None
