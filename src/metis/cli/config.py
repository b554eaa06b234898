"""`metis config`: what is set, where each value comes from, and how to change it."""

import shlex
from decimal import Decimal
from typing import Any

import click
import msgspec

from metis import adapters
from metis.catalog.tables import catalog
from metis.cli.default_model import LOCAL, SIMULATOR
from metis.cli.text import fold, screen_width
from metis.settings import (
    SETTINGS,
    LoadedSettings,
    Origin,
    Setting,
    SettingsFile,
    UserPaths,
    check_file,
    find_setting,
    load,
)


def print_settings() -> int:
    """Print every setting as a line of the file, what it means, and where its value comes from."""
    places = UserPaths.from_environment()
    loaded = load(places=places)
    state = "" if places.settings.exists() else " (not there yet: `metis config set` makes it)"
    click.echo(click.style(f"# {places.settings}{state}", dim=True))
    for name, row in SETTINGS.items():
        click.echo()
        for line in fold(f"# {row.description}", screen_width()):
            click.echo(click.style(line if line.startswith("#") else f"# {line.strip()}", dim=True))
        for line in _lines(name, row, loaded):
            click.echo(line)
    return 0


def _lines(name: str, row: Setting, loaded: LoadedSettings) -> list[str]:
    if name.endswith(".*"):
        start = name.removesuffix("*")
        own = [each for each in loaded.values if each.startswith(start)]
        if own:
            return [_line(each, loaded.values[each], loaded.origins[each]) for each in own]
        return [click.style(f"# {start}NAME = {row.example}", dim=True)]
    if loaded.values[name] is None:
        variable = f"   # or ${row.variable}" if row.variable else ""
        return [click.style(f"# {name} = {row.example}{variable}", dim=True)]
    return [_line(name, loaded.values[name], loaded.origins[name])]


def _line(name: str, value: Any, origin: Origin) -> str:
    place = f": {origin.location}" if origin.location else ""
    return f"{name} = {spell(value)}" + click.style(f"   # {origin.source}{place}", dim=True)


def print_value(name: str) -> int:
    """Print one value as plain text; exits with 1 if it is not set."""
    find_setting(name, location="metis config get")
    value = load().values.get(name)
    if value is None:
        return 1
    click.echo(value if isinstance(value, str) else spell(value))
    return 0


def set_value(name: str, words: str | None) -> int:
    """Write a value into the file, or take it away; what cannot be used is not written."""
    row = find_setting(name, location="metis config set")
    file = SettingsFile.read(UserPaths.from_environment().settings)
    if words is None and name not in file.values:
        click.echo(f"{name} is not set in {file.path}", err=True)
        return 1
    if words is not None and row.name in ("model", "compact_with"):
        _check_model(words)
    changed = file.with_value(name, None if words is None else _spelled(row, words))
    check_file(changed)
    changed.write()
    click.echo(f"{changed.location(name) if words is not None else changed.path}: done", err=True)
    _tell_if_hidden(name, row)
    return 0


def print_paths() -> int:
    """Print where the files of this user are."""
    places = UserPaths.from_environment()
    rows = {
        "settings": places.settings,
        "keys": places.keys,
        "store": places.store_url,
        "trace": places.trace,
        "data": places.home,
    }
    for name, place in rows.items():
        click.echo(f"{name:<9} {place}")
    return 0


def spell(value: Any) -> str:
    """A value as TOML spells it."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str | bool | int | float):
        return msgspec.json.encode(value).decode()
    return "[" + ", ".join(map(spell, value)) + "]"


def _spelled(row: Setting, words: str) -> str:
    """The words of a command line as TOML: texts get quotes, lists are split."""
    if row.kind is str:
        return spell(words)
    if row.kind is bool:
        return words.lower()
    if row.kind in (int, float, Decimal):
        return words
    return spell(tuple(shlex.split(words.replace(",", " "))))


def _check_model(name: str) -> None:
    if name in (SIMULATOR, LOCAL) or name in adapters.names() or name.startswith(f"{SIMULATOR}:"):
        return
    if name.partition(":")[0] not in adapters.names():
        catalog().resolve(name)


def _tell_if_hidden(name: str, row: Setting) -> None:
    """Say so if the environment counts before what was just written."""
    origin = load().origins.get(name)
    if origin is not None and origin.source == "environment":
        click.echo(f"metis: ${row.variable} is set and counts before the file", err=True)
