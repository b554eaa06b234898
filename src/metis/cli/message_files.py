"""Commands on files of messages: validate and show them, and print the JSON Schema.

A file is one JSON object, a JSON array, or JSON lines.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple, cast

import msgspec
from msgspec import Raw

from metis.canonical import Message, RuleProfile, decode, json_schema, validate, validate_session
from metis.canonical.errors import DecodeError
from metis.canonical.json_value import lines_of
from metis.canonical.reader import check_json
from metis.cli.output import echo, echo_json
from metis.cli.render import render_conversation
from metis.cli.text import count

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_MESSAGE = "no message in this file"
_INDEX = re.compile(r"^\$\[(\d+)\]")
_split_array = msgspec.json.Decoder(list[Raw]).decode

# The line, the path and the text of a problem.
_Problem = tuple[int, str, str]


class FileEntry(NamedTuple):
    """One message of a file: its bytes, its first line, and the message or the error."""

    data: bytes
    line: int
    message: Message | None
    error: DecodeError | None

    def lines_of(self, paths: Iterable[str]) -> dict[str, int]:
        """Return the lines of the file where the values at paths of this message begin."""
        lines = lines_of(self.data, paths)
        return {path: self.line + line - 1 for path, line in lines.items()}


def file_label(source: IO[bytes]) -> str:
    """Return what to call a file in messages about it; standard input is `-`."""
    name = getattr(source, "name", "<stdin>")
    return "-" if name == "<stdin>" else str(name)


def read_entries(data: bytes) -> Iterator[FileEntry]:
    """Yield every message of a file, readable or not, in order."""
    data = data.removeprefix(BYTE_ORDER_MARK)
    lines = _json_lines(data)
    if lines is not None:
        for number, line in lines:
            yield _entry(line, number)
    elif data.lstrip()[:1] == b"[":
        yield from _array_entries(data)
    elif data.strip():
        yield _entry(data, 1)


def _json_lines(data: bytes) -> list[tuple[int, bytes]] | None:
    """Return the lines of a JSONL file with their numbers; None if it is one JSON document."""
    lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    # A pretty-printed array has many lines, too, but they do not all begin with a brace.
    are_objects = all(line.strip()[:1] == b"{" for _, line in lines)
    return lines if len(lines) > 1 and are_objects else None


def _array_entries(data: bytes) -> Iterator[FileEntry]:
    try:
        check_json(data)
        items = _split_array(data)
    except DecodeError as error:
        yield FileEntry(data, 1, None, error)
        return
    counted_offset, offset, line = 0, 0, 1
    for item in items:
        text = bytes(item)
        # msgspec returns the items without their positions, which the line numbers need.
        offset = data.index(text, offset)
        line += data.count(b"\n", counted_offset, offset)
        counted_offset = offset
        yield _entry(text, line)
        offset += len(text)


def _entry(data: bytes, line: int) -> FileEntry:
    try:
        return FileEntry(data, line, decode(data), None)
    except DecodeError as error:
        return FileEntry(data, line, None, error)


def print_problems(source: IO[bytes], *, profile: str, single: bool) -> int:
    """Print each problem as `file:line: path: problem`; the exit code is 1 if there are any."""
    name = file_label(source)
    entries = list(read_entries(source.read()))
    if not entries:
        echo(f"{name}:1: $: {_NO_MESSAGE}")
        return 1
    rules = cast("RuleProfile", profile)
    problems = sorted([*_decode_problems(entries), *_rule_problems(entries, rules, single=single)])
    for line, path, text in problems:
        echo(f"{name}:{line}: {path}: {text}")
    verdict = count(len(problems), "problem") if problems else "no problems"
    echo(f"{count(len(entries), 'message')}, {verdict} (profile {profile})", err=True)
    return 1 if problems else 0


def _decode_problems(entries: Sequence[FileEntry]) -> Iterator[_Problem]:
    for entry in entries:
        if entry.error is not None:
            path = entry.error.path
            yield entry.lines_of([path])[path], path, entry.error.reason


def _rule_problems(
    entries: Sequence[FileEntry], profile: RuleProfile, *, single: bool
) -> Iterator[_Problem]:
    readable = [(entry, entry.message) for entry in entries if entry.message is not None]
    problems: dict[int, list[tuple[str, str]]] = {}
    if single:
        for number, (_, message) in enumerate(readable):
            problems[number] = [(item.path, item.text) for item in validate(message, profile)]
    else:
        for problem in validate_session([message for _, message in readable], profile):
            index = _INDEX.match(problem.path)
            if index is None:
                raise AssertionError(problem)
            path = "$" + problem.path[index.end() :]
            problems.setdefault(int(index[1]), []).append((path, problem.text))
    for number, faults in problems.items():
        # One scan of a message, whatever the number of its problems.
        lines = readable[number][0].lines_of(path for path, _ in faults)
        for path, text in faults:
            yield lines[path], path, text


def print_conversation(source: IO[bytes]) -> int:
    """Print the messages of a file; the exit code is 1 if one could not be read."""
    name = file_label(source)
    entries = list(read_entries(source.read()))
    messages = [entry.message for entry in entries if entry.message is not None]
    if messages:
        for part in render_conversation(messages):
            echo(part)
    for line, path, text in _decode_problems(entries):
        echo(f"{name}:{line}: {path}: {text}", err=True)
    if not entries:
        echo(f"{name}:1: $: {_NO_MESSAGE}", err=True)
    return 0 if messages and len(messages) == len(entries) else 1


def print_schema() -> None:
    """Print the JSON Schema of the canonical form."""
    echo_json(json.dumps(json_schema(), indent=2, ensure_ascii=False))
