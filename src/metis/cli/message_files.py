"""Commands on files of messages: validate and show them, and print the JSON Schema."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple, cast

import click
import msgspec
from msgspec import Raw

from metis.canonical import Message, RuleProfile, decode, json_schema, validate, validate_session
from metis.canonical.errors import DecodeError
from metis.canonical.json_value import line_of
from metis.canonical.reader import check_json
from metis.cli.render import count, render_conversation

_split_array = msgspec.json.Decoder(list[Raw]).decode


class FileEntry(NamedTuple):
    """One message of a file: its text, the line where that begins, and what was read from it."""

    data: bytes
    line: int
    message: Message | None
    error: DecodeError | None

    def line_of(self, path: str) -> int:
        """The line of the file where the value at a path of this message begins."""
        return self.line + line_of(self.data, path) - 1


def file_label(source: IO[bytes]) -> str:
    """What to call a file in a message about it; standard input is `-`."""
    name = getattr(source, "name", "<stdin>")
    return "-" if name == "<stdin>" else str(name)


def read_entries(data: bytes) -> Iterator[FileEntry]:
    """Every message of a file, readable or not, in order."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = _json_lines(data)
    if lines is not None:
        for number, line in lines:
            yield _entry(line, number)
    elif data.lstrip()[:1] == b"[":
        yield from _array_entries(data)
    elif data.strip():
        yield _entry(data, 1)


def _json_lines(data: bytes) -> list[tuple[int, bytes]] | None:
    """The lines of a JSONL file with their numbers; None if the file is one JSON document."""
    lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
    looks_like_objects = all(line.strip()[:1] == b"{" for _, line in lines)
    return lines if len(lines) > 1 and looks_like_objects else None


def _array_entries(data: bytes) -> Iterator[FileEntry]:
    try:
        check_json(data)
        items = _split_array(data)
    except DecodeError as error:
        yield FileEntry(data, 1, None, error)
        return
    offset = 0
    for item in items:
        text = bytes(item)
        offset = data.index(text, offset)
        yield _entry(text, data.count(b"\n", 0, offset) + 1)
        offset += len(text)


def _entry(data: bytes, line: int) -> FileEntry:
    try:
        return FileEntry(data, line, decode(data), None)
    except DecodeError as error:
        return FileEntry(data, line, None, error)


_INDEX = re.compile(r"^\$\[(\d+)\]")


def print_problems(source: IO[bytes], *, profile: str, single: bool) -> int:
    """Print each problem as `file:line: path: problem`; the exit code says if there were any."""
    name = file_label(source)
    entries = list(read_entries(source.read()))
    if not entries:
        click.echo(f"{name}:1: $: no message in this file")
        return 1
    rules = cast("RuleProfile", profile)
    found = sorted([*_unreadable(entries), *_broken(entries, rules, single=single)])
    for line, path, text in found:
        click.echo(f"{name}:{line}: {path}: {text}")
    verdict = count(len(found), "problem") if found else "no problems"
    total = count(len(entries), "message")
    click.echo(f"{total}, {verdict} under the profile {profile}", err=True)
    return 1 if found else 0


def _unreadable(entries: Sequence[FileEntry]) -> Iterator[tuple[int, str, str]]:
    for entry in entries:
        if entry.error is not None:
            yield entry.line_of(entry.error.path), entry.error.path, entry.error.reason


def _broken(
    entries: Sequence[FileEntry], profile: RuleProfile, *, single: bool
) -> Iterator[tuple[int, str, str]]:
    readable = [(entry, entry.message) for entry in entries if entry.message is not None]
    if single:
        for entry, message in readable:
            for problem in validate(message, profile):
                yield entry.line_of(problem.path), problem.path, problem.text
        return
    for problem in validate_session([message for _, message in readable], profile):
        index = _INDEX.match(problem.path)
        if index is None:
            raise AssertionError(problem)
        entry, _ = readable[int(index[1])]
        path = "$" + problem.path[index.end() :]
        yield entry.line_of(path), path, problem.text


def print_conversation(source: IO[bytes]) -> int:
    """Print what can be read, say what cannot; the exit code says whether all could."""
    name = file_label(source)
    entries = list(read_entries(source.read()))
    messages = [entry.message for entry in entries if entry.message is not None]
    if messages:
        for part in render_conversation(messages):
            click.echo(part)
    for entry in entries:
        if entry.error is not None:
            line = entry.line_of(entry.error.path)
            click.echo(f"{name}:{line}: {entry.error.path}: {entry.error.reason}", err=True)
    if not entries:
        click.echo(f"{name}:1: $: no message in this file", err=True)
    return 0 if messages and len(messages) == len(entries) else 1


def print_schema() -> None:
    """Print the JSON Schema, readably."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
