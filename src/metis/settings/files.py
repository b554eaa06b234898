"""The directories and files of a user, and the settings file."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from metis.canonical.errors import SettingsError
from metis.store.store import default_url

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\-]+|\"[^\"]*\"|'[^']*')\s*=")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class SettingsFile(Struct, frozen=True, kw_only=True):
    """The text of a file, and its values by their full names."""

    path: Path
    text: str = ""
    values: Mapping[str, Any] = {}

    @classmethod
    def read(cls, path: Path) -> "SettingsFile":
        """The file at a path; one that is not there is empty."""
        try:
            return cls.parse(path, path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(path=path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
            raise SettingsError(f"the file cannot be read: {reason}", place=str(path)) from None

    @classmethod
    def parse(cls, path: Path, text: str) -> "SettingsFile":
        """The file that a text makes."""
        try:
            tree = tomllib.loads(text, parse_float=Decimal)
        except tomllib.TOMLDecodeError as error:
            reason, line = _fault(str(error))
            told = f"this is no TOML: {reason}; words have to stand in quotes"
            raise SettingsError(told, place=f"{path}:{line}") from None
        return cls(path=path, text=text, values=dict(_flat(tree)))

    def location(self, name: str) -> str:
        """The file and the line where a value stands."""
        line = _lines(self.text).get(name)
        return f"{self.path}:{line}" if line else str(self.path)

    def with_value(self, name: str, spelled: str | None) -> "SettingsFile":
        """The same file with a value as TOML spells it; None takes it away. Comments stay."""
        lines = self.text.splitlines()
        at = _lines(self.text).get(name)
        if at is not None:
            lines[at - 1 : at] = [] if spelled is None else [_changed(lines[at - 1], spelled)]
        elif spelled is not None:
            lines = _added(lines, name, spelled)
        changed = SettingsFile.parse(self.path, "\n".join(lines) + "\n" if lines else "")
        others = {each: value for each, value in self.values.items() if each != name}
        rest = {each: value for each, value in changed.values.items() if each != name}
        if rest != others or (name in changed.values) is (spelled is None):
            reason = f"{name} stands there in a way that only you can change: use an editor"
            raise SettingsError(reason, place=self.location(name))
        return changed

    def write(self) -> None:
        """Put the text on the disk, all or nothing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(f".{os.getpid()}.new")
        beside.write_text(self.text, encoding="utf-8")
        beside.replace(self.path)


def _fault(text: str) -> tuple[str, int]:
    """What a parser says, and the line that it names."""
    reason, _, place = text.partition(" (at ")
    line = re.match(r"line (\d+)", place)
    return reason, int(line[1]) if line else 1


def _flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by full names: one level of tables, as all settings have."""
    for name, value in tree.items():
        if isinstance(value, dict):
            table = cast("dict[str, Any]", value)
            yield from ((f"{name}.{key}", each) for key, each in table.items())
        else:
            yield name, value


def _lines(text: str) -> dict[str, int]:
    """The line of every `key = value`."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = f"{_plain(header[1])}."
        elif key := _KEY.match(line):
            found.setdefault(f"{table}{_plain(key[1])}", number)
    return found


def _plain(key: str) -> str:
    return key[1:-1] if key[:1] in "\"'" else key


def _changed(line: str, spelled: str) -> str:
    key = _KEY.match(line)
    assert key is not None  # noqa: S101 - the line was found by this pattern
    return f"{key[0]} {spelled}"


def _added(lines: list[str], name: str, spelled: str) -> list[str]:
    """The lines with one more: before all tables, or behind the header of its own."""
    table, dot, key = name.partition(".")
    if not dot:
        first = next((n for n, line in enumerate(lines) if _HEADER.match(line)), len(lines))
        return [*lines[:first], f"{name} = {spelled}", *lines[first:]]
    spelled_key = key if _BARE.fullmatch(key) else f'"{key}"'
    line = f"{spelled_key} = {spelled}"
    for number, each in enumerate(lines):
        header = _HEADER.match(each)
        if header and _plain(header[1]) == table:
            return [*lines[: number + 1], line, *lines[number + 1 :]]
    return [*lines, *([""] if lines else []), f"[{table}]", line]


class UserPaths(Struct, frozen=True, kw_only=True):
    """Where metis keeps what belongs to a user."""

    home: Path
    """The folder of data: the store, the trace, memory, skills and models of one's own."""
    settings: Path
    """The file of settings."""
    store_url: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "UserPaths":
        """The places of a user: all under `$METIS_HOME` if it is set, else those of XDG."""
        given = environment.get("METIS_HOME")
        if given:
            home = folder = Path(given)
        else:
            home = _xdg(environment, "XDG_DATA_HOME", ".local/share")
            folder = _xdg(environment, "XDG_CONFIG_HOME", ".config")
        return cls(home=home, settings=folder / "config.toml", store_url=default_url(environment))

    @property
    def keys(self) -> Path:
        """The file of keys, which only its owner may read."""
        return self.settings.parent / "keys.toml"

    @property
    def trace(self) -> Path:
        """The file of events: what happened, without a word of what was said."""
        return self.home / "trace.db"

    @property
    def local(self) -> Path:
        """The folder of the model that runs on this machine."""
        return self.home / "local"


def _xdg(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    return Path(environment.get(variable) or Path.home() / usual) / "metis"
