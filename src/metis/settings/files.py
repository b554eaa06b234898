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
from metis.canonical.urls import has_login, without_login
from metis.store.connection import default_url
from metis.store.private_files import PRIVATE_FILE, make_private_directory, make_private_file

# Only for the line numbers of errors: tomllib parses the file and does not report them.
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\-]+|\"[^\"]*\"|'[^']*')\s*=")


class UserPaths(Struct, frozen=True, kw_only=True):
    """The paths of a user's data and settings."""

    home: Path
    """The data directory: the store, the trace, memory, skills and local models."""
    settings: Path
    """The settings file."""
    store_url: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "UserPaths":
        """Return the paths: all under `$METIS_HOME` if it is set, else the XDG directories."""
        metis_home = environment.get("METIS_HOME")
        if metis_home:
            home = config = Path(metis_home)
        else:
            home = _xdg(environment, "XDG_DATA_HOME", ".local/share")
            config = _xdg(environment, "XDG_CONFIG_HOME", ".config")
        return cls(home=home, settings=config / "config.toml", store_url=default_url(environment))

    @property
    def keys(self) -> Path:
        """The file of API keys, which only its owner may read."""
        return self.settings.parent / "keys.toml"

    @property
    def trace(self) -> Path:
        """The file of bus events, which contain no text of a conversation."""
        return self.home / "trace.db"

    @property
    def local(self) -> Path:
        """The directory of the model that runs on this machine."""
        return self.home / "local"


def _xdg(environment: Mapping[str, str], variable: str, default: str) -> Path:
    return Path(environment.get(variable) or Path.home() / default) / "metis"


class SettingsFile(Struct, frozen=True, kw_only=True):
    """A TOML file with settings: its text, and its values by their full names."""

    path: Path
    text: str = ""
    values: Mapping[str, Any] = {}

    @classmethod
    def read(cls, path: Path) -> "SettingsFile":
        """Read a file; a missing one is empty."""
        try:
            text = path.read_text(encoding="utf-8")
            # A file that the user wrote may be readable for others although it has a login.
            if has_login(text):
                make_private_file(path)
            return cls.parse(path, text)
        except FileNotFoundError:
            return cls(path=path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise SettingsError(f"the file cannot be read: {reason}", place=str(path)) from None

    @classmethod
    def parse(cls, path: Path, text: str) -> "SettingsFile":
        """Parse the text of a file."""
        try:
            tree = tomllib.loads(text, parse_float=Decimal)
        except tomllib.TOMLDecodeError as error:
            reason, line = _split_error(str(error))
            fault = f'invalid TOML: {reason}; text values need quotes, e.g. model = "sim"'
            raise SettingsError(fault, place=f"{path}:{line}") from None
        return cls(path=path, text=text, values=dict(_flatten(tree)))

    def location(self, name: str) -> str:
        """Return the path and the line of a value."""
        line = _line_numbers(self.text).get(name)
        return f"{self.path}:{line}" if line else str(self.path)

    def with_value(self, name: str, toml_value: str | None) -> "SettingsFile":
        """Return the file with a value in TOML syntax set, or removed if None; comments stay."""
        # Imported here, because it takes longer than the rest of the settings and only edits
        # need it.
        import tomlkit  # noqa: PLC0415
        from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

        location = self.location(name)
        try:
            value = None if toml_value is None else tomlkit.value(toml_value)
        except TOMLKitError:
            shown = without_login(toml_value or "")
            fault = f'invalid TOML: {shown}; text values need quotes, e.g. model = "sim"'
            raise SettingsError(fault, place=location) from None
        table_name, dot, key = name.partition(".")
        try:
            document = cast("dict[str, Any]", tomlkit.parse(self.text))
            if dot and value is not None and table_name not in document:
                document[table_name] = tomlkit.table()
            table = cast("dict[str, Any]", document.get(table_name, {})) if dot else document
            if value is None:
                table.pop(key if dot else name, None)
            else:
                table[key if dot else name] = value
            return SettingsFile.parse(self.path, tomlkit.dumps(document))
        except (TOMLKitError, TypeError, AttributeError):
            # For example `budget = 3` instead of a table.
            fault = f"{name} cannot be set in this file: use an editor to change {table_name!r}"
            raise SettingsError(fault, place=location) from None

    def write(self) -> None:
        """Write the file atomically; only its owner may read it, because it may contain keys."""
        make_private_directory(self.path.parent)
        # Renamed into place, so that a crash leaves the old file. The process id in the name
        # separates two writers.
        new_path = self.path.with_suffix(f".{os.getpid()}.new")
        # The mode is set at creation, so that others can never read the file.
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
            file.write(self.text)
        new_path.replace(self.path)


def _split_error(text: str) -> tuple[str, int]:
    """Return the reason and the line of a parser error."""
    reason, _, position = text.partition(" (at ")
    line = re.match(r"line (\d+)", position)
    return reason, int(line[1]) if line else 1


def _flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield values by full names; settings have one level of tables."""
    for name, value in tree.items():
        if isinstance(value, dict):
            table = cast("dict[str, Any]", value)
            yield from ((f"{name}.{key}", item) for key, item in table.items())
        else:
            yield name, value


def _line_numbers(text: str) -> dict[str, int]:
    """Return the line number of every `key = value`; TOML libraries do not report it."""
    numbers: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = f"{_unquoted(header[1])}."
        elif key := _KEY.match(line):
            numbers.setdefault(f"{table}{_unquoted(key[1])}", number)
    return numbers


def _unquoted(key: str) -> str:
    return key[1:-1] if key[:1] in "\"'" else key
