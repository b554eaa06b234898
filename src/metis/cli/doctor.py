"""`metis doctor`: check the set-up, and say how to fix what is wrong."""

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

from msgspec import Struct

from metis import adapters
from metis.canonical.errors import MetisError
from metis.canonical.urls import without_login
from metis.catalog.tables import catalog, pricing_versions
from metis.cli.error_text import error_line
from metis.cli.local_model import DOWNLOAD_MB, MODEL_NAME, check_weights, is_installed
from metis.cli.local_servers import SERVER_NAMES, running_servers
from metis.cli.output import echo
from metis.cli.text import count, fold, screen_width, style
from metis.gateway.backlog import left_bytes
from metis.routing import RULES_PATH, RulesFile
from metis.settings import LoadedSettings, UserPaths, load
from metis.store import open as open_store
from metis.store.connection import sqlite_path
from metis.store.private_files import home_directory
from metis.transport.keys import Keys
from metis.version import SPEC_VERSION, __version__

_MARKS = {"good": ("✓", "green"), "absent": ("·", None), "bad": ("✗", "red")}
_OPTIONAL_PACKAGES = {
    "mcp": "tools of MCP servers",
    "psycopg": "stores in PostgreSQL",
    "keyring": "API keys in the system keyring",
}


class Finding(Struct, frozen=True):
    """The result of one check."""

    state: Literal["good", "absent", "bad"]
    text: str
    advice: str = ""
    """What to do about it."""


def print_findings(url: str | None) -> int:
    """Check everything and print the findings; the exit code is 1 if something is broken."""
    paths = UserPaths.from_environment()
    problem_count = 0
    for title, findings in _sections(paths, url):
        echo(style(title, bold=True))
        for finding in findings:
            _print(finding)
            problem_count += finding.state == "bad"
        echo()
    echo(f"{count(problem_count, 'problem')} found." if problem_count else "No problems found.")
    return 1 if problem_count else 0


def _print(finding: Finding) -> None:
    mark, colour = _MARKS[finding.state]
    rows = fold(without_login(finding.text), screen_width() - 4)
    echo(f"  {style(mark, fg=colour)} {rows[0]}")
    for row in rows[1:]:
        echo(f"    {row.strip()}")
    if finding.advice:
        for number, row in enumerate(fold(without_login(finding.advice), screen_width() - 6)):
            echo(f"    {'→' if number == 0 else ' '} {row.strip()}")


def _sections(paths: UserPaths, url: str | None) -> Iterator[tuple[str, list[Finding]]]:
    yield "Versions", list(_versions())
    yield "Settings", list(_settings(paths))
    try:
        loaded = load({"store": url}, paths=paths)
    except MetisError:
        return  # the section on settings shows the error; every later section needs the settings
    yield "API keys", list(_keys(Keys(file=paths.keys), paths.keys))
    yield "On this machine", asyncio.run(_local_models(loaded, paths.local))
    yield "Store", asyncio.run(_store(loaded.settings.store or paths.store_url))
    yield "This directory", list(_directory())


def _versions() -> Iterator[Finding]:
    yield Finding("good", f"metis {__version__}, canonical form {SPEC_VERSION}")
    system = f"{platform.system()} {platform.release()}"
    yield Finding(
        "good", f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {system}"
    )
    yield Finding("good", f"prices of {pricing_versions()[-1]}, {len(catalog().entries)} models")
    for name, purpose in _OPTIONAL_PACKAGES.items():
        if importlib.util.find_spec(name) is None:
            yield Finding("absent", f"{name} is not installed (optional: {purpose})")
        else:
            yield Finding("good", f"{name} {importlib.metadata.version(name)}: {purpose}")


def _settings(paths: UserPaths) -> Iterator[Finding]:
    try:
        loaded = load(paths=paths)
    except MetisError as error:
        yield Finding("bad", error_line(error), "fix or delete that line")
        return
    if not paths.settings.exists():
        yield Finding("absent", f"no {paths.settings}: the defaults are used")
    for name, origin in loaded.origins.items():
        if origin.source != "default":
            yield Finding("good", f"{name} is set by {origin.location}")


def _keys(keys: Keys, file: Path) -> Iterator[Finding]:
    """Yield which providers have a key and from where, but never a key."""
    missing: list[str] = []
    for name in adapters.names():
        profile = adapters.profile_of(name)
        if profile.auth.variable is None:
            continue
        try:
            values, location = keys.lookup(profile)
        except MetisError as error:
            yield Finding("bad", error_line(error))
            return
        if values:
            key_count = f" ({len(values)} keys)" if len(values) > 1 else ""
            yield Finding("good", f"{name}: from {location}{key_count}")
        else:
            missing.append(profile.auth.variable)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        advice = f"export one of them, or store a key in {file} with `metis keys set openai`"
        yield Finding("absent", f"not set: {names}", advice)


async def _local_models(loaded: LoadedSettings, local: Path) -> list[Finding]:
    base_urls = loaded.settings.base_urls
    servers = {server.adapter: server for server in await running_servers(base_urls)}
    findings: list[Finding] = []
    for name, title in SERVER_NAMES.items():
        server = servers.get(name)
        url = base_urls.get(name) or adapters.profile_of(name).base_url
        if server is None:
            findings.append(Finding("absent", f"{title} is not running at {url}"))
        elif not server.models:
            findings.append(Finding("absent", f"{title} is running at {url}, but has no model"))
        else:
            models = count(len(server.models), "model")
            findings.append(Finding("good", f"{title} at {url}: {models}, such as {server.model}"))
    return [*findings, _small_model(local)]


def _small_model(local: Path) -> Finding:
    if not is_installed(local):
        advice = f"`metis local setup` downloads it, {DOWNLOAD_MB} MB"
        return Finding("absent", f"{MODEL_NAME} is not installed", advice)
    try:
        check_weights(local)
    except MetisError as error:
        return Finding("bad", error_line(error))
    return Finding("good", f"{MODEL_NAME} in {local}: `metis -m local`")


async def _store(url: str) -> list[Finding]:
    is_file = url.startswith("sqlite:")
    if is_file and not sqlite_path(url).exists():
        path = sqlite_path(url)
        return [Finding("absent", f"no {path} yet: the first conversation creates it")]
    # A short wait: a store that another process has locked is a finding, not a reason to hang.
    try:
        async with open_store(url, recover=False, wait_s=2.0) as store:
            sessions = count(len(await store.sessions(100_000)), "session")
            size = f", {sqlite_path(url).stat().st_size / 1e6:.1f} MB" if is_file else ""
            text = f"{store.name}: {sessions}, schema version {await store.version()}{size}"
            return [Finding("good", text), *_unstored_exchanges(url)]
    except MetisError as error:
        return [Finding("bad", error_line(error))]


def _unstored_exchanges(url: str) -> Iterator[Finding]:
    """Yield a finding for exchanges of a gateway that was killed before it stored them."""
    size = left_bytes(home_directory(os.environ) / "spool", url)
    if size:
        text = f"{size / 1e6:.1f} MB of exchanges of a gateway that ended are not stored yet"
        yield Finding("absent", text, "the next `metis serve` stores them")


def _directory() -> Iterator[Finding]:
    workspace = Path.cwd()
    rules = RulesFile(workspace / RULES_PATH, catalog()).read()
    if rules.problem is not None:
        advice = "fix it; until then no rule is used"
        yield Finding("bad", error_line(rules.problem), advice)
    elif (workspace / RULES_PATH).exists():
        yield Finding("good", f"{RULES_PATH}: the routing rules are valid")
    else:
        yield Finding("absent", f"no {RULES_PATH}: no routing rules in this directory")
    if (workspace / "AGENTS.md").exists():
        yield Finding("good", "AGENTS.md is part of the system prompt")
    if not os.access(workspace, os.W_OK):
        yield Finding("absent", "this directory is read-only: tools cannot write here")
    encoding = (sys.stdout.encoding or "").lower()
    if encoding not in ("utf-8", "utf8"):
        advice = "set LANG to a UTF-8 locale, such as C.UTF-8"
        yield Finding("bad", f"the encoding of the terminal is {encoding or 'unknown'}", advice)
