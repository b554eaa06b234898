"""`metis plugins`: what other packages add to metis, and which of it fails to load."""

import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct

from metis import adapters
from metis.catalog.tables import added_price_tables
from metis.cli.output import echo, echo_json
from metis.cli.templates import template_names
from metis.cli.text import escape_controls, style, table
from metis.events.bus import plugin_hooks
from metis.interchange.registry import session_formats
from metis.plugins import GROUPS, SWITCH, Plugin, failure_of, installed_plugins, is_switched_off
from metis.tools import Registry, plugin_tools
from metis.tools.builtin import BUILTINS

_LOADERS: tuple[Callable[[], object], ...] = (
    adapters.names,
    lambda: plugin_tools(reserved=tuple(Registry(*BUILTINS))),
    session_formats,
    template_names,
    added_price_tables,
    plugin_hooks,
)
"""Functions that load the plugins of each group; the command group loads commands."""


class PluginRow(Struct, frozen=True, kw_only=True):
    """A plugin as `--json` prints it."""

    kind: str
    name: str
    package: str
    version: str
    location: str
    error: str | None


def print_plugins(load_commands: Callable[[], object], *, as_json: bool) -> int:
    """Load every plugin and print the list; the exit code is 1 if one cannot be used."""
    log = logging.getLogger("metis.plugins")
    log.setLevel(logging.CRITICAL)  # the list shows the errors that would be logged
    try:
        for load in (load_commands, *_LOADERS):
            load()
    finally:
        log.setLevel(logging.NOTSET)
    rows = [_row(plugin) for plugin in installed_plugins()]
    if as_json:
        echo_json(msgspec.json.encode(rows))
    elif not rows:
        _print_none()
    else:
        cells = [(row.kind, row.name, f"{row.package} {row.version}", row.location) for row in rows]
        head, *lines = table(("adds", "name", "package", "location"), cells)
        echo(f"  {head}")
        for row, line in zip(rows, lines, strict=True):
            mark = style("✗", fg="red") if row.error else style("✓", fg="green")
            echo(f"{mark} {line}")
            if row.error:
                echo(f"    → {escape_controls(row.error)}")
    return 1 if any(row.error for row in rows) else 0


def _print_none() -> None:
    if is_switched_off():
        echo(f"{SWITCH} turns plugins off.", err=True)
    else:
        echo("No installed package adds anything to metis. Packages may add:", err=True)
        echo(f"{', '.join(GROUPS.values())}.", err=True)


def _row(plugin: Plugin) -> PluginRow:
    return PluginRow(
        kind=plugin.kind,
        name=plugin.name,
        package=plugin.package,
        version=plugin.version,
        location=plugin.location,
        error=failure_of(plugin),
    )
