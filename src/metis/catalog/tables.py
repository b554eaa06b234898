"""The tables in the data files of metis, with overlays from users' files and plugins."""

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, cast

from metis.canonical.errors import CatalogDataError, Problem, UnknownPricingError
from metis.catalog.limits import LimitTable, read_limits
from metis.catalog.model_rules import (
    OptionRules,
    OutputTable,
    ReasoningTable,
    read_option_rules,
    read_output_rules,
    read_reasoning_rules,
)
from metis.catalog.models import Catalog, read_catalog
from metis.catalog.prices import PriceTable, read_price_table
from metis.catalog.tokens import TokenTable, read_token_table
from metis.plugins import PRICE_TABLES, Plugin, load_plugins

# `importlib.resources` would load modules for archives at every start.
_DATA = Path(__file__).parent / "data"


def catalog(overlay: Path | None = None) -> Catalog:
    """Return all known models; `overlay` is a TOML file that adds or replaces some."""
    shipped = _shipped_catalog()
    return shipped if overlay is None else shipped.with_overlay(_read_user_file(overlay))


def price_table(version: str | None = None, *, overlay: Path | None = None) -> PriceTable:
    """Return a price table by version, by default the newest; `overlay` is a user's TOML file.

    The version of a plugin's table may be given alone or, as in recorded costs, after that of its
    base table: `acme-1`, or `2026-11-15+acme-1`.
    """
    table = _table_of(pricing_versions()[-1] if version is None else version)
    if overlay is None:
        return table
    return table.with_overlay(read_price_table(_read_user_file(overlay)))


@cache
def pricing_versions() -> tuple[str, ...]:
    """Return the versions of all price tables, from the oldest to the newest."""
    names = (file.name for file in (_DATA / "prices").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


@cache
def added_price_tables() -> Mapping[str, PriceTable]:
    """Return the price tables of plugins by their versions."""
    tables = load_plugins(PRICE_TABLES, _read_added_prices).values()
    return {table.pricing_version: table for table in tables}


def _read_added_prices(_plugin: Plugin, value: Any) -> PriceTable:
    if isinstance(value, Mapping):
        return read_price_table(cast("Mapping[str, object]", value))
    if not hasattr(value, "read_text"):
        raise TypeError(f"expected a price table or the path of its TOML file, got {value!r:.80}")
    # A file of the package: `importlib.resources.files(…) / "prices.toml"`, or a Path.
    return read_price_table(_parse(value.read_text(encoding="utf-8"), str(value)))


def _table_of(version: str) -> PriceTable:
    if version in pricing_versions():
        return _shipped_price_table(version)
    base, plus, name = version.rpartition("+")
    added = added_price_tables()
    if name not in added or (plus and base not in pricing_versions()):
        raise UnknownPricingError(version, (*pricing_versions(), *added))
    return _shipped_price_table(base or pricing_versions()[-1]).with_overlay(added[name])


@cache
def option_rules() -> OptionRules:
    """Return the rules for options that single models reject."""
    return read_option_rules(_read_shipped("refusals.toml"))


@cache
def reasoning_rules() -> ReasoningTable:
    """Return the rules for the reasoning option of models."""
    return read_reasoning_rules(_read_shipped("reasoning.toml"))


@cache
def output_rules() -> OutputTable:
    """Return the rules for the structured output of models."""
    return read_output_rules(_read_shipped("output.toml"))


@cache
def limit_table() -> LimitTable:
    """Return the ranges and limits that hosts enforce."""
    return read_limits(_read_shipped("limits.toml"))


@cache
def model_pointers() -> Mapping[str, str]:
    """Return the model ids behind pointer names, from the smallest to the largest model."""
    return _read_shipped("pointers.toml")["pointers"]


@cache
def token_table() -> TokenTable:
    """Return the token rates by model family."""
    return read_token_table(_read_shipped("tokens.toml"))


def preload_tables() -> None:
    """Read all tables that a model call needs, so that the first call is not delayed."""
    for table in (price_table, option_rules, reasoning_rules, limit_table, token_table):
        table()


@cache
def _shipped_catalog() -> Catalog:
    return read_catalog({**_read_shipped("models.toml"), **_read_shipped("aliases.toml")})


@cache
def _shipped_price_table(version: str) -> PriceTable:
    return read_price_table(_read_shipped(f"prices/{version}.toml"))


def _read_shipped(name: str) -> Mapping[str, Any]:
    return _parse((_DATA / name).read_text(encoding="utf-8"), name)


def _read_user_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("$", "M-186", f"the file cannot be read: {error}")
        raise CatalogDataError(str(path), [problem]) from None
    return _parse(text, str(path))


def _parse(text: str, name: str) -> Mapping[str, Any]:
    """Parse a TOML file, with decimal numbers as Decimal."""
    try:
        # Rates are amounts of money: a float would lose the exact amount.
        return tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise CatalogDataError(name, [Problem("$", "M-186", f"not TOML: {error}")]) from None
