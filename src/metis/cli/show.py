"""`metis show`: a file of messages as a conversation for people."""

from typing import IO

import click

from metis.cli.documents import name_of, read_entries
from metis.cli.render import render_conversation


def print_conversation(source: IO[bytes]) -> int:
    """Print what can be read, say what cannot; the exit code says whether all could."""
    name = name_of(source)
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
