"""Search: the lines of a tree that match a pattern, in a process of its own.

A pattern can take for ever on a line that is made for it, and a match that runs cannot be stopped.
So the search is a small program which is handed an open folder and can be killed. It uses the
standard library only, to start fast.
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from metis.tools.tree import Node, nodes

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
        yield from _hits_in_file(Node(name, name, folder, "file"), pattern)
        return
    for node in nodes(folder, is_deep=True):
        if node.kind == "file" and _is_wanted(node, glob):
            yield from _hits_in_file(node, pattern)


def _is_wanted(node: Node, glob: str | None) -> bool:
    return glob is None or any(fnmatch.fnmatchcase(text, glob) for text in (node.name, node.path))


def _hits_in_file(node: Node, pattern: re.Pattern[str]) -> Iterator[object]:
    try:
        descriptor = os.open(node.name, _FILE, dir_fd=node.folder)
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


def _hits_in_lines(file: BinaryIO, node: Node, pattern: re.Pattern[str]) -> Iterator[object]:
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
