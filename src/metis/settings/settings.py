"""Settings: every value that holds, and where it comes from."""

import os
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec
from msgspec import Struct

from metis.adapters import names as adapter_names
from metis.canonical.errors import InvalidValueError, SettingsError
from metis.events.budget import Budget
from metis.settings.file import SettingsFile
from metis.settings.places import Places
from metis.settings.setting import SETTINGS, Setting, find_setting
from metis.settings.thinking import read_thinking

Source = Literal["option", "environment", "file", "default"]
"""What sets a value; the first that does wins."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Origin(Struct, frozen=True):
    """Where a value comes from: an option, a variable, a line of a file, or nobody has set it."""

    source: Source
    place: str = ""


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


class Loaded(Struct, frozen=True, kw_only=True):
    """The settings, and where each comes from."""

    settings: Settings
    values: Mapping[str, Any]
    """Every value by its full name, such as `budget.day_usd`."""
    origins: Mapping[str, Origin]


def load(
    options: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    places: Places | None = None,
) -> Loaded:
    """All settings: an option counts before the environment, that before the file.

    Raises:
        SettingsError: a value or a name that cannot be; it says where that stands.
    """
    values = {name: row.default for name, row in SETTINGS.items() if not name.endswith(".*")}
    origins = dict.fromkeys(values, Origin("default"))
    file = SettingsFile.read((places or Places.of(environment)).settings)
    for name, value, origin in (
        *_filed(file),
        *_from_environment(environment),
        *_from_options(options or {}),
    ):
        values[name], origins[name] = value, origin
    return Loaded(settings=_settings(values, origins), values=values, origins=origins)


def check_file(file: SettingsFile) -> None:
    """Raise a SettingsError if a value of a file cannot be used."""
    found = [(name, value, origin) for name, value, origin in _filed(file)]
    values = {name: value for name, value, _ in found}
    _budget(_table(values, "budget"), {name: origin for name, _, origin in found})


def checked(row: Setting, name: str, value: Any, *, place: str) -> Any:
    """A value of the right type, or an error that says what is wanted."""
    try:
        found = msgspec.convert(value, row.kind, strict=row.kind is not Decimal)
    except msgspec.ValidationError:
        told = f"{name} has to be {_WANTED[row.kind]}, such as {row.example}"
        raise SettingsError(told, place=place) from None
    if name == "thinking":
        _check_thinking(found, place)
    if name.startswith("base_urls."):
        _check_address(name.partition(".")[2], found, place)
    return found


def _check_thinking(words: str, place: str) -> None:
    try:
        read_thinking(words)
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
        place = file.place(name)
        row = find_setting(name, place=place)
        number = float(value) if row.kind is float and isinstance(value, Decimal) else value
        yield name, checked(row, name, number, place=place), Origin("file", place)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Any, Origin]]:
    for name, row in SETTINGS.items():
        text = environment.get(row.variable) if row.variable else None
        if row.variable is not None and text:
            place = f"${row.variable}"
            value = _switch(text, name, place) if row.kind is bool else text
            yield name, checked(row, name, value, place=place), Origin("environment", place)


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
        raise SettingsError(f"{name}: {error.reason}", place=origins[name].place) from None


def _table(values: Mapping[str, Any], table: str) -> dict[str, Any]:
    """The values of a table, by the rest of their names."""
    start = f"{table}."
    return {
        name.removeprefix(start): value for name, value in values.items() if name.startswith(start)
    }
