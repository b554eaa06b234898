"""The only reader of the data files.

the tables that metis ships, and a user's file laid over them.
"""

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from metis.canonical.errors import CatalogDataError, Problem, UnknownPricingError
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

_DATA = files("metis.catalog") / "data"


def catalog(overlay: Path | None = None) -> Catalog:
    """All known models; a user's TOML file can add models and aliases or replace them."""
    shipped = _shipped_catalog()
    return shipped if overlay is None else shipped.with_overlay(_read_file(overlay))


def price_table(version: str | None = None, *, overlay: Path | None = None) -> PriceTable:
    """A price table by version, the newest by default; a user's TOML file can be laid over it."""
    table = _shipped_price_table(pricing_versions()[-1] if version is None else version)
    return table if overlay is None else table.with_overlay(read_price_table(_read_file(overlay)))


@cache
def pricing_versions() -> tuple[str, ...]:
    """The versions of all price tables, from the oldest to the newest."""
    names = (file.name for file in (_DATA / "prices").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


@cache
def option_rules() -> OptionRules:
    """What single models do not take."""
    name = "refusals.toml"
    return read_option_rules(_parse((_DATA / name).read_text(encoding="utf-8"), name))


@cache
def reasoning_rules() -> ReasoningTable:
    """How models can be told how much to think."""
    name = "reasoning.toml"
    return read_reasoning_rules(_parse((_DATA / name).read_text(encoding="utf-8"), name))


@cache
def output_rules() -> OutputTable:
    """Which models can be told what their answer shall be."""
    name = "output.toml"
    return read_output_rules(_parse((_DATA / name).read_text(encoding="utf-8"), name))


@cache
def model_pointers() -> Mapping[str, str]:
    """Names for models by size, from the smallest to the largest."""
    name = "pointers.toml"
    return _parse((_DATA / name).read_text(encoding="utf-8"), name)["pointers"]


@cache
def token_table() -> TokenTable:
    """What costs how many tokens, by family of models."""
    name = "tokens.toml"
    return read_token_table(_parse((_DATA / name).read_text(encoding="utf-8"), name))


def preload_tables() -> None:
    """Read every table that the first call of a model needs; each is read once."""
    for table in (price_table, option_rules, reasoning_rules, token_table):
        table()


@cache
def _shipped_catalog() -> Catalog:
    models, aliases = (
        _parse((_DATA / name).read_text(encoding="utf-8"), name)
        for name in ("models.toml", "aliases.toml")
    )
    return read_catalog({**models, **aliases})


@cache
def _shipped_price_table(version: str) -> PriceTable:
    if version not in pricing_versions():
        raise UnknownPricingError(version, pricing_versions())
    name = f"{version}.toml"
    return read_price_table(_parse((_DATA / "prices" / name).read_text(encoding="utf-8"), name))


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("$", "M-186", f"the file cannot be read: {error}")
        raise CatalogDataError(str(path), [problem]) from None
    return _parse(text, str(path))


def _parse(text: str, name: str) -> Mapping[str, Any]:
    """The content of a TOML file, in which no number ever becomes a float."""
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise CatalogDataError(name, [Problem("$", "M-186", f"not TOML: {error}")]) from None
