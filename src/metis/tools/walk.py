"""Walk: the way along a path, name by name, that never leaves the workspace.

Each folder is opened relative to the one before it and without following links; a link is read and
its target walked in the same way, so that links inside of the workspace work and no link, `..` or
absolute path leads out. What was opened stays open during the walk, so that nothing which somebody
exchanges in between can lead out either.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from metis.canonical.errors import ToolError

MAX_LINKS = 40
"""How many links one path may go through."""

MAX_DIRECTORIES = 100
"""How many folders deep a path may go; each is held open during the walk."""

PROTECTED = frozenset({".git"})
"""Folders in which nothing is written: what lies there is run by others."""

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder is opened."""

# Without O_NONBLOCK, opening a named pipe would wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class WorkspaceError(ToolError, OSError):
    """A path that cannot be used; `reason` says why, without any place outside of the workspace."""

    def __init__(self, path: str, reason: str, *, is_refused: bool = False) -> None:
        self.path = path
        self.reason = reason
        self.is_refused = is_refused
        """Whether the path leads where nothing may be read or written."""
        super().__init__(f"{path!r} {reason}")


class ResolvedPath:
    """The end of a walk: an open folder, and the name of something in it, there or not."""

    def __init__(self, folder: int, name: str | None, names: tuple[str, ...]) -> None:
        self.directory = folder
        self.name = name
        """None if the path is the folder itself."""
        self.names = names
        """The way from the workspace, with every link resolved."""

    @property
    def path(self) -> str:
        """The place relative to the workspace."""
        return "/".join(self.names) or "."


class PathWalk:
    """The folders that one walk holds open."""

    def __init__(self, root: Path, top: int, path: str, *, make_directories: bool) -> None:
        self._root = root
        self._path = path
        self._makes = make_directories
        self._waiting = deque(path_names(path, root))
        self._open = [os.dup(top)]
        self._names: list[str] = []
        self._links = 0

    def close(self) -> None:
        """Let go of every folder."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def resolve(self) -> ResolvedPath:
        """Where the path leads."""
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
                return ResolvedPath(self._open[-1], name, (*self._names, name))
        return ResolvedPath(self._open[-1], None, tuple(self._names))

    def _go_up(self) -> None:
        if not self._names:
            raise outside_error(self._path)
        self._names.pop()
        os.close(self._open.pop())

    def _go_down(self, name: str) -> None:
        if len(self._open) > MAX_DIRECTORIES:
            raise WorkspaceError(self._path, f"goes through more than {MAX_DIRECTORIES} folders")
        if self._makes:
            if name.casefold() in PROTECTED:
                raise protected_error(self._path)
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._open[-1])
        self._open.append(os.open(name, DIRECTORY_FLAGS, dir_fd=self._open[-1]))
        self._names.append(name)

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise WorkspaceError(self._path, f"goes through more than {MAX_LINKS} links")
        if target.startswith("/"):
            while self._names:
                self._go_up()
        try:
            names = path_names(target, self._root)
        except WorkspaceError:
            raise outside_error(self._path) from None
        self._waiting.extendleft(reversed(names))


def path_names(path: str, root: Path) -> list[str]:
    """The names of a path from the workspace on; an absolute path has to lead into it."""
    if "\0" in path:
        raise WorkspaceError(path, "is no path: it holds a zero byte", is_refused=True)
    if path.startswith("/"):
        inside = os.path.join(root, "")  # noqa: PTH118 - the slash at the end matters
        if path != str(root) and not path.startswith(inside):
            raise outside_error(path)
        path = path[len(str(root)) :]
    return [name for name in path.split("/") if name not in ("", ".")]


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


def outside_error(path: str) -> WorkspaceError:
    """The error for a path that leads out of the workspace."""
    return WorkspaceError(path, "leads out of the workspace", is_refused=True)


def protected_error(path: str) -> WorkspaceError:
    """The error for a path that leads where nothing is written."""
    names = ", ".join(sorted(PROTECTED))
    return WorkspaceError(path, f"lies in {names}, where nothing is written", is_refused=True)


@contextmanager
def workspace_errors(path: str) -> Generator[None]:
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
