"""Files that only their owner may read, and SQLite files that cannot be written.

Conversations are private, so they must not be readable for other users of the machine, whatever the
umask is and even if an older version created the file.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
_OTHERS = 0o077


def home_directory(environment: Mapping[str, str]) -> Path:
    """Return the data directory of the user: `$METIS_HOME`, or the XDG data directory."""
    home = environment.get("METIS_HOME")
    if home:
        return Path(home)
    data = environment.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "metis"


def make_private_directory(path: Path) -> None:
    """Create a directory that only its owner may enter.

    The modes of an existing directory are changed only if it is our data directory: the user may
    share another one with a team.
    """
    # `mkdir(parents=True)` would not apply the mode to the parents.
    for parent in reversed([p for p in (path, *path.parents) if not p.exists()]):
        parent.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    if path == home_directory(os.environ):
        _restrict(path, PRIVATE_DIRECTORY)


def make_private_file(path: Path) -> None:
    """Create an empty file that only its owner may read; an existing one gets the same mode.

    SQLite creates the files beside a database (log, shared memory, journal) with its mode.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE))
    _restrict(path, PRIVATE_FILE)


def _restrict(path: Path, mode: int) -> None:
    status = path.stat()
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
        with suppress(OSError):  # some file systems have no modes
            path.chmod(mode)


def is_read_only(path: Path) -> bool:
    """Return whether an existing SQLite file, or its directory, cannot be written."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


class ReadOnlyFile:
    """A SQLite file that cannot be written because of its mode or its file system.

    SQLite reads a database in WAL mode only if it can create two files beside it. Where it cannot,
    the file is opened as immutable, or copied if its log is not empty.
    """

    def __init__(self, path: Path, *, newest_version: int) -> None:
        self._path = path
        self._copy: Path | None = None
        if _has_log(path):
            is_usable = self._can_read("mode=ro")
            self._options = "mode=ro"
        else:
            is_usable, self._options = True, "mode=ro&immutable=1"
        # Tables of an older version are also copied, because a copy can be migrated.
        if not is_usable or self._version() < newest_version:
            self._make_copy()

    @property
    def is_copy(self) -> bool:
        """Whether a private copy is read, which can be migrated."""
        return self._copy is not None

    @property
    def path(self) -> Path:
        """The file that is read."""
        return self._path if self._copy is None else self._copy / self._path.name

    def connect(self, *, timeout: float, cached_statements: int = 128) -> sqlite3.Connection:
        """Open a connection that cannot write."""
        return sqlite3.connect(
            _uri(self.path, "mode=ro" if self.is_copy else self._options),
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=timeout,
            cached_statements=cached_statements,
        )

    def close(self) -> None:
        """Remove the copy, if there is one."""
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def _can_read(self, options: str) -> bool:
        try:
            connection = sqlite3.connect(_uri(self._path, options), uri=True)
        except sqlite3.Error:
            return False
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            return False
        else:
            return True
        finally:
            connection.close()

    def _version(self) -> int:
        connection = sqlite3.connect(_uri(self._path, self._options), uri=True)
        try:
            return connection.execute("PRAGMA user_version").fetchone()[0]
        finally:
            connection.close()

    def _make_copy(self) -> None:
        self._copy = Path(tempfile.mkdtemp(prefix="metis-read-only-"))
        for suffix in ("", "-wal"):
            source = Path(f"{self._path}{suffix}")
            if source.exists():
                target = self._copy / source.name
                shutil.copyfile(source, target)
                target.chmod(PRIVATE_FILE)


def _has_log(path: Path) -> bool:
    with suppress(OSError):
        return Path(f"{path}-wal").stat().st_size > 0
    return False


def _uri(path: Path, options: str) -> str:
    return f"file:{quote(str(path.absolute()))}?{options}"
