"""Where the programs of this machine store their sessions, and how each resumes one."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from metis.canonical.errors import UnknownFormatError
from metis.canonical.ids import new_ulid
from metis.interchange.source import read_small_file

Environment = Mapping[str, str]
_GEMINI_MARKER = ".project_root"
_MAX_MARKER = 4096
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
    new_path: Callable[[Path, str, str, datetime], Path] | None = None
    """Returns the file of a new session, from the directory, its id, its folder and the time."""
    resume: Sequence[str] = ()
    """The command that continues a session, with `{id}` and `{path}` for those of the session."""
    prepare: Callable[[Path, str], None] | None = None
    """Writes other files that the program needs, from the directory and the folder."""
    new_id: Callable[[], str] = lambda: str(uuid4())
    """Returns the id of a new session."""

    def resume_command(self, foreign_id: str, path: Path) -> list[str]:
        """Return the command that continues a session."""
        arguments = list(self.resume)
        # Only a shell command line needs the path quoted.
        is_shell = arguments[:1] == ["sh"]
        values = {"{id}": foreign_id, "{path}": shlex.quote(str(path)) if is_shell else str(path)}
        for name, value in values.items():
            arguments = [argument.replace(name, value) for argument in arguments]
        return arguments


def _directory(variable: str, *names: str, below: Sequence[str] = ()) -> Callable[..., Path]:
    def root(home: Path, environment: Environment) -> Path:
        base = environment.get(variable, "")
        return (Path(base) if base else home.joinpath(*names)).joinpath(*below)

    return root


def _claude_path(root: Path, foreign_id: str, cwd: str, _: datetime) -> Path:
    return root / claude_directory(cwd) / f"{foreign_id}.jsonl"


def claude_directory(cwd: str) -> str:
    """Return the name of the directory in which Claude Code stores the sessions of a folder."""
    return _NOT_IN_A_NAME.sub("-", cwd)


def _codex_path(root: Path, foreign_id: str, _: str, now: datetime) -> Path:
    local = now.astimezone()
    name = f"rollout-{local:%Y-%m-%dT%H-%M-%S}-{foreign_id}.jsonl"
    return root / f"{local:%Y}" / f"{local:%m}" / f"{local:%d}" / name


def _gemini_path(root: Path, foreign_id: str, cwd: str, now: datetime) -> Path:
    utc = now.astimezone(UTC)
    name = f"session-{utc:%Y-%m-%dT%H-%M}-{foreign_id[:8]}.jsonl"
    return root / _gemini_project(root, cwd) / "chats" / name


def _gemini_project(root: Path, cwd: str) -> str:
    """Return the directory of a folder's project: the one whose marker names it, or a new one."""
    for marker in sorted(root.glob(f"*/{_GEMINI_MARKER}")):
        if read_small_file(marker, _MAX_MARKER).decode(errors="replace").strip() == cwd:
            return marker.parent.name
    slug = re.sub(r"[^a-z0-9]+", "-", Path(cwd).name.lower()).strip("-") or "project"
    names = (slug, *(f"{slug}-{number}" for number in range(1, 10_000)))
    return next(name for name in names if not (root / name).exists())


def marked_folder(path: Path) -> str | None:
    """Return the folder of a session file of gemini-cli, which is in a file beside it.

    None for files of other programs.
    """
    marker = path.parent.parent / _GEMINI_MARKER
    return read_small_file(marker, _MAX_MARKER).decode(errors="replace").strip() or None


def _gemini_prepare(root: Path, cwd: str) -> None:
    """Mark the project's directory as that of the folder; gemini-cli adds it to its list."""
    marker = root / _gemini_project(root, cwd) / _GEMINI_MARKER
    if not marker.exists():
        write_new_file(marker, cwd.encode())


def _opencode_path(root: Path, foreign_id: str, _: str, __: datetime) -> Path:
    return root / "handoff" / f"{foreign_id}.json"


def _pi_path(root: Path, foreign_id: str, cwd: str, now: datetime) -> Path:
    folder = re.sub(r"[/\\:]", "-", cwd.lstrip("/\\"))
    utc = now.astimezone(UTC)
    moment = f"{utc:%Y-%m-%dT%H-%M-%S}-{utc.microsecond // 1000:03}Z"
    return root / f"--{folder}--" / f"{moment}_{foreign_id}.jsonl"


PROGRAMS: Sequence[Program] = (
    Program(
        "claude",
        "claude-code",
        _directory("CLAUDE_CONFIG_DIR", ".claude", below=("projects",)),
        "*/*.jsonl",
        _claude_path,
        ("claude", "--resume", "{id}"),
    ),
    Program(
        "codex",
        "codex",
        _directory("CODEX_HOME", ".codex", below=("sessions",)),
        "*/*/*/rollout-*.jsonl*",
        _codex_path,
        ("codex", "resume", "{id}"),
    ),
    Program(
        "gemini",
        "gemini-cli",
        _directory("GEMINI_CLI_HOME", ".gemini", below=("tmp",)),
        "*/chats/session-*.json*",
        _gemini_path,
        ("gemini", "--resume", "{id}"),
        _gemini_prepare,
    ),
    Program(
        "opencode",
        "opencode",
        _directory("XDG_DATA_HOME", ".local", "share", below=("opencode",)),
        "storage/session/*/*.json",
        _opencode_path,
        ("sh", "-c", "opencode import {path} && exec opencode --session {id}"),
        new_id=lambda: f"ses_{new_ulid().lower()}",
    ),
    Program(
        "pi",
        "pi",
        _directory("PI_CODING_AGENT_DIR", ".pi", "agent", below=("sessions",)),
        "*/*.jsonl",
        _pi_path,
        ("pi", "--session", "{path}"),
    ),
    # Sessions of the others are only read. The database of opencode is written by its `import`.
    Program(
        "opencode",
        "opencode",
        _directory("XDG_DATA_HOME", ".local", "share", below=("opencode",)),
        "opencode*.db",
    ),
    Program(
        "codex-archive",
        "codex",
        _directory("CODEX_HOME", ".codex", below=("archived_sessions",)),
        "**/rollout-*.jsonl*",
    ),
    Program(
        "copilot",
        "copilot-cli",
        _directory("COPILOT_HOME", ".copilot", below=("session-state",)),
        "*/events.jsonl",
    ),
    Program(
        "cursor",
        "cursor",
        _directory("", ".cursor", below=("projects",)),
        "*/agent-transcripts/*/*.jsonl",
    ),
    *(
        Program(
            name,
            "cline",
            _directory("XDG_CONFIG_HOME", ".config", below=(editor, "User", "globalStorage")),
            f"{extension}/tasks/*/api_conversation_history.json",
        )
        for name, extension in (
            ("cline", "saoudrizwan.claude-dev"),
            ("roo", "rooveterinaryinc.roo-cline"),
            ("kilo", "kilocode.kilo-code"),
        )
        for editor in ("Code", "Code - Insiders", "VSCodium", "Cursor")
    ),
    Program("qwen", "qwen-code", _directory("", ".qwen"), "projects/*/chats/*.jsonl"),
    Program(
        "kimi",
        "kimi",
        _directory("KIMI_CODE_HOME", ".kimi-code", below=("sessions",)),
        "*/*/agents/main/wire.jsonl",
    ),
)
"""The programs whose sessions are on this machine."""


def program(name: str) -> Program:
    """Return a program by its name, or by that of its format.

    Raises:
        UnknownFormatError: sessions cannot be handed to it.
    """
    writable = [target for target in PROGRAMS if target.new_path is not None]
    for target in writable:
        if name in (target.name, target.format):
            return target
    names = [target.name for target in writable]
    raise UnknownFormatError(name, [*names, "metis"])


def session_files(home: Path, environment: Environment) -> Iterator[tuple[Program, Path]]:
    """Yield the session files of every program; nothing is read of them."""
    for owner in PROGRAMS:
        root = owner.root(home, environment)
        if not root.is_dir():
            continue
        for path in root.glob(owner.pattern):
            if path.is_file() and not path.is_symlink():
                yield owner, path


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
