"""Every setting, its current value, and where that value comes from."""

import difflib
import os
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec
from msgspec import Struct

from metis.adapters import names as adapter_names
from metis.canonical.errors import InvalidValueError, SettingsError
from metis.catalog.model_rules import EFFORTS
from metis.events.budget import Budget
from metis.settings.files import SettingsFile, UserPaths
from metis.wire.reasoning import REASONING_OFF, Reasoning


class Setting(Struct, frozen=True, kw_only=True):
    """One row of the table; a name that ends in `.*` stands for a table with keys of one's own."""

    name: str
    kind: Any
    """The type of the value."""
    description: str
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
        description="The model if no option or rule names one: an id, an alias, a provider.",
        example='"sonnet"',
    ),
    Setting(
        name="store",
        kind=str,
        variable="METIS_STORE",
        description="Where conversations are kept; metis.db in the folder of data if not set.",
        example='"sqlite:////home/me/talks.db"',
    ),
    Setting(
        name="tools",
        kind=bool,
        variable="METIS_TOOLS",
        default=True,
        description="Whether models may use the built-in tools in the folder where metis runs.",
        example="true",
    ),
    Setting(
        name="system",
        kind=str,
        description="What every model is told first in a new conversation.",
        example='"Answer in one sentence."',
    ),
    Setting(
        name="temperature",
        kind=float,
        description="How freely models choose their words; their own default if not set.",
        example="0.7",
    ),
    Setting(
        name="max_output_tokens",
        kind=int,
        description="How long an answer may be; the model's own limit if not set.",
        example="4096",
    ),
    Setting(
        name="thinking",
        kind=str,
        variable="METIS_THINKING",
        description="Reasoning effort: off, on, a level from minimal to max, or a token count.",
        example='"high"',
    ),
    Setting(
        name="compact_with",
        kind=str,
        description="The model that sums up what is old when a window is full.",
        example='"haiku"',
    ),
    Setting(
        name="budget.session_usd",
        kind=Decimal,
        description="How much one conversation may cost, in US dollars.",
        example="1.00",
    ),
    Setting(
        name="budget.day_usd",
        kind=Decimal,
        variable="METIS_BUDGET_DAY_USD",
        description="How much all conversations of a day may cost.",
        example="5.00",
    ),
    Setting(
        name="budget.month_usd",
        kind=Decimal,
        description="How much all conversations of a month may cost.",
        example="50.00",
    ),
    Setting(
        name="base_urls.*",
        kind=str,
        description="Another address of a provider, by the name of the provider.",
        example='"http://127.0.0.1:8080"',
    ),
    Setting(
        name="fallbacks.*",
        kind=tuple[str, ...],
        description='Which models step in for one that is down, by its name; "*" is any.',
        example='["gpt-5", "haiku"]',
    ),
)

SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}
"""Everything that can be set, by name."""


def find_setting(name: str, *, location: str) -> Setting:
    """The row for a name such as `budget.day_usd` or `base_urls.ollama`."""
    table, dot, key = name.partition(".")
    row = SETTINGS.get(name) or (SETTINGS.get(f"{table}.*") if dot and key else None)
    if row is not None and "*" not in name.partition(".")[0]:
        return row
    near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `metis config` lists all settings"
    raise SettingsError(f"there is no setting {name!r}{hint}", place=location)


AUTO = "auto"
"""The word that leaves it to the model, as if nothing was said."""
LEVELS = ("off", "on", *EFFORTS[1:])
"""The other words."""


def parse_thinking(words: str) -> Reasoning | None:
    """How much to think: a word, or a number of tokens; None is what the model does by itself.

    >>> read_thinking("high"), read_thinking("4000"), read_thinking("auto")
    (Reasoning(effort='high', budget_tokens=None), Reasoning(effort=None, budget_tokens=4000), None)

    Raises:
        InvalidValueError: it is neither.
    """
    word = words.strip().lower()
    if word == AUTO:
        return None
    if word in {"off", "none"}:
        return REASONING_OFF
    if word == "on":
        return Reasoning()
    for effort in EFFORTS:
        if word == effort:
            return Reasoning(effort)
    if word.isascii() and word.isdigit() and int(word):
        return Reasoning(None, int(word))
    known = ", ".join((*LEVELS, AUTO))
    raise InvalidValueError(f"thinking is one of {known}, or a number of tokens, not {words!r}")


def format_thinking(reasoning: Reasoning | None) -> str:
    """The same for people.

    >>> told_thinking(Reasoning("high")), told_thinking(Reasoning(None, 4000)), told_thinking(None)
    ('high', '4000 tokens', 'auto')
    """
    if reasoning is None:
        return AUTO
    if reasoning.is_off:
        return "off"
    if reasoning.budget_tokens is not None:
        return f"{reasoning.budget_tokens} tokens"
    return reasoning.effort or "on"


Source = Literal["option", "environment", "file", "default"]
"""What sets a value; the first that does wins."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Origin(Struct, frozen=True):
    """Where a value comes from: an option, a variable, a line of a file, or nobody has set it."""

    source: Source
    location: str = ""


class Settings(Struct, frozen=True, kw_only=True):
    """What a user has set; None is left to metis."""

    model: str | None = None
    store: str | None = None
    tools: bool = True
    system: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    thinking: str | None = None
    """How much models think, as `read_thinking` reads it."""
    compact_with: str | None = None
    budget: Budget = Budget()
    base_urls: Mapping[str, str] = {}
    fallbacks: Mapping[str, tuple[str, ...]] = {}


class LoadedSettings(Struct, frozen=True, kw_only=True):
    """The settings, and where each comes from."""

    settings: Settings
    values: Mapping[str, Any]
    """Every value by its full name, such as `budget.day_usd`."""
    origins: Mapping[str, Origin]


def load(
    options: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    places: UserPaths | None = None,
) -> LoadedSettings:
    """All settings: an option counts before the environment, that before the file.

    Raises:
        SettingsError: a value or a name that cannot be; it says where that stands.
    """
    values = {name: row.default for name, row in SETTINGS.items() if not name.endswith(".*")}
    origins = dict.fromkeys(values, Origin("default"))
    file = SettingsFile.read((places or UserPaths.from_environment(environment)).settings)
    for name, value, origin in (
        *_filed(file),
        *_from_environment(environment),
        *_from_options(options or {}),
    ):
        values[name], origins[name] = value, origin
    return LoadedSettings(settings=_settings(values, origins), values=values, origins=origins)


def check_file(file: SettingsFile) -> None:
    """Raise a SettingsError if a value of a file cannot be used."""
    found = [(name, value, origin) for name, value, origin in _filed(file)]
    values = {name: value for name, value, _ in found}
    _budget(_table(values, "budget"), {name: origin for name, _, origin in found})


def check_value(row: Setting, name: str, value: Any, *, location: str) -> Any:
    """A value of the right type, or an error that says what is wanted."""
    try:
        found = msgspec.convert(value, row.kind, strict=row.kind is not Decimal)
    except msgspec.ValidationError:
        told = f"{name} has to be {_WANTED[row.kind]}, such as {row.example}"
        raise SettingsError(told, place=location) from None
    if name == "thinking":
        _check_thinking(found, location)
    if name.startswith("base_urls."):
        _check_address(name.partition(".")[2], found, location)
    return found


def _check_thinking(words: str, place: str) -> None:
    try:
        parse_thinking(words)
    except InvalidValueError as error:
        raise SettingsError(error.reason, place=place) from None


def _check_address(provider: str, url: str, place: str) -> None:
    if provider not in adapter_names():
        known = ", ".join(adapter_names())
        raise SettingsError(f"no provider is named {provider!r}; there are {known}", place=place)
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"{url!r} is no address: http://… or https://…", place=place)


_WANTED: Mapping[Any, str] = {
    str: "a text in quotes",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Decimal: "an amount",
    tuple[str, ...]: "a list of texts",
}


def _filed(file: SettingsFile) -> Iterator[tuple[str, Any, Origin]]:
    for name, value in file.values.items():
        place = file.location(name)
        row = find_setting(name, location=place)
        number = float(value) if row.kind is float and isinstance(value, Decimal) else value
        yield name, check_value(row, name, number, location=place), Origin("file", place)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Any, Origin]]:
    for name, row in SETTINGS.items():
        text = environment.get(row.variable) if row.variable else None
        if row.variable is not None and text:
            place = f"${row.variable}"
            value = _switch(text, name, place) if row.kind is bool else text
            yield name, check_value(row, name, value, location=place), Origin("environment", place)


def _from_options(options: Mapping[str, Any]) -> Iterator[tuple[str, Any, Origin]]:
    for name, value in options.items():
        if value is not None:
            yield name, value, Origin("option", f"--{name}")


def _switch(text: str, name: str, place: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise SettingsError(f"{name} is switched by 1 or 0, not by {text!r}", place=place)


def _settings(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Settings:
    plain = {name: value for name, value in values.items() if "." not in name}
    return Settings(
        **plain,
        budget=_budget(_table(values, "budget"), origins),
        base_urls=_table(values, "base_urls"),
        fallbacks=_table(values, "fallbacks"),
    )


def _budget(limits: Mapping[str, Any], origins: Mapping[str, Origin]) -> Budget:
    try:
        return Budget(**limits)
    except InvalidValueError as error:
        name = f"budget.{error.path.removeprefix('$.')}"
        raise SettingsError(f"{name}: {error.reason}", place=origins[name].location) from None


def _table(values: Mapping[str, Any], table: str) -> dict[str, Any]:
    """The values of a table, by the rest of their names."""
    start = f"{table}."
    return {
        name.removeprefix(start): value for name, value in values.items() if name.startswith(start)
    }
