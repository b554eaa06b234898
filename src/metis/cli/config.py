"""`metis config` and `metis keys`: settings and API keys, their sources, and how to change them."""

import os
import re
import shlex
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click
import msgspec

from metis import adapters
from metis.adapters.profile import Profile
from metis.canonical.errors import (
    InvalidValueError,
    KeyFileError,
    SettingsError,
    UnknownAdapterError,
)
from metis.canonical.urls import without_login
from metis.catalog.tables import catalog
from metis.cli.default_model import LOCAL, SIMULATOR
from metis.cli.output import echo, write_data
from metis.cli.text import fold, screen_width, style, table, terminal_width
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
from metis.transport.keys import Keys

_PROVIDER_NAME = re.compile(r"[a-z-]{1,20}")


def print_settings() -> int:
    """Print every setting as a line of the file, with its description and its source."""
    paths = UserPaths.from_environment()
    loaded = load(paths=paths)
    echo(style(f"# {paths.settings}", dim=True))
    if not paths.settings.exists():
        echo(style("# (does not exist yet: `metis config set` creates it)", dim=True))
    for name, setting in SETTINGS.items():
        echo()
        for line in fold(f"# {setting.description}", screen_width()):
            echo(style(line if line.startswith("#") else f"# {line.strip()}", dim=True))
        for line in _lines(name, setting, loaded):
            echo(line)
    return 0


def _lines(name: str, setting: Setting, loaded: LoadedSettings) -> list[str]:
    if name.endswith(".*"):
        prefix = name.removesuffix("*")
        names = [key for key in loaded.values if key.startswith(prefix)]
        if names:
            return [_line(key, loaded.values[key], loaded.origins[key]) for key in names]
        return [style(f"# {prefix}NAME = {setting.example}", dim=True)]
    if loaded.values[name] is None:
        variable = f"   # or ${setting.variable}" if setting.variable else ""
        return [style(f"# {name} = {setting.example}{variable}", dim=True)]
    return [_line(name, loaded.values[name], loaded.origins[name])]


def _line(name: str, value: Any, origin: Origin) -> str:
    location = f": {origin.location}" if origin.location else ""
    return f"{name} = {without_login(_as_toml(value))}" + style(
        f"   # {origin.source}{location}", dim=True
    )


def print_value(name: str) -> int:
    """Print one value as plain text; the exit code is 1 if it is not set."""
    find_setting(name, location="metis config get")
    value = load().values.get(name)
    if value is None:
        return 1
    write_data(without_login(value if isinstance(value, str) else _as_toml(value)), nl=True)
    return 0


def set_value(name: str, text: str | tuple[str, ...] | None) -> int:
    """Write a value into the settings file, or remove it; an invalid value is not written."""
    setting = find_setting(name, location="metis config set")
    file = SettingsFile.read(UserPaths.from_environment().settings)
    if text is None and name not in file.values:
        echo(f"{name} is not set in {file.path}", err=True)
        return 1
    if isinstance(text, str) and setting.name in ("model", "compact_with"):
        _check_model(text)
    toml = None
    if text is not None:
        toml = _text_as_toml(setting, text) if isinstance(text, str) else _as_toml(text)
    changed = file.with_value(name, toml)
    # The whole file is checked: a value may be invalid only together with others.
    check_file(changed)
    changed.write()
    message = f"Removed {name} from" if toml is None else f"Set {name} = {without_login(toml)} in"
    if isinstance(text, tuple):
        message = f"Set {name} in"  # arguments of a command may contain keys
    echo(f"{message} {changed.path}", err=True)
    origin = load().origins.get(name)
    if origin is not None and origin.source == "environment":
        echo(f"metis: ${setting.variable} is set and takes precedence", err=True)
    return 0


def print_paths() -> int:
    """Print where the files of this user are."""
    paths = UserPaths.from_environment()
    rows = {
        "settings": paths.settings,
        "keys": paths.keys,
        "store": without_login(paths.store_url),
        "trace": paths.trace,
        "data": paths.home,
    }
    for name, path in rows.items():
        echo(f"{name:<9} {path}")
    return 0


def _as_toml(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str | bool | int | float):
        return msgspec.json.encode(value).decode()
    return "[" + ", ".join(map(_as_toml, value)) + "]"


def _text_as_toml(setting: Setting, text: str) -> str:
    """Return an argument of the command line as TOML: text is quoted, lists are split."""
    if setting.kind is str:
        return _as_toml(text)
    if setting.kind is bool:
        if text.lower() not in ("true", "false"):
            raise InvalidValueError(f"{setting.name}: expected true or false, got {text!r}")
        return text.lower()
    if setting.kind in (int, float, Decimal):
        try:
            return f"{Decimal(text):f}"
        except InvalidOperation:
            reason = f"{setting.name}: expected a number, got {text!r}"
            raise InvalidValueError(reason) from None
    return _as_toml(tuple(shlex.split(text.replace(",", " "))))


def _check_model(name: str) -> None:
    if name in (SIMULATOR, LOCAL) or name in adapters.names() or name.startswith(f"{SIMULATOR}:"):
        return
    if name.partition(":")[0] not in adapters.names():
        catalog().resolve(name)


def print_keys() -> int:
    """Print which providers have an API key, and from where; the exit code is 1 if none has."""
    paths = UserPaths.from_environment()
    keys = Keys(file=paths.keys)
    rows: list[tuple[str, str, str]] = []
    for profile in map(adapters.profile_of, adapters.names()):
        if profile.auth.variable is not None:
            values, location = keys.lookup(profile)
            rows.append((profile.name, location if values else "-", profile.auth.variable))
    for line in table(("provider", "key from", "variable"), rows, width=terminal_width()):
        echo(line)
    if sys.stdout.isatty():
        hint = f"metis keys set PROVIDER stores one in {paths.keys}"
        echo(style(hint, dim=True))
    return 0 if any(location != "-" for _, location, _ in rows) else 1


def set_key(provider: str) -> int:
    """Store an API key in the key file; it is prompted for without echo, or read from a pipe."""
    profile = _profile_with_key(provider)
    key = _read_key(provider)
    path = UserPaths.from_environment().keys
    toml = msgspec.json.encode(key).decode()
    _read_key_file(path).with_value(f"keys.{provider}", toml).write()
    echo(f"Stored the key for {provider} in {path}.", err=True)
    variable = profile.auth.variable or ""
    if os.environ.get(variable):
        echo(f"${variable} is also set and takes precedence over the file.", err=True)
    return 0


def remove_key(provider: str) -> int:
    """Remove an API key from the key file; the exit code is 1 if there was none."""
    _profile_with_key(provider)
    path = UserPaths.from_environment().keys
    file = _read_key_file(path)
    if f"keys.{provider}" not in file.values:
        echo(f"metis: there is no key for {provider} in {path}", err=True)
        return 1
    file.with_value(f"keys.{provider}", None).write()
    echo(f"Removed the key for {provider} from {path}.", err=True)
    return 0


def _profile_with_key(provider: str) -> Profile:
    """Return the profile of a provider that needs an API key."""
    names = [
        name for name in adapters.names() if adapters.profile_of(name).auth.variable is not None
    ]
    if provider in names:
        return adapters.profile_of(provider)
    # Other text may be a key in the wrong place, and a key must not be printed.
    if not _PROVIDER_NAME.fullmatch(provider):
        reason = f"the first argument is not a provider; providers: {', '.join(names)}"
        raise InvalidValueError(reason)
    raise UnknownAdapterError(provider, names)


def _read_key(provider: str) -> str:
    if sys.stdin.isatty():
        key: str = click.prompt(f"API key for {provider} (not shown)", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    key = key.strip()
    if not key or not key.isprintable() or " " in key:
        raise InvalidValueError("not an API key: expected one line without spaces")
    return key


def _read_key_file(path: Path) -> SettingsFile:
    try:
        return SettingsFile.read(path)
    except SettingsError:
        # The text of a parser error may contain a piece of the file, and so of a key.
        raise KeyFileError(f"{path} is not valid TOML; fix it, or delete it") from None
