"""Currencies: conversion of rates in another currency to US dollars.

A price table may contain the exchange rate of another currency, and prices of models in it::

    [currencies]
    CNY = 0.14

    [models]
    "deepseek:deepseek-v4-pro" = { currency = "CNY", input_per_mtok = 2, output_per_mtok = 8 }

The keys are those of dollar rates without `_usd`. Each version of a table has a fixed exchange rate
per currency, so that costs computed with it never change.
"""

from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from typing import Any, cast

from metis.canonical.errors import Problem

EXACT_CONTEXT = Context(prec=100, traps=[Inexact, InvalidOperation])
"""Decimal arithmetic that raises an error instead of rounding."""

_RATE_KEYS = frozenset(
    {
        "input_per_mtok",
        "output_per_mtok",
        "cached_read_per_mtok",
        "cache_write_per_mtok",
        "cache_write_1h_per_mtok",
    }
)
_Fields = dict[str, Any]


def exact_decimal(value: object) -> Decimal | None:
    """Convert a number or a text exactly; None for floats, which may already have lost digits."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        return Decimal(value)
    except InvalidOperation:
        return None


def read_currencies(data: object, problems: list[Problem]) -> dict[str, Decimal]:
    """Read the value of one unit of each currency in US dollars."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        problems.append(Problem("$.currencies", "KX-17", "must be a table"))
        return {}
    currencies: dict[str, Decimal] = {}
    for name, value in cast("_Fields", data).items():
        usd_per_unit = exact_decimal(value)
        if usd_per_unit is None or not usd_per_unit.is_finite() or usd_per_unit <= 0:
            text = f"{value!r} is not an exchange rate"
            problems.append(Problem(f"$.currencies.{name}", "KX-17", text))
        else:
            currencies[name] = usd_per_unit
    return currencies


def convert_to_usd(
    row: object, currencies: Mapping[str, Decimal], path: str, problems: list[Problem]
) -> object:
    """Convert the amounts of a price table row to US dollars, if it states another currency."""
    if not isinstance(row, dict) or "currency" not in row:
        return cast("object", row)
    fields = cast("_Fields", row)
    usd_per_unit = currencies.get(str(fields["currency"]))
    if usd_per_unit is None:
        text = f"the table has no exchange rate for {fields['currency']!r}"
        problems.append(Problem(f"{path}.currency", "KX-17", text))
        # Continue, so that all problems of the table are reported.
        usd_per_unit = Decimal(1)
    return _convert_fields({key: fields[key] for key in fields if key != "currency"}, usd_per_unit)


def _convert_fields(fields: _Fields, usd_per_unit: Decimal) -> _Fields:
    converted: _Fields = {}
    for key, value in fields.items():
        if key in _RATE_KEYS:
            converted[f"{key}_usd"] = _to_usd(value, usd_per_unit)
        elif key == "per_use" and isinstance(value, dict):
            charges = cast("_Fields", value).items()
            converted["per_use_usd"] = {
                name: _to_usd(charge, usd_per_unit) for name, charge in charges
            }
        else:
            converted[key] = _convert_nested(value, usd_per_unit)
    return converted


def _convert_nested(value: Any, usd_per_unit: Decimal) -> Any:
    """Convert rates in nested tables: peak hours, service tiers, long prompts."""
    if isinstance(value, dict):
        return _convert_fields(cast("_Fields", value), usd_per_unit)
    if isinstance(value, list):
        return [_convert_nested(item, usd_per_unit) for item in cast("list[Any]", value)]
    return value


def _to_usd(value: object, usd_per_unit: Decimal) -> object:
    """Convert an amount; any other value is returned for the price table reader to report."""
    amount = exact_decimal(value)
    if amount is None:
        return value
    with localcontext(EXACT_CONTEXT):
        return amount * usd_per_unit
