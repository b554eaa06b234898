"""Resolution of a path, name by name, that never leaves the workspace.

Each directory is opened relative to its parent and without following links. A link is read and its
target resolved in the same way, so that links inside of the workspace work, and no link, `..` or
absolute path leads out of it. Opened directories stay open until the end, so that replacing one by
a link in the meantime has no effect.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from metis.canonical.errors import ToolError

MAX_LINKS = 40
"""The maximum number of links in one path."""

MAX_DIRECTORIES = 100
"""The maximum depth of a path; each directory takes a file descriptor."""

PROTECTED = frozenset({".git"})
"""Directories in which no file is written: git runs programs (hooks) in them."""

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags to open a directory with."""

# Without O_NONBLOCK, opening a named pipe would wait for its other end.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class WorkspaceError(ToolError, OSError):
    """A path cannot be used; `reason` contains no path outside of the workspace."""

    def __init__(self, path: str, reason: str, *, is_refused: bool = False) -> None:
        self.path = path
        self.reason = reason
        self.is_refused = is_refused
        """Whether reading or writing there is not allowed."""
        super().__init__(f"{path!r} {reason}")


class ResolvedPath(NamedTuple):
    """An open directory and the name of an entry in it, which may not exist."""

    directory: int
    name: str | None
    """None if the path is the directory itself."""
    names: tuple[str, ...]
    """The names below the workspace, with every link resolved."""

    @property
    def path(self) -> str:
        """The path relative to the workspace."""
        return "/".join(self.names) or "."


class PathWalk:
    """Resolves one path; its directories stay open until `close`."""

    def __init__(self, root: Path, top: int, path: str, *, make_directories: bool) -> None:
        self._root = root
        self._path = path
        self._make_directories = make_directories
        self._pending = deque(path_names(path, root))
        # A copy, so that closing the walk does not close the workspace.
        self._descriptors = [os.dup(top)]
        self._names: list[str] = []
        self._link_count = 0

    def close(self) -> None:
        """Close every directory."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def resolve(self) -> ResolvedPath:
        """Return the directory and the name to which the path leads.

        Raises:
            WorkspaceError: the path leads out of the workspace, or is too long.
        """
        while self._pending:
            name = self._pending.popleft()
            if name == "..":
                self._go_up()
                continue
            target = _link_target(self._descriptors[-1], name)
            if target is not None:
                self._follow(target)
            elif self._pending:
                self._go_down(name)
            else:
                return ResolvedPath(self._descriptors[-1], name, (*self._names, name))
        return ResolvedPath(self._descriptors[-1], None, tuple(self._names))

    def _go_up(self) -> None:
        if not self._names:
            raise outside_error(self._path)
        self._names.pop()
        os.close(self._descriptors.pop())

    def _go_down(self, name: str) -> None:
        if len(self._descriptors) > MAX_DIRECTORIES:
            reason = f"goes through more than {MAX_DIRECTORIES} directories"
            raise WorkspaceError(self._path, reason)
        if self._make_directories:
            # In lower case, because some file systems open .GIT as .git.
            if name.casefold() in PROTECTED:
                raise protected_error(self._path)
            # The directory may exist, or another task may create it at the same time.
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._descriptors[-1])
        self._descriptors.append(os.open(name, DIRECTORY_FLAGS, dir_fd=self._descriptors[-1]))
        self._names.append(name)

    def _follow(self, target: str) -> None:
        self._link_count += 1
        if self._link_count > MAX_LINKS:
            raise WorkspaceError(self._path, f"goes through more than {MAX_LINKS} links")
        # An absolute link is resolved from the root of the workspace, like an absolute path.
        if target.startswith("/"):
            while self._names:
                self._go_up()
        try:
            names = path_names(target, self._root)
        except WorkspaceError:
            # The error has the path of the caller, not the target outside of the workspace.
            raise outside_error(self._path) from None
        self._pending.extendleft(reversed(names))


def path_names(path: str, root: Path) -> list[str]:
    """Return the names of a path below the workspace.

    Raises:
        WorkspaceError: the path is absolute and outside of the workspace, or has a zero byte.
    """
    if "\0" in path:
        raise WorkspaceError(path, "is not a path: it contains a zero byte", is_refused=True)
    if path.startswith("/"):
        inside = os.path.join(root, "")  # noqa: PTH118 - the slash at the end matters
        if path != str(root) and not path.startswith(inside):
            raise outside_error(path)
        path = path[len(str(root)) :]
    return [name for name in path.split("/") if name not in ("", ".")]


def open_file(directory: int, name: str | None) -> int:
    """Open a regular file of an open directory for reading, without following a link."""
    if name is None:
        raise IsADirectoryError(errno.EISDIR, "directory")
    descriptor = os.open(name, _FILE_FLAGS, dir_fd=directory)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "directory")
        # Reading a device or a pipe could block or have effects.
        raise OSError(errno.ENXIO, "special file")
    return descriptor


def outside_error(path: str) -> WorkspaceError:
    """Return the error for a path that leads out of the workspace."""
    return WorkspaceError(path, "leads out of the workspace", is_refused=True)


def protected_error(path: str) -> WorkspaceError:
    """Return the error for a path in a protected directory."""
    names = ", ".join(sorted(PROTECTED))
    return WorkspaceError(path, f"is inside {names}, where nothing is written", is_refused=True)


@contextmanager
def workspace_errors(path: str) -> Generator[None]:
    """Convert system errors to WorkspaceErrors, which contain only the path of the caller."""
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
    errno.ENOTDIR: "is not a directory, or goes through a file",
    errno.EISDIR: "is a directory",
    errno.ENXIO: "is not a regular file",
    errno.EACCES: "is not accessible to this user",
    errno.EPERM: "is not accessible to this user",
    errno.ELOOP: "became a link while it was opened",
    errno.EEXIST: "already exists",
    errno.ENAMETOOLONG: "has a name that is too long",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EROFS: "cannot be written: the disk is read-only",
}


def _link_target(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # not a link, or it does not exist
            return None
        raise
