"""Where the programs of this machine store their sessions, and how each resumes one."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from metis.canonical.errors import UnknownFormatError

Environment = Mapping[str, str]
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9-]")


class Program(NamedTuple):
    """A program: its format, the directory of its sessions, and where a new one goes."""

    name: str
    """The name for `metis handoff`."""
    format: str
    root: Callable[[Path, Environment], Path]
    """Returns the directory of the sessions, from the home directory and the environment."""
    pattern: str
    """Matches the session files below it."""
    place: Callable[[Path, str, str, datetime], Path] | None = None
    """Returns the file of a new session, from the directory, its id, its folder and the time."""
    resume: Sequence[str] = ()
    """The command that continues a session, without the id."""
    prepare: Callable[[Path, str], None] | None = None
    """Writes what the program needs beside the session, from the directory and the folder."""


def _directory(variable: str, *names: str, below: Sequence[str] = ()) -> Callable[..., Path]:
    def root(home: Path, environment: Environment) -> Path:
        base = environment.get(variable, "")
        return (Path(base) if base else home.joinpath(*names)).joinpath(*below)

    return root


def _claude_place(root: Path, foreign_id: str, cwd: str, _: datetime) -> Path:
    return root / claude_directory(cwd) / f"{foreign_id}.jsonl"


def claude_directory(cwd: str) -> str:
    """Return the name of the directory in which Claude Code stores the sessions of a folder."""
    return _NOT_IN_A_NAME.sub("-", cwd)


def _codex_place(root: Path, foreign_id: str, _: str, now: datetime) -> Path:
    local = now.astimezone()
    name = f"rollout-{local:%Y-%m-%dT%H-%M-%S}-{foreign_id}.jsonl"
    return root / f"{local:%Y}" / f"{local:%m}" / f"{local:%d}" / name


PROGRAMS: Sequence[Program] = (
    Program(
        "claude",
        "claude-code",
        _directory("CLAUDE_CONFIG_DIR", ".claude", below=("projects",)),
        "*/*.jsonl",
        _claude_place,
        ("claude", "--resume"),
    ),
    Program(
        "codex",
        "codex",
        _directory("CODEX_HOME", ".codex", below=("sessions",)),
        "*/*/*/rollout-*.jsonl*",
        _codex_place,
        ("codex", "resume"),
    ),
)
"""The programs whose sessions are on this machine."""


def program(name: str) -> Program:
    """Return a program by its name, or by that of its format.

    Raises:
        UnknownFormatError: sessions cannot be handed to it.
    """
    for one in PROGRAMS:
        if name in (one.name, one.format) and one.place is not None:
            return one
    names = [one.name for one in PROGRAMS if one.place is not None]
    raise UnknownFormatError(name, [*names, "metis"])


def session_files(home: Path, environment: Environment) -> Iterator[tuple[Program, Path]]:
    """Yield the session files of every program; nothing is read of them."""
    for one in PROGRAMS:
        root = one.root(home, environment)
        if not root.is_dir():
            continue
        for path in root.glob(one.pattern):
            if path.is_file() and not path.is_symlink():
                yield one, path


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet, so that a reader sees all of it or nothing.

    Raises:
        FileExistsError: another file has this name; it is not changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # A link fails if the name exists, where a rename would replace the file.
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
