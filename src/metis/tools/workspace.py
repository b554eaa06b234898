"""Workspace: a folder whose files can be reached, and nothing beside it.

A path is walked name by name. Each folder is opened relative to the one before it and without
following links; a link is read and its target walked in the same way, so that links inside of the
workspace work and no link, `..` or absolute path leads out. What was opened stays open during the
walk, so that nothing which somebody exchanges in between can lead out either.
"""

import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from metis.canonical.errors import ToolError

MAX_LINKS = 40
"""How many links one path may go through."""

MAX_FOLDERS = 100
"""How many folders deep a path may go; each is held open during the walk."""

PROTECTED = frozenset({".git"})
"""Folders in which nothing is written: what lies there is run by others."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkspaceError(ToolError, OSError):
    """A path that cannot be used; `reason` says why, without any place outside of the workspace."""

    def __init__(self, path: str, reason: str, *, is_refused: bool = False) -> None:
        self.path = path
        self.reason = reason
        self.is_refused = is_refused
        """Whether the path leads where nothing may be read or written."""
        super().__init__(f"{path!r} {reason}")


class Place:
    """The end of a walk: an open folder, and the name of something in it, there or not."""

    def __init__(self, folder: int, name: str | None, names: tuple[str, ...]) -> None:
        self.folder = folder
        self.name = name
        """None if the path is the folder itself."""
        self.names = names
        """The way from the workspace, with every link resolved."""

    @property
    def path(self) -> str:
        """The place relative to the workspace."""
        return "/".join(self.names) or "."


class Start:
    """Where a search begins: an open folder, and the one file in it that is meant, or all."""

    def __init__(self, folder: int, name: str | None, prefix: str) -> None:
        self.folder = folder
        self.name = name
        self.prefix = prefix
        """The way from the workspace to the folder, to put before what is found."""


class Workspace:
    """A folder and everything in it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve(strict=True)
        self._fd = os.open(self.root, _FOLDER)

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r})"

    def close(self) -> None:
        """Let go of the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()

    @contextmanager
    def place(self, path: str, *, make_folders: bool = False) -> Generator[Place]:
        """Where a path leads; the folder is open as long as the context."""
        walk = _Walk(self, path, make_folders=make_folders)
        try:
            with _named(path):
                found = walk.to_the_end()
            yield found
        finally:
            walk.close()

    @contextmanager
    def open(self, path: str) -> Generator[BinaryIO]:
        """A regular file, for reading."""
        with self.place(path) as place:
            with _named(path):
                descriptor = open_file(place.folder, place.name)
            with os.fdopen(descriptor, "rb") as file:
                yield file

    def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """A file as a whole; a larger one is refused."""
        with self.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > max_bytes else file.read(max_bytes + 1)
        if size > max_bytes or len(data) > max_bytes:
            raise WorkspaceError(path, f"has more than {max_bytes} bytes")
        return data

    def write_bytes(self, path: str, data: bytes, *, expected: bytes | None = None) -> str:
        """Write a file at once or not at all; gives the path with its links resolved.

        With `expected`, a file that holds anything else by now is left as it is.
        """
        with self.place(path, make_folders=True) as place, _named(path):
            _require_writable(place, path)
            mode = _mode_of(place)
            if expected is not None and _content(place, len(expected)) != expected:
                raise WorkspaceError(path, "was changed by somebody else meanwhile; read it again")
            _replace(place, data, mode)
            return place.path

    @contextmanager
    def folder(self, path: str) -> Generator[int]:
        """An open folder, for listing what lies in it."""
        with self.place(path) as place:
            if place.name is None:
                yield place.folder
                return
            with _named(path):
                descriptor = os.open(place.name, _FOLDER, dir_fd=place.folder)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def start_of(self, path: str) -> Generator[Start]:
        """A file or a folder, for searching; it is open as long as the context."""
        with self.place(path) as place:
            if place.name is not None and _is_file(place):
                with self.open(path):  # says what is wrong with a file that cannot be read
                    yield Start(place.folder, place.name, _prefix(place.names[:-1]))
                return
            with self.folder(path) as folder:
                yield Start(folder, None, _prefix(place.names))

    def parts(self, path: str) -> list[str]:
        """The names of a path from the workspace on; an absolute path has to lead into it."""
        if "\0" in path:
            raise WorkspaceError(path, "is no path: it holds a zero byte", is_refused=True)
        if path.startswith("/"):
            inside = os.path.join(self.root, "")  # noqa: PTH118 - the slash at the end matters
            if path != str(self.root) and not path.startswith(inside):
                raise outside(path)
            path = path[len(str(self.root)) :]
        return [name for name in path.split("/") if name not in ("", ".")]

    def start(self) -> int:
        """The folder itself once more, for a walk."""
        if self._fd < 0:
            raise WorkspaceError(".", "is closed")
        return os.dup(self._fd)


class _Walk:
    """The folders that one walk holds open."""

    def __init__(self, workspace: Workspace, path: str, *, make_folders: bool) -> None:
        self._workspace = workspace
        self._path = path
        self._makes = make_folders
        self._waiting = deque(workspace.parts(path))
        self._open = [workspace.start()]
        self._names: list[str] = []
        self._links = 0

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def to_the_end(self) -> Place:
        while self._waiting:
            name = self._waiting.popleft()
            if name == "..":
                self._go_up()
                continue
            target = _link_target(self._open[-1], name)
            if target is not None:
                self._follow(target)
            elif self._waiting:
                self._go_down(name)
            else:
                return Place(self._open[-1], name, (*self._names, name))
        return Place(self._open[-1], None, tuple(self._names))

    def _go_up(self) -> None:
        if not self._names:
            raise outside(self._path)
        self._names.pop()
        os.close(self._open.pop())

    def _go_down(self, name: str) -> None:
        if len(self._open) > MAX_FOLDERS:
            raise WorkspaceError(self._path, f"goes through more than {MAX_FOLDERS} folders")
        if self._makes:
            if name.casefold() in PROTECTED:
                raise protected(self._path)
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._open[-1])
        self._open.append(os.open(name, _FOLDER, dir_fd=self._open[-1]))
        self._names.append(name)

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise WorkspaceError(self._path, f"goes through more than {MAX_LINKS} links")
        if target.startswith("/"):
            while self._names:
                self._go_up()
        try:
            names = self._workspace.parts(target)
        except WorkspaceError:
            raise outside(self._path) from None
        self._waiting.extendleft(reversed(names))


def open_file(folder: int, name: str | None) -> int:
    """A regular file of an open folder, opened for reading without following a link."""
    if name is None:
        raise IsADirectoryError(errno.EISDIR, "folder")
    descriptor = os.open(name, _FILE, dir_fd=folder)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "folder")
        raise OSError(errno.ENXIO, "special")
    return descriptor


def _is_file(place: Place) -> bool:
    try:
        found = os.stat(place.name or ".", dir_fd=place.folder, follow_symlinks=False)
    except OSError:
        return False
    return not stat.S_ISDIR(found.st_mode)


def _prefix(names: tuple[str, ...]) -> str:
    return "".join(f"{name}/" for name in names)


def outside(path: str) -> WorkspaceError:
    """The error for a path that leads out of the workspace."""
    return WorkspaceError(path, "leads out of the workspace", is_refused=True)


def protected(path: str) -> WorkspaceError:
    """The error for a path that leads where nothing is written."""
    names = ", ".join(sorted(PROTECTED))
    return WorkspaceError(path, f"lies in {names}, where nothing is written", is_refused=True)


@contextmanager
def _named(path: str) -> Generator[None]:
    """Say what the system says in our words, and name the path that was asked for only."""
    try:
        yield
    except WorkspaceError:
        raise
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        reason = _REASONS.get(number or 0)
        raise WorkspaceError(path, reason or f"cannot be used ({type(error).__name__})") from None


_REASONS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "goes through something that is no folder, or is none",
    errno.EISDIR: "is a folder",
    errno.ENXIO: "is no regular file",
    errno.EACCES: "may not be used by this user",
    errno.EPERM: "may not be used by this user",
    errno.ELOOP: "became a link while it was opened",
    errno.EEXIST: "exists already",
    errno.ENAMETOOLONG: "is too long a name",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EROFS: "cannot be written: the disk is read-only",
}


def _link_target(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _require_writable(place: Place, path: str) -> None:
    if place.name is None:
        raise IsADirectoryError(errno.EISDIR, "folder")
    if any(name.casefold() in PROTECTED for name in place.names):
        raise protected(path)


def _mode_of(place: Place) -> int | None:
    """The permissions of a file that is to be replaced; what is no regular file is refused."""
    try:
        found = os.stat(place.name or ".", dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ENXIO, "special")
    return stat.S_IMODE(found.st_mode)


def _content(place: Place, length: int) -> bytes:
    with os.fdopen(open_file(place.folder, place.name), "rb") as file:
        return file.read(length + 1)


def _replace(place: Place, data: bytes, mode: int | None) -> None:
    """Write beside the file and move over it: a link there is replaced and not followed."""
    draft = f".{secrets.token_hex(8)}.metis"
    descriptor = os.open(draft, _NEW_FILE, 0o666, dir_fd=place.folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
        os.rename(draft, place.name or "", src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=place.folder)
        raise
