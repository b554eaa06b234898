"""Currencies: rates that a provider states in other money than dollars, brought to dollars.

A price table may name what one unit of another currency is worth, and a model be priced in it::

    [currencies]
    CNY = 0.14

    [models]
    "deepseek:deepseek-v4-pro" = { currency = "CNY", input_per_mtok = 2, output_per_mtok = 8 }

The keys are those of dollars without their `_usd`. A version of a table holds one rate of exchange,
so that what was priced under it stays what it was.
"""

from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from typing import Any, cast

from metis.canonical.errors import Problem

EXACT_CONTEXT = Context(prec=100, traps=[Inexact, InvalidOperation])
"""Money is never rounded: in this context a result that does not fit is an error."""


_AMOUNTS = frozenset(
    {
        "input_per_mtok",
        "output_per_mtok",
        "cached_read_per_mtok",
        "cache_write_per_mtok",
        "cache_write_1h_per_mtok",
    }
)
_USES = "per_use"
_Row = dict[str, Any]


def read_currencies(data: object, problems: list[Problem]) -> dict[str, Decimal]:
    """What one unit of each currency is worth in dollars."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        problems.append(Problem("$.currencies", "KX-17", "this is a table"))
        return {}
    found: dict[str, Decimal] = {}
    for name, value in cast("_Row", data).items():
        worth = _decimal(value)
        if worth is None or not worth.is_finite() or worth <= 0:
            text = f"{value!r} is not what a unit of a currency is worth"
            problems.append(Problem(f"$.currencies.{name}", "KX-17", text))
        else:
            found[name] = worth
    return found


def convert_to_usd(
    row: object, currencies: Mapping[str, Decimal], path: str, problems: list[Problem]
) -> object:
    """A row of a price table with its amounts in dollars; one without a currency is in them."""
    if not isinstance(row, dict) or "currency" not in row:
        return cast("object", row)
    fields = cast("_Row", row)
    worth = currencies.get(str(fields["currency"]))
    if worth is None:
        text = f"the table does not say what {fields['currency']!r} is worth"
        problems.append(Problem(f"{path}.currency", "KX-17", text))
        worth = Decimal(1)
    return _converted({key: fields[key] for key in fields if key != "currency"}, worth)


def _converted(fields: _Row, worth: Decimal) -> _Row:
    found: _Row = {}
    for key, value in fields.items():
        if key in _AMOUNTS:
            found[f"{key}_usd"] = _worth(value, worth)
        elif key == _USES and isinstance(value, dict):
            uses = cast("_Row", value).items()
            found[f"{key}_usd"] = {name: _worth(charge, worth) for name, charge in uses}
        else:
            found[key] = _inner(value, worth)
    return found


def _inner(value: Any, worth: Decimal) -> Any:
    """What may hold rates of its own: hours of the day, tiers of service, longer prompts."""
    if isinstance(value, dict):
        return _converted(cast("_Row", value), worth)
    if isinstance(value, list):
        return [_inner(each, worth) for each in cast("list[Any]", value)]
    return value


def _worth(value: object, worth: Decimal) -> object:
    """An amount in dollars; what is none is left for whoever reads it to refuse."""
    amount = _decimal(value)
    if amount is None:
        return value
    with localcontext(EXACT_CONTEXT):
        return amount * worth


def _decimal(value: object) -> Decimal | None:
    """An exact number; a float has lost digits already."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        return Decimal(value)
    except InvalidOperation:
        return None
