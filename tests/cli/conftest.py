"""Shared fixtures of command line tests: a user without keys or servers."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metis
from metis import adapters

FORKED = Path(__file__).with_name("forked.py")


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the socket of a process that has `metis` loaded and forks for each run."""
    path = tmp_path_factory.mktemp("forked") / "socket"
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, str(FORKED), "serve", str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(metis.__file__).parents[1])},
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield path
        server.terminate()


@pytest.fixture(autouse=True)
def restored_log() -> Iterator[None]:
    """Undo the log configuration of `--verbose`, which outlives a command run by a test."""
    log = logging.getLogger("metis")
    handlers, level = list(log.handlers), log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of a user without keys or servers, in an empty directory."""
    for name in adapters.names():
        monkeypatch.delenv(adapters.get(name).profile.auth.variable or "METIS_MODEL", raising=False)
    for name in ("METIS_STORE", "METIS_TOOLS", "METIS_BUDGET_DAY_USD"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    dead = ("ollama", "lmstudio", "llamacpp")
    lines = "".join(f'{name} = "http://127.0.0.1:9"\n' for name in dead)
    (folder / "config.toml").write_text(f"[base_urls]\n{lines}")
    monkeypatch.setenv("METIS_HOME", str(folder))
    # Commands that look for sessions of other programs, or write them, use this home only.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder
