"""Setting: one thing that can be set, with its meaning; the table of all of them."""

import difflib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct

from metis.canonical.errors import SettingsError


class Setting(Struct, frozen=True, kw_only=True):
    """One row of the table; a name that ends in `.*` stands for a table with keys of one's own."""

    name: str
    kind: Any
    """The type of the value."""
    meaning: str
    example: str
    """A value as TOML spells it."""
    variable: str | None = None
    """The environment variable that sets it."""
    default: Any = None


_ROWS = (
    Setting(
        name="model",
        kind=str,
        variable="METIS_MODEL",
        meaning="Who answers if neither an option nor a rule says: an id, an alias, a provider.",
        example='"sonnet"',
    ),
    Setting(
        name="store",
        kind=str,
        variable="METIS_STORE",
        meaning="Where conversations are kept; metis.db in the folder of data if not set.",
        example='"sqlite:////home/me/talks.db"',
    ),
    Setting(
        name="tools",
        kind=bool,
        variable="METIS_TOOLS",
        default=True,
        meaning="Whether models may use the built-in tools in the folder where metis runs.",
        example="true",
    ),
    Setting(
        name="system",
        kind=str,
        meaning="What every model is told first in a new conversation.",
        example='"Answer in one sentence."',
    ),
    Setting(
        name="temperature",
        kind=float,
        meaning="How freely models choose their words; their own default if not set.",
        example="0.7",
    ),
    Setting(
        name="max_output_tokens",
        kind=int,
        meaning="How long an answer may be; the model's own limit if not set.",
        example="4096",
    ),
    Setting(
        name="thinking",
        kind=str,
        variable="METIS_THINKING",
        meaning="How much models think: off, on, a word from minimal to max, a number of tokens.",
        example='"high"',
    ),
    Setting(
        name="compact_with",
        kind=str,
        meaning="The model that sums up what is old when a window is full.",
        example='"haiku"',
    ),
    Setting(
        name="budget.session_usd",
        kind=Decimal,
        meaning="How much one conversation may cost, in US dollars.",
        example="1.00",
    ),
    Setting(
        name="budget.day_usd",
        kind=Decimal,
        variable="METIS_BUDGET_DAY_USD",
        meaning="How much all conversations of a day may cost.",
        example="5.00",
    ),
    Setting(
        name="budget.month_usd",
        kind=Decimal,
        meaning="How much all conversations of a month may cost.",
        example="50.00",
    ),
    Setting(
        name="base_urls.*",
        kind=str,
        meaning="Another address of a provider, by the name of the provider.",
        example='"http://127.0.0.1:8080"',
    ),
    Setting(
        name="fallbacks.*",
        kind=tuple[str, ...],
        meaning='Which models step in for one that is down, by its name; "*" is any.',
        example='["gpt-5", "haiku"]',
    ),
)

SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}
"""Everything that can be set, by name."""


def find_setting(name: str, *, place: str) -> Setting:
    """The row for a name such as `budget.day_usd` or `base_urls.ollama`."""
    table, dot, key = name.partition(".")
    row = SETTINGS.get(name) or (SETTINGS.get(f"{table}.*") if dot and key else None)
    if row is not None and "*" not in name.partition(".")[0]:
        return row
    near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `metis config` lists all settings"
    raise SettingsError(f"there is no setting {name!r}{hint}", place=place)
