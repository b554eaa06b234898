"""Requests in files: reading one, and what a target would receive for it."""

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.adapters.guess import PROTOCOL_NAMES, adapter_for, guess_protocol
from metis.canonical import MetisError
from metis.canonical.errors import UnknownAdapterError
from metis.cli.documents import name_of
from metis.projection import Loss
from metis.wire.call import CanonicalRequest, RequestContext, WireRequest

_BOM = b"\xef\xbb\xbf"


class Unreadable(click.ClickException):
    """Something about a file that is told in one line, with the exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line to standard error."""
        click.echo(self.message, file=file, err=True)


class Target(NamedTuple):
    """Whom to ask: an adapter, and a model if not its default one."""

    name: str
    adapter: adapters.Adapter
    model: str | None


@contextmanager
def unlogged() -> Generator[None]:
    """Keep losses out of the log while they are printed."""
    log = logging.getLogger("metis.adapters")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def find_adapter(name: str, option: str) -> adapters.Adapter:
    """The adapter of a name that was given by an option, which is blamed if there is none."""
    try:
        return adapters.get(name)
    except UnknownAdapterError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None


def find_target(text: str, option: str) -> Target:
    """The target that a text such as `openai` or `openai:gpt-5` names."""
    name, _, model = text.partition(":")
    return Target(text, find_adapter(name, option), model or None)


class RequestFile:
    """A request body in a file, and the protocol that it is read in."""

    def __init__(self, source: IO[bytes], from_name: str | None) -> None:
        self.name = name_of(source)
        self._data = source.read().removeprefix(_BOM)
        if not self._data.strip():
            raise Unreadable(f"{self.name}: the file is empty")
        self._guess = guess_protocol(_loosely(self._data))
        known = None if from_name is None else find_adapter(from_name, "--from")
        self.adapter = known or self._guessed_adapter()
        self.request = self._read()

    def hint(self) -> str | None:
        """What to say if the body looks like another protocol than the one it is read in."""
        if self._guess is None or self._guess == self.adapter.profile.protocol:
            return None
        known = adapter_for(self._guess)
        advice = f"; try --from {known}" if known else ", which is not read yet"
        return f"it looks like a request of {PROTOCOL_NAMES[self._guess]}{advice}"

    def sent_to(self, target: Target) -> WireRequest:
        """What a target would receive; the model of the file is kept at home only."""
        is_home = target.adapter.name == self.adapter.name
        model = target.model or (self.request.options.model if is_home else None)
        options = replace(self.request.options, model=model)
        try:
            with unlogged():
                return target.adapter.to_wire(self.request.messages, self.request.tools, options)
        except MetisError as error:
            raise Unreadable(f"{self.name}: {error}") from None

    def loss_lines(self, losses: list[Loss]) -> Iterator[str]:
        """The losses for people, one a line."""
        places = {message.id: number for number, message in enumerate(self.request.messages, 1)}
        return (loss_line(loss, places) for loss in losses)

    def _guessed_adapter(self) -> adapters.Adapter:
        known = None if self._guess is None else adapter_for(self._guess)
        if known is None:
            raise Unreadable(
                f"{self.name}: whose request this is cannot be told from it; say so with --from"
            )
        return adapters.get(known)

    def _read(self) -> CanonicalRequest:
        try:
            return self.adapter.from_wire_request(self._data, RequestContext(session_id="convert"))
        except MetisError as error:
            hint = self.hint()
            raise Unreadable(f"{self.name}: {error}" + (f"; {hint}" if hint else "")) from None


def loss_line(loss: Loss, places: Mapping[str, int]) -> str:
    """A loss in one line, with the number of its message."""
    number = places.get(loss.message_id)
    where = f"{loss.path}" if number is None else f"message {number} {loss.path}"
    return f"{loss.change}: {loss.block_type} at {where}: {loss.reason}"


def _loosely(data: bytes) -> object:
    """The JSON in some bytes; None if they are none, which the reader will say better."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None
