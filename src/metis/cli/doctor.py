"""`metis doctor`: what is there, what is missing, and what to do about it."""

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from metis import adapters, store
from metis.canonical.errors import MetisError
from metis.catalog.tables import catalog, pricing_versions
from metis.cli.error_text import error_line
from metis.cli.local_model import MODEL_NAME, check_weights, is_installed
from metis.cli.local_servers import SERVER_NAMES, running_servers
from metis.cli.render import count
from metis.cli.text import fold, screen_width
from metis.routing.policy import RULES_PATH, RulesFile
from metis.settings import LoadedSettings, UserPaths, load
from metis.store.store import sqlite_path
from metis.transport.keys import Keys
from metis.version import SPEC_VERSION, __version__

_MARKS = {"good": ("✓", "green"), "absent": ("·", None), "bad": ("✗", "red")}
_OPTIONAL = {
    "mcp": "tools of MCP servers",
    "psycopg": "stores in PostgreSQL",
    "keyring": "keys in the keyring of the system",
}


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    state: Literal["good", "absent", "bad"]
    text: str
    advice: str = ""
    """What to do about it."""


def print_findings(url: str | None) -> int:
    """Look at everything, print what was found; exits with 1 if something is broken."""
    places = UserPaths.from_environment()
    findings: list[Finding] = []
    for title, found in _sections(places, url):
        click.secho(title, bold=True)
        for finding in found:
            findings.append(finding)
            _print(finding)
        click.echo()
    broken = sum(finding.state == "bad" for finding in findings)
    click.echo(f"{count(broken, 'fault')} to mend." if broken else "Nothing is broken.")
    return 1 if broken else 0


def _print(finding: Finding) -> None:
    mark, colour = _MARKS[finding.state]
    rows = fold(finding.text, screen_width() - 4)
    click.echo(f"  {click.style(mark, fg=colour)} {rows[0]}")
    for row in rows[1:]:
        click.echo(f"    {row.strip()}")
    if finding.advice:
        for number, row in enumerate(fold(finding.advice, screen_width() - 6)):
            click.echo(f"    {'→' if number == 0 else ' '} {row.strip()}")


def _sections(places: UserPaths, url: str | None) -> Iterator[tuple[str, list[Finding]]]:
    yield "Versions", list(_versions())
    settings = list(_settings(places))
    yield "Settings", settings
    try:
        loaded = load({"store": url}, places=places)
    except MetisError:
        return
    yield "Keys", list(_keys(Keys(file=places.keys), places.keys))
    yield "On this machine", asyncio.run(_servers(loaded, places.local))
    yield "Store", asyncio.run(_store(loaded.settings.store or places.store_url))
    yield "This folder", list(_folder())


def _versions() -> Iterator[Finding]:
    yield Finding("good", f"metis {__version__}, canonical form {SPEC_VERSION}")
    system = f"{platform.system()} {platform.release()}"
    yield Finding(
        "good", f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {system}"
    )
    yield Finding("good", f"prices of {pricing_versions()[-1]}, {len(catalog().entries)} models")
    for name, purpose in _OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            yield Finding("absent", f"{name} is not installed; it is for {purpose}")
        else:
            yield Finding("good", f"{name} {importlib.metadata.version(name)}: {purpose}")


def _settings(places: UserPaths) -> Iterator[Finding]:
    try:
        loaded = load(places=places)
    except MetisError as error:
        yield Finding("bad", error_line(error), "mend that line, or take it away")
        return
    if not places.settings.exists():
        yield Finding("absent", f"{places.settings} is not there: the defaults hold")
    for name, origin in loaded.origins.items():
        if origin.source != "default":
            yield Finding("good", f"{name} is set by {origin.location}")


def _keys(keys: Keys, file: Path) -> Iterator[Finding]:
    """Which providers have a key, and from where; never the key."""
    missing: list[str] = []
    for name in adapters.names():
        profile = adapters.profile_of(name)
        if profile.auth.variable is None:
            continue
        try:
            found, place = keys.lookup(profile)
        except MetisError as error:
            yield Finding("bad", error_line(error))
            return
        if found:
            several = f" ({len(found)} keys)" if len(found) > 1 else ""
            yield Finding("good", f"{name}: from {place}{several}")
        else:
            missing.append(profile.auth.variable)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        advice = f"export one of them, or `metis keys set openai` keeps one in {file}"
        yield Finding("absent", f"not set: {names}", advice)


async def _servers(loaded: LoadedSettings, local: Path) -> list[Finding]:
    found = {server.adapter: server for server in await running_servers(loaded.settings.base_urls)}
    findings: list[Finding] = []
    for name, title in SERVER_NAMES.items():
        server = found.get(name)
        url = loaded.settings.base_urls.get(name) or adapters.profile_of(name).base_url
        if server is None:
            findings.append(Finding("absent", f"{title} does not answer at {url}"))
        elif not server.models:
            findings.append(Finding("absent", f"{title} answers at {url}, and has no model"))
        else:
            models = count(len(server.models), "model")
            findings.append(Finding("good", f"{title} at {url}: {models}, such as {server.model}"))
    return [*findings, _small_model(local)]


def _small_model(local: Path) -> Finding:
    if not is_installed(local):
        return Finding(
            "absent", f"{MODEL_NAME} was not fetched", "`metis local setup` does, 127 MB"
        )
    try:
        check_weights(local)
    except MetisError as error:
        return Finding("bad", error_line(error))
    return Finding("good", f"{MODEL_NAME} in {local}: `metis -m local`")


async def _store(url: str) -> list[Finding]:
    if url.startswith("sqlite:") and not sqlite_path(url).exists():
        return [Finding("absent", f"{sqlite_path(url)} is not there yet: the first talk makes it")]
    try:
        async with store.open(url, recover=False, wait_s=2.0) as keep:
            sessions = await keep.sessions(100_000)
            version = await keep.version()
            told = f"{keep.name}: {count(len(sessions), 'session')}, tables of version {version}"
            return [Finding("good", told + _size(url))]
    except MetisError as error:
        return [Finding("bad", error_line(error))]


def _size(url: str) -> str:
    if not url.startswith("sqlite:"):
        return ""
    return f", {sqlite_path(url).stat().st_size / 1e6:.1f} MB"


def _folder() -> Iterator[Finding]:
    here = Path.cwd()
    rules = RulesFile(here / RULES_PATH, catalog()).read()
    if rules.problem is not None:
        yield Finding(
            "bad", error_line(rules.problem), "mend it; until then the rules are not used"
        )
    elif (here / RULES_PATH).exists():
        yield Finding("good", f"{RULES_PATH}: the rules can be used")
    else:
        yield Finding("absent", f"no {RULES_PATH}: no rule chooses models here")
    if (here / "AGENTS.md").exists():
        yield Finding("good", "AGENTS.md is told to models first")
    if not os.access(here, os.W_OK):
        yield Finding("absent", "this folder may only be read: tools cannot write here")
    encoding = (sys.stdout.encoding or "").lower()
    if encoding not in ("utf-8", "utf8"):
        advice = "set LANG to a UTF-8 locale, such as C.UTF-8"
        yield Finding("bad", f"the terminal speaks {encoding or 'nothing'}", advice)
