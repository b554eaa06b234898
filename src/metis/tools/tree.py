"""Tree: the files below a folder of the workspace, without following any link."""

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Folders that are named and not gone into."""

Clock = Callable[[], float]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 64


class Node(NamedTuple):
    """Something in a tree: its path from the top, and the open folder in which it lies."""

    path: str
    name: str
    folder: int
    kind: str
    """file, folder, link or other."""
    is_skipped: bool = False


class Deadline:
    """A moment after which a search ends with what it has."""

    def __init__(self, seconds: float, now: Clock = time.monotonic) -> None:
        self._now = now
        self._end = now() + seconds

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._now() >= self._end


def nodes(folder: int, *, is_deep: bool, prefix: str = "", depth: int = 0) -> Iterator[Node]:
    """What lies in an open folder, sorted by name; with `is_deep`, also what lies below."""
    try:
        with os.scandir(folder) as found:
            entries = sorted((entry.name, _kind(entry)) for entry in found)
    except OSError:
        return
    for name, kind in entries:
        is_skipped = kind == "folder" and name in SKIPPED
        yield Node(prefix + name, name, folder, kind, is_skipped)
        if is_deep and kind == "folder" and not is_skipped and depth < _MAX_DEPTH:
            yield from _below(folder, name, prefix, depth)


def _below(folder: int, name: str, prefix: str, depth: int) -> Iterator[Node]:
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        return
    try:
        yield from nodes(inner, is_deep=True, prefix=f"{prefix}{name}/", depth=depth + 1)
    finally:
        os.close(inner)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
