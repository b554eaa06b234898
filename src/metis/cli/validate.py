"""`metis validate`: every problem of a file of messages, one a line."""

import re
from collections.abc import Iterator, Sequence
from typing import IO, cast

import click

from metis.canonical import Profile, validate, validate_session
from metis.cli.documents import Entry, name_of, read_entries
from metis.cli.render import count

_INDEX = re.compile(r"^\$\[(\d+)\]")


def print_problems(source: IO[bytes], *, profile: str, single: bool) -> int:
    """Print each problem as `file:line: path: problem`; the exit code says if there were any."""
    name = name_of(source)
    entries = list(read_entries(source.read()))
    if not entries:
        click.echo(f"{name}:1: $: no message in this file")
        return 1
    rules = cast("Profile", profile)
    found = sorted([*_unreadable(entries), *_broken(entries, rules, single=single)])
    for line, path, text in found:
        click.echo(f"{name}:{line}: {path}: {text}")
    verdict = count(len(found), "problem") if found else "no problems"
    total = count(len(entries), "message")
    click.echo(f"{total}, {verdict} under the profile {profile}", err=True)
    return 1 if found else 0


def _unreadable(entries: Sequence[Entry]) -> Iterator[tuple[int, str, str]]:
    for entry in entries:
        if entry.error is not None:
            yield entry.line_of(entry.error.path), entry.error.path, entry.error.reason


def _broken(
    entries: Sequence[Entry], profile: Profile, *, single: bool
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
