"""List and search the files below a directory, without following links.

A regular expression can run for ever on a line made for it, and a running match cannot be
stopped. So the search is a small program that is handed an open directory and can be killed. It
uses the standard library only, to start fast.
"""

import fnmatch
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

SKIPPED_DIRECTORIES = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Folders that are named and not gone into."""

Clock = Callable[[], float]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 64


class TreeEntry(NamedTuple):
    """Something in a tree: its path from the top, and the open folder in which it lies."""

    path: str
    name: str
    directory: int
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


def walk_tree(
    directory: int, *, is_deep: bool, prefix: str = "", depth: int = 0
) -> Iterator[TreeEntry]:
    """What lies in an open folder, sorted by name; with `is_deep`, also what lies below."""
    try:
        with os.scandir(directory) as found:
            entries = sorted((entry.name, _kind(entry)) for entry in found)
    except OSError:
        return
    for name, kind in entries:
        is_skipped = kind == "folder" and name in SKIPPED_DIRECTORIES
        yield TreeEntry(prefix + name, name, directory, kind, is_skipped)
        if is_deep and kind == "folder" and not is_skipped and depth < _MAX_DEPTH:
            yield from _below(directory, name, prefix, depth)


def _below(folder: int, name: str, prefix: str, depth: int) -> Iterator[TreeEntry]:
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        return
    try:
        yield from walk_tree(inner, is_deep=True, prefix=f"{prefix}{name}/", depth=depth + 1)
    finally:
        os.close(inner)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


MAX_HITS = 200
MAX_FILE_BYTES = 5_000_000
MAX_LINE_CHARACTERS = 300
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LONGEST_LINE = 100_000


def main() -> None:
    """Search as the argument says, and write a line of JSON for each hit."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    flags = re.IGNORECASE if asked["ignore_case"] else 0
    pattern = re.compile(asked["pattern"], flags)
    left = int(asked["limit"])
    for hit in _hits(asked["folder"], asked["name"], asked["glob"], pattern):
        if left == 0:
            _say({"more": True})
            return
        _say(hit)
        left -= 1


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _hits(
    folder: int, name: str | None, glob: str | None, pattern: re.Pattern[str]
) -> Iterator[object]:
    if name is not None:
        yield from _hits_in_file(TreeEntry(name, name, folder, "file"), pattern)
        return
    for node in walk_tree(folder, is_deep=True):
        if node.kind == "file" and _is_wanted(node, glob):
            yield from _hits_in_file(node, pattern)


def _is_wanted(node: TreeEntry, glob: str | None) -> bool:
    return glob is None or any(fnmatch.fnmatchcase(text, glob) for text in (node.name, node.path))


def _hits_in_file(node: TreeEntry, pattern: re.Pattern[str]) -> Iterator[object]:
    try:
        descriptor = os.open(node.name, _FILE, dir_fd=node.directory)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return
        if found.st_size > MAX_FILE_BYTES:
            yield {"skipped": node.path}
            return
        yield from _hits_in_lines(file, node, pattern)


def _hits_in_lines(file: BinaryIO, node: TreeEntry, pattern: re.Pattern[str]) -> Iterator[object]:
    for number, line in enumerate(file.read(MAX_FILE_BYTES).split(b"\n"), start=1):
        if b"\0" in line:
            return
        text = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        match = pattern.search(text)
        if match:
            yield {"path": node.path, "line": number, "text": _around(text, match.start())}


def _around(text: str, start: int) -> str:
    """The line, or of a long one the part with the hit."""
    if len(text) <= MAX_LINE_CHARACTERS:
        return text
    first = max(0, start - MAX_LINE_CHARACTERS // 3)
    part = text[first : first + MAX_LINE_CHARACTERS]
    return f"{'…' if first else ''}{part}…"
