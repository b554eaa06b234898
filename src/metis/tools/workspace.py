"""The workspace: a directory that paths cannot leave; see `walk`."""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from metis.tools.walk import (
    DIRECTORY_FLAGS,
    PROTECTED,
    PathWalk,
    ResolvedPath,
    WorkspaceError,
    open_file,
    protected_error,
    workspace_errors,
)

_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SearchRoot(NamedTuple):
    """The start of a search: an open directory, and one file in it or all."""

    directory: int
    name: str | None
    """The only file to search; None for all files."""
    prefix: str
    """The path of the directory in the workspace, which precedes the path of a match."""


class Workspace:
    """A directory with its files; no path leads out of it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve(strict=True)
        # Kept open, so that the directory is the same even if its path is replaced by a link.
        self._fd = os.open(self.root, DIRECTORY_FLAGS)

    def __repr__(self) -> str:
        return f"Workspace({str(self.root)!r})"

    def close(self) -> None:
        """Close the directory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()

    @contextmanager
    def resolve(self, path: str, *, make_directories: bool = False) -> Generator[ResolvedPath]:
        """Resolve a path; its directory is open within the context."""
        if self._fd < 0:
            raise WorkspaceError(".", "is closed")
        walk = PathWalk(self.root, self._fd, path, make_directories=make_directories)
        try:
            with workspace_errors(path):
                resolved = walk.resolve()
            yield resolved
        finally:
            walk.close()

    @contextmanager
    def open(self, path: str) -> Generator[BinaryIO]:
        """Open a regular file for reading."""
        with self.resolve(path) as resolved:
            with workspace_errors(path):
                descriptor = open_file(resolved.directory, resolved.name)
            with os.fdopen(descriptor, "rb") as file:
                yield file

    def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a file.

        Raises:
            WorkspaceError: the file is larger than `max_bytes`, or cannot be read.
        """
        with self.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            # One byte more, to notice a file that grows while it is read.
            data = b"" if size > max_bytes else file.read(max_bytes + 1)
        if size > max_bytes or len(data) > max_bytes:
            raise WorkspaceError(path, f"has more than {max_bytes} bytes")
        return data

    def write_bytes(self, path: str, data: bytes, *, expected: bytes | None = None) -> str:
        """Write a file completely or not at all; return the path with its links resolved.

        With `expected`, a file with another content is not changed.

        Raises:
            WorkspaceError: the file cannot be written, or does not have the expected content.
        """
        with self.resolve(path, make_directories=True) as resolved, workspace_errors(path):
            if resolved.name is None:
                raise IsADirectoryError(errno.EISDIR, "directory")
            if any(name.casefold() in PROTECTED for name in resolved.names):
                raise protected_error(path)
            # Before the content is read, because reading a pipe or device would block.
            mode = _permissions(resolved)
            if expected is not None and _content(resolved, len(expected)) != expected:
                raise WorkspaceError(path, "was changed meanwhile; read it again")
            _replace_file(resolved, resolved.name, data, mode)
            return resolved.path

    @contextmanager
    def open_directory(self, path: str) -> Generator[int]:
        """Open a directory, to list its entries."""
        with self.resolve(path) as resolved:
            if resolved.name is None:
                yield resolved.directory
                return
            with workspace_errors(path):
                descriptor = os.open(resolved.name, DIRECTORY_FLAGS, dir_fd=resolved.directory)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def search_root(self, path: str) -> Generator[SearchRoot]:
        """Open a file or a directory to search in; it is open within the context."""
        with self.resolve(path) as resolved:
            if resolved.name is not None and _is_file(resolved):
                with self.open(path):  # raises the reason if the file cannot be read
                    prefix = _prefix(resolved.names[:-1])
                    yield SearchRoot(resolved.directory, resolved.name, prefix)
                return
            with self.open_directory(path) as directory:
                yield SearchRoot(directory, None, _prefix(resolved.names))


def _stat(resolved: ResolvedPath) -> os.stat_result:
    return os.stat(resolved.name or ".", dir_fd=resolved.directory, follow_symlinks=False)


def _is_file(resolved: ResolvedPath) -> bool:
    try:
        return not stat.S_ISDIR(_stat(resolved).st_mode)
    except OSError:
        return False


def _prefix(names: tuple[str, ...]) -> str:
    return "".join(f"{name}/" for name in names)


def _permissions(resolved: ResolvedPath) -> int | None:
    """Return the permissions of a file to replace; None if it is new.

    Raises:
        OSError: it is a directory or a special file.
    """
    try:
        mode = _stat(resolved).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.ENXIO, "special file")
    return stat.S_IMODE(mode)


def _content(resolved: ResolvedPath, length: int) -> bytes:
    with os.fdopen(open_file(resolved.directory, resolved.name), "rb") as file:
        return file.read(length + 1)


def _replace_file(resolved: ResolvedPath, name: str, data: bytes, mode: int | None) -> None:
    # Written to another file and renamed: readers never see a part of it, and a link that was
    # created in its place is replaced and not followed.
    temporary = f".{secrets.token_hex(8)}.metis"
    descriptor = os.open(temporary, _NEW_FILE_FLAGS, 0o666, dir_fd=resolved.directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
        os.rename(temporary, name, src_dir_fd=resolved.directory, dst_dir_fd=resolved.directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=resolved.directory)
        raise
