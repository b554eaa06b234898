"""`metis convert`: a request of one provider as a request of another, with its losses."""

from typing import IO

import click
import msgspec

from metis.cli.requests import RequestFile, Target, find_adapter


def print_conversion(  # noqa: PLR0913 - one parameter an option
    source: IO[bytes], *, from_name: str, to_name: str, model: str | None, strict: bool, json: bool
) -> int:
    """Print the converted body; the losses go to standard error.

    With `strict` any loss is a failure, and nothing is printed but the losses.
    """
    target = Target(to_name, find_adapter(to_name, "--to"), model)
    file = RequestFile(source, from_name)
    wire = file.sent_to(target)
    hint = file.hint()
    if hint:
        click.echo(_note(f"{file.name}: {hint}", json=json), err=True)
    if json:
        lines = (msgspec.json.encode(loss).decode() for loss in wire.losses)
    else:
        lines = file.loss_lines(wire.losses)
    for line in lines:
        click.echo(line, err=True)
    if strict and wire.losses:
        return 1
    click.echo(msgspec.json.format(wire.body, indent=2).decode())
    return 0


def _note(text: str, *, json: bool) -> str:
    return msgspec.json.encode({"note": text}).decode() if json else f"note: {text}"
