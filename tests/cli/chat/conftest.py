"""The real program in a terminal, with a home of its own and the simulator behind it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import metis
from terminal import Terminal

Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts `metis` in an empty folder; everything that was started is ended."""
    compiled = tmp_path_factory.getbasetemp() / "compiled"
    folder = tmp_path / "work"
    folder.mkdir()
    with ExitStack() as stack:

        def begin(
            *arguments: str,
            columns: int = 100,
            rows: int = 30,
            model: str = "sim:sonnet",
            variables: dict[str, str] | None = None,
        ) -> Terminal:
            command = [sys.executable, "-m", "metis", "-m", model, *arguments]
            environment = _environment(tmp_path, compiled) | (variables or {})
            return stack.enter_context(
                Terminal(
                    command, environment=environment, folder=folder, columns=columns, rows=rows
                )
            )

        yield begin


@pytest.fixture
def chat(start: Start) -> Terminal:
    """A chat whose prompt is there."""
    return ready(start())


def ready(terminal: Terminal) -> Terminal:
    """The terminal, once it asks for words."""
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
