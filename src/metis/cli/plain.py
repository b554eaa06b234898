"""Plain: a conversation line by line, for any terminal."""

import asyncio

import click

from metis.canonical.errors import MetisError
from metis.cli.failure import explain
from metis.cli.start import Opened
from metis.streaming import TextDelta


async def run(opened: Opened) -> int:
    """Talk until the input ends."""
    if opened.notice:
        click.secho(opened.notice, dim=True)
    while True:
        try:
            words = (await asyncio.to_thread(input, "> ")).strip()
        except EOFError:
            click.echo()
            return 0
        if words:
            await _turn(opened, words)


async def _turn(opened: Opened, words: str) -> None:
    try:
        async for event in opened.session.send(words):
            if isinstance(event, TextDelta):
                click.echo(event.text, nl=False)
    except MetisError as error:
        click.echo(f"metis: {explain(error)}", err=True, nl=False)
    click.echo("\n")
