"""List and search the files below a directory, without following links.

A regular expression can run for hours on a crafted line, and a running match cannot be stopped. So
this module is also a small program that inherits an open directory and can be killed. It uses the
standard library only, so that it starts fast.
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_MATCHES = 200
MAX_FILE_BYTES = 5_000_000
MAX_LINE_CHARACTERS = 300

SKIPPED_DIRECTORIES = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Directories that are listed but not searched."""

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a named pipe would otherwise wait for its other end.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# Each level takes a file descriptor and a stack frame.
_MAX_DEPTH = 64
# Lines of minified files can be as long as the file, and matching may take quadratic time.
_MAX_SEARCHED_CHARACTERS = 100_000


class TreeEntry(NamedTuple):
    """An entry of a directory tree, with the descriptor of its directory."""

    path: str
    """The path from the top of the tree."""
    name: str
    directory: int
    kind: str
    """file, directory, link or other."""

    def matches(self, glob: str | None) -> bool:
        """Return whether the name or the path matches a glob; None matches everything."""
        return glob is None or any(fnmatch.fnmatchcase(one, glob) for one in (self.name, self.path))


def walk_tree(
    directory: int, *, is_recursive: bool, prefix: str = "", depth: int = 0
) -> Iterator[TreeEntry]:
    """Yield the entries of an open directory sorted by name, recursively with `is_recursive`."""
    try:
        with os.scandir(directory) as scanned:
            # Sorted, so that the same directory gives the same text: prompt caches need it (T176).
            entries = sorted((entry.name, _kind(entry)) for entry in scanned)
    except OSError:
        return
    for name, kind in entries:
        is_skipped = kind == "directory" and name in SKIPPED_DIRECTORIES
        yield TreeEntry(prefix + name, name, directory, kind)
        if is_recursive and kind == "directory" and not is_skipped and depth < _MAX_DEPTH:
            yield from _walk_below(directory, name, prefix, depth)


def _walk_below(directory: int, name: str, prefix: str, depth: int) -> Iterator[TreeEntry]:
    try:
        inner = os.open(name, _DIRECTORY_FLAGS, dir_fd=directory)
    except OSError:
        return
    try:
        yield from walk_tree(inner, is_recursive=True, prefix=f"{prefix}{name}/", depth=depth + 1)
    finally:
        os.close(inner)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def main() -> None:
    """Run the search that the argument describes, and write a line of JSON for each match."""
    query: dict[str, Any] = json.loads(sys.argv[1])
    flags = re.IGNORECASE if query["ignore_case"] else 0
    pattern = re.compile(query["pattern"], flags)
    remaining = int(query["limit"])
    for match in _matches(query["directory"], query["name"], query["glob"], pattern):
        if remaining == 0:
            _write({"more": True})
            return
        _write(match)
        remaining -= 1


def _write(value: object) -> None:
    # Flushed after each line, so that a killed search has written its matches so far.
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _matches(
    directory: int, name: str | None, glob: str | None, pattern: re.Pattern[str]
) -> Iterator[object]:
    if name is not None:
        yield from _matches_in_file(TreeEntry(name, name, directory, "file"), pattern)
        return
    for entry in walk_tree(directory, is_recursive=True):
        if entry.kind == "file" and entry.matches(glob):
            yield from _matches_in_file(entry, pattern)


def _matches_in_file(entry: TreeEntry, pattern: re.Pattern[str]) -> Iterator[object]:
    try:
        descriptor = os.open(entry.name, _FILE_FLAGS, dir_fd=entry.directory)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        if status.st_size > MAX_FILE_BYTES:
            yield {"skipped": entry.path}
            return
        lines = file.read(MAX_FILE_BYTES).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if b"\0" in line:  # a binary file
            return
        text = line[:_MAX_SEARCHED_CHARACTERS].decode("utf-8", "replace").rstrip("\r")
        match = pattern.search(text)
        if match:
            yield {"path": entry.path, "line": number, "text": _excerpt(text, match.start())}


def _excerpt(text: str, start: int) -> str:
    """Return a line, or the part of a long line with the match."""
    if len(text) <= MAX_LINE_CHARACTERS:
        return text
    first = max(0, start - MAX_LINE_CHARACTERS // 3)
    part = text[first : first + MAX_LINE_CHARACTERS]
    return f"{'…' if first else ''}{part}…"


if __name__ == "__main__":
    main()
