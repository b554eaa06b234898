"""Workspace: a folder whose files can be reached, and nothing beside it; see `walk`."""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SearchRoot:
    """Where a search begins: an open folder, and the one file in it that is meant, or all."""

    def __init__(self, folder: int, name: str | None, prefix: str) -> None:
        self.directory = folder
        self.name = name
        self.prefix = prefix
        """The way from the workspace to the folder, to put before what is found."""


class Workspace:
    """A folder and everything in it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve(strict=True)
        self._fd = os.open(self.root, DIRECTORY_FLAGS)

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
    def resolve(self, path: str, *, make_directories: bool = False) -> Generator[ResolvedPath]:
        """Where a path leads; the folder is open as long as the context."""
        walk = PathWalk(self.root, self._top(), path, make_directories=make_directories)
        try:
            with workspace_errors(path):
                found = walk.resolve()
            yield found
        finally:
            walk.close()

    @contextmanager
    def open(self, path: str) -> Generator[BinaryIO]:
        """A regular file, for reading."""
        with self.resolve(path) as place:
            with workspace_errors(path):
                descriptor = open_file(place.directory, place.name)
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
        with self.resolve(path, make_directories=True) as place, workspace_errors(path):
            _require_writable(place, path)
            mode = _mode_of(place)
            if expected is not None and _content(place, len(expected)) != expected:
                raise WorkspaceError(path, "was changed by somebody else meanwhile; read it again")
            _replace(place, data, mode)
            return place.path

    @contextmanager
    def open_directory(self, path: str) -> Generator[int]:
        """An open folder, for listing what lies in it."""
        with self.resolve(path) as place:
            if place.name is None:
                yield place.directory
                return
            with workspace_errors(path):
                descriptor = os.open(place.name, DIRECTORY_FLAGS, dir_fd=place.directory)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def search_root(self, path: str) -> Generator[SearchRoot]:
        """A file or a folder, for searching; it is open as long as the context."""
        with self.resolve(path) as place:
            if place.name is not None and _is_file(place):
                with self.open(path):  # says what is wrong with a file that cannot be read
                    yield SearchRoot(place.directory, place.name, _prefix(place.names[:-1]))
                return
            with self.open_directory(path) as folder:
                yield SearchRoot(folder, None, _prefix(place.names))

    def _top(self) -> int:
        if self._fd < 0:
            raise WorkspaceError(".", "is closed")
        return self._fd


def _is_file(place: ResolvedPath) -> bool:
    try:
        found = os.stat(place.name or ".", dir_fd=place.directory, follow_symlinks=False)
    except OSError:
        return False
    return not stat.S_ISDIR(found.st_mode)


def _prefix(names: tuple[str, ...]) -> str:
    return "".join(f"{name}/" for name in names)


def _require_writable(place: ResolvedPath, path: str) -> None:
    if place.name is None:
        raise IsADirectoryError(errno.EISDIR, "folder")
    if any(name.casefold() in PROTECTED for name in place.names):
        raise protected_error(path)


def _mode_of(place: ResolvedPath) -> int | None:
    """The permissions of a file that is to be replaced; what is no regular file is refused."""
    try:
        found = os.stat(place.name or ".", dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ENXIO, "special")
    return stat.S_IMODE(found.st_mode)


def _content(place: ResolvedPath, length: int) -> bytes:
    with os.fdopen(open_file(place.directory, place.name), "rb") as file:
        return file.read(length + 1)


def _replace(place: ResolvedPath, data: bytes, mode: int | None) -> None:
    """Write beside the file and move over it: a link there is replaced and not followed."""
    draft = f".{secrets.token_hex(8)}.metis"
    descriptor = os.open(draft, _NEW_FILE, 0o666, dir_fd=place.directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
        os.rename(draft, place.name or "", src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=place.directory)
        raise
