"""The real program in a terminal, with a separate home and a loopback provider."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import metis
from metis import adapters
from terminal import Terminal

Start = Callable[..., Terminal]


@pytest.fixture(scope="session")
def provider() -> Iterator[str]:
    """Yield the address of a provider: the simulator in another process."""
    command = [sys.executable, "-m", "metis", "sim", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603 - our own interpreter
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert match is not None
        yield match[0]
        process.terminate()


@pytest.fixture
def start(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, provider: str, fork_server: Path
) -> Iterator[Start]:
    """Yield a function that starts `metis` in an empty directory; all processes are ended.

    With environment variables it is a new process, because some are read while modules are loaded.
    """
    compiled = Path(sys.pycache_prefix or tmp_path_factory.getbasetemp() / "compiled")
    folder, home = tmp_path / "work", tmp_path / "metis"
    folder.mkdir()
    home.mkdir()
    urls = "".join(f'{name} = "{provider}"\n' for name in adapters.names())
    (home / "config.toml").write_text(f"[base_urls]\n{urls}")
    with ExitStack() as stack:

        def begin(
            *arguments: str,
            columns: int = 100,
            rows: int = 30,
            model: str = "sonnet",
            variables: dict[str, str] | None = None,
            colours: dict[str, str] | None = None,
        ) -> Terminal:
            command = [sys.executable, "-m", "metis", "-m", model, *arguments]
            environment = _environment(tmp_path, compiled) | (variables or {})
            return stack.enter_context(
                Terminal(
                    command,
                    environment=environment,
                    folder=folder,
                    columns=columns,
                    rows=rows,
                    fork_server=None if variables else fork_server,
                    colours=colours,
                )
            )

        yield begin


@pytest.fixture
def chat(start: Start) -> Terminal:
    """Yield a chat that shows its prompt."""
    return ready(start())


def ready(terminal: Terminal) -> Terminal:
    """Return the terminal, once it shows its prompt."""
    terminal.wait_for("session")
    return terminal


def _environment(home: Path, compiled: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "METIS_HOME": str(home / "metis"),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(metis.__file__).parents[1]),
        "PYTHONPYCACHEPREFIX": str(compiled),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
