"""`metis keys`: which providers have a key, and the file in which keys are kept; none is shown."""

import os
import sys
from pathlib import Path

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
from metis.cli.text import table, terminal_width
from metis.settings import UserPaths
from metis.settings.files import SettingsFile
from metis.transport.keys import Keys

_ONLY_OWNER = 0o600


def print_keys() -> int:
    """Print every provider that wants a key, and where its key comes from; exits with 1 if none."""
    places = UserPaths.from_environment()
    keys = Keys(file=places.keys)
    rows: list[tuple[str, str, str]] = []
    for profile in map(adapters.profile_of, adapters.names()):
        if profile.auth.variable is not None:
            found, place = keys.lookup(profile)
            rows.append((profile.name, place if found else "-", profile.auth.variable))
    for line in table(("provider", "key from", "variable"), rows, width=terminal_width()):
        click.echo(line)
    if sys.stdout.isatty():
        hint = f"metis keys set PROVIDER keeps one in {places.keys}"
        click.echo(click.style(hint, dim=True))
    return 0 if any(place != "-" for _, place, _ in rows) else 1


def set_key(provider: str) -> int:
    """Keep a key in the file that only its owner may read; it is typed unseen, or piped in."""
    profile = _profile(provider)
    key = _read(provider)
    path = UserPaths.from_environment().keys
    _write(_file(path).with_value(f"keys.{provider}", msgspec.json.encode(key).decode()))
    click.echo(f"The key for {provider} is kept in {path}.", err=True)
    variable = profile.auth.variable or ""
    if os.environ.get(variable):
        click.echo(f"${variable} is set, too, and counts before the file.", err=True)
    return 0


def remove_key(provider: str) -> int:
    """Take a key out of the file; exits with 1 if there was none."""
    _profile(provider)
    path = UserPaths.from_environment().keys
    file = _file(path)
    if f"keys.{provider}" not in file.values:
        click.echo(f"metis: there is no key for {provider} in {path}", err=True)
        return 1
    _write(file.with_value(f"keys.{provider}", None))
    click.echo(f"The key for {provider} is gone from {path}.", err=True)
    return 0


def _profile(provider: str) -> Profile:
    """A provider that wants a key."""
    wanting = [
        name for name in adapters.names() if adapters.profile_of(name).auth.variable is not None
    ]
    if provider not in wanting:
        raise UnknownAdapterError(provider, wanting)
    return adapters.profile_of(provider)


def _read(provider: str) -> str:
    if sys.stdin.isatty():
        key: str = click.prompt(f"Key for {provider} (it is not shown)", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    key = key.strip()
    if not key or not key.isprintable() or " " in key:
        raise InvalidValueError("this is no key: it has to be one line without blanks")
    return key


def _file(path: Path) -> SettingsFile:
    try:
        return SettingsFile.read(path)
    except SettingsError:
        # What a parser says may hold a piece of the file, and so of a key.
        raise KeyFileError(f"{path} cannot be read as TOML; mend it, or take it away") from None


def _write(file: SettingsFile) -> None:
    """Put the file on the disk, all or nothing, and never readable by others."""
    file.path.parent.mkdir(parents=True, exist_ok=True)
    beside = file.path.with_suffix(f".{os.getpid()}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _ONLY_OWNER), "w") as opened:  # noqa: PTH123 - of a descriptor
        opened.write(file.text)
    beside.replace(file.path)
