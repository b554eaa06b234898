"""`metis convert`: a request of one provider as a request of another, with its losses."""

import logging
from collections.abc import Mapping
from typing import IO

import click
import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.canonical import MetisError
from metis.cli.documents import name_of
from metis.projection import Loss
from metis.wire.call import RequestContext


def print_conversion(  # noqa: PLR0913 - one parameter an option
    source: IO[bytes], *, from_name: str, to_name: str, model: str | None, strict: bool, json: bool
) -> int:
    """Print the converted body; the losses go to standard error.

    With `strict` any loss is a failure, and nothing is printed but the losses.
    """
    logging.getLogger("metis.adapters").setLevel(logging.ERROR)  # losses are printed, not logged
    try:
        request = adapters.get(from_name).from_wire_request(
            source.read(), RequestContext(session_id="convert")
        )
        target = adapters.get(to_name)
        chosen = model if model or from_name != to_name else request.options.model
        wire = target.to_wire(
            request.messages, request.tools, replace(request.options, model=chosen)
        )
    except MetisError as error:
        click.echo(f"{name_of(source)}: {error}", err=True)
        return 2
    places = {message.id: number for number, message in enumerate(request.messages, 1)}
    for loss in wire.losses:
        line = msgspec.json.encode(loss).decode() if json else _line(loss, places)
        click.echo(line, err=True)
    if strict and wire.losses:
        return 1
    click.echo(msgspec.json.format(wire.body, indent=2).decode())
    return 0


def _line(loss: Loss, places: Mapping[str, int]) -> str:
    number = places.get(loss.message_id)
    where = f"{loss.path}" if number is None else f"message {number} {loss.path}"
    return f"{loss.change}: {loss.block_type} at {where}: {loss.reason}"
