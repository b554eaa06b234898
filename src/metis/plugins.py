"""Plugins: extensions by entry points of other packages, listed without importing them.

A package declares its extensions in its metadata, under one of the groups of `GROUPS`. A plugin is
imported when it is needed; one that fails is logged, listed by `metis plugins` and skipped. Plugins
cannot replace what metis itself has.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache, reduce
from importlib import import_module
from typing import Any, TypeVar

from msgspec import Struct

log = logging.getLogger("metis.plugins")

PROVIDERS = "metis.providers"
TOOLS = "metis.tools"
FORMATS = "metis.session_formats"
COMMANDS = "metis.commands"
TEMPLATES = "metis.templates"
PRICE_TABLES = "metis.price_tables"
HOOKS = "metis.hooks"

GROUPS: Mapping[str, str] = {
    PROVIDERS: "provider",
    TOOLS: "tool",
    FORMATS: "session format",
    COMMANDS: "command",
    TEMPLATES: "template",
    PRICE_TABLES: "price table",
    HOOKS: "hook",
}
"""The kind of extension of each group of entry points."""

SWITCH = "METIS_PLUGINS"
"""The environment variable that turns all plugins off with the value `off`."""

T = TypeVar("T")

# Most packages have no plugin of metis: a plain search is faster than parsing their files.
_MARK = b"[metis."
# Bounded, because any installed package can have such a file.
_MAX_BYTES = 1_000_000
_SECTION = re.compile(r"\[([\w.-]+)\]")
_OBJECT = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+))?\s*(?:\[.*\])?")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


class Plugin(Struct, frozen=True, kw_only=True):
    """One entry point of a package."""

    group: str
    name: str
    module: str
    attribute: str
    """The path of the object in its module; empty for the module itself."""
    package: str
    version: str

    @property
    def kind(self) -> str:
        """The kind of extension, as a text for users."""
        return GROUPS[self.group]

    @property
    def location(self) -> str:
        """The module and the path of the object in it."""
        return f"{self.module}:{self.attribute}" if self.attribute else self.module

    def load(self) -> Any:
        """Import and return the object; its module may raise any exception."""
        value: Any = import_module(self.module)
        return reduce(getattr, filter(None, self.attribute.split(".")), value)


_failures: dict[Plugin, str] = {}


def failure_of(plugin: Plugin) -> str | None:
    """Return why the last attempt to load a plugin failed; None if it did not."""
    return _failures.get(plugin)


def plugins(group: str) -> tuple[Plugin, ...]:
    """Return the plugins of a group, without importing them."""
    return tuple(plugin for plugin in installed_plugins() if plugin.group == group)


def load_plugins(
    group: str,
    read: Callable[[Plugin, Any], T],
    *,
    reserved: Collection[str] = (),
) -> dict[str, T]:
    """Import the plugins of a group; return the results of `read` by plugin name.

    `read` raises an error for an object of the wrong kind. A plugin that fails, or whose name is
    reserved or used by another, is logged and left out.
    """
    values: dict[str, T] = {}
    for plugin in plugins(group):
        if plugin.name in reserved or plugin.name in values:
            owner = "metis has" if plugin.name in reserved else "another package adds"
            _fail(plugin, f"{owner} a {plugin.kind} of that name")
            continue
        value = load_plugin(plugin, read)
        if value is not None:
            values[plugin.name] = value
    return values


def load_plugin(plugin: Plugin, read: Callable[[Plugin, Any], T]) -> T | None:
    """Import one plugin; return the result of `read`, or None if it failed."""
    try:
        value = read(plugin, plugin.load())
    # A module that raises any exception or calls `sys.exit` must not end metis.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - code of other packages raises anything
        _fail(plugin, f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])
        return None
    _failures.pop(plugin, None)
    return value


def _fail(plugin: Plugin, reason: str) -> None:
    _failures[plugin] = reason
    text = "the %s %r of %s %s is skipped: %s; `metis plugins` lists all plugins"
    log.warning(text, plugin.kind, plugin.name, plugin.package, plugin.version, reason)


def is_switched_off() -> bool:
    """Return whether the environment turns all plugins off."""
    return os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false")


@cache
def installed_plugins() -> tuple[Plugin, ...]:
    """Return every plugin of every installed package, in the order of the import path.

    Only the files with entry points are read: 110 packages take about one millisecond, where
    `importlib.metadata` takes forty, more than everything else before a first prompt.
    """
    if is_switched_off():
        return ()
    rows: list[Plugin] = []
    packages: set[str] = set()
    for directory in dict.fromkeys(sys.path):
        for path, package, version in sorted(_metadata_directories(directory or ".")):
            # Python imports the first of two copies of a package on the path, so only that counts.
            if package.lower() not in packages:
                packages.add(package.lower())
                rows += _read_entry_points(path, package, version)
    return tuple(rows)


def _metadata_directories(directory: str) -> Iterator[tuple[str, str, str]]:
    """Yield the path, the name and the version of each package that has entry points."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                package, _, version = entry.name.rpartition(".")[0].partition("-")
                yield f"{entry.path}/entry_points.txt", package.replace("_", "-"), version


def _read_entry_points(path: str, package: str, version: str) -> Iterator[Plugin]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a Path for each package costs as much as reading it
            data = file.read(_MAX_BYTES)
    except OSError:
        return
    if _MARK not in data:
        return
    group = ""
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if section := _SECTION.fullmatch(text):
            group = section[1]
        elif group in GROUPS:
            name, _, value = (part.strip() for part in text.partition("="))
            location = _OBJECT.fullmatch(value)
            if location and _NAME.fullmatch(name):
                yield Plugin(
                    group=group,
                    name=name,
                    module=location[1],
                    attribute=location[2] or "",
                    package=package,
                    version=version,
                )
