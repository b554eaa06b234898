"""`metis convert` and `metis diff`: what other providers would receive for a request in a file."""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.canonical import MetisError
from metis.canonical.errors import UnknownAdapterError
from metis.cli.error_text import error_line
from metis.cli.message_files import BYTE_ORDER_MARK, file_label
from metis.cli.output import echo, echo_json
from metis.cli.render import loss_line, message_numbers
from metis.cli.text import cell_width, fold, screen_width, style
from metis.verify.recordings import PROTOCOL_NAMES, adapter_for, guess_protocol
from metis.verify.request_diff import (
    DIFFERENT,
    EQUAL,
    FIRST_ONLY,
    SECOND_ONLY,
    aligned_lines,
    body_lines,
)
from metis.wire.call import CanonicalRequest, RequestContext, WireRequest
from metis.wire.json_access import maybe_object, maybe_text

_COLOURS = {FIRST_ONLY: "red", SECOND_ONLY: "green", DIFFERENT: "yellow"}


class RequestFileError(click.ClickException):
    """A problem with a file, printed as one line with the exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line to standard error."""
        del file
        echo(self.message, err=True)


class Target(NamedTuple):
    """Where a request would go: an adapter, and a model unless it is the default."""

    name: str
    adapter: adapters.Adapter
    model: str | None


@contextmanager
def without_loss_log() -> Generator[None]:
    """Keep losses out of the log while a command prints them."""
    # The adapter logs each loss as a warning, which would repeat the lines that the command
    # prints.
    log = logging.getLogger("metis.adapters")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def find_adapter(name: str, option: str) -> adapters.Adapter:
    """Return the adapter of a name; the error for an unknown name names the option."""
    try:
        return adapters.get(name)
    except UnknownAdapterError as error:
        raise click.BadParameter(error_line(error), param_hint=f"'{option}'") from None


def find_target(text: str, option: str) -> Target:
    """Return the target that a text such as `openai` or `openai:gpt-5` names."""
    name, _, model = text.partition(":")
    return Target(text, find_adapter(name, option), model or None)


class RequestFile:
    """A request body in a file, decoded in the protocol of an adapter."""

    def __init__(self, source: IO[bytes], from_name: str | None) -> None:
        self.name = file_label(source)
        self._data = source.read().removeprefix(BYTE_ORDER_MARK)
        if not self._data.strip():
            raise RequestFileError(f"{self.name}: the file is empty")
        self._guess = guess_protocol(_decode_or_none(self._data))
        if from_name is None:
            self.adapter = self._guessed_adapter()
        else:
            self.adapter = find_adapter(from_name, "--from")
        self.request = self._decode()

    def hint(self) -> str | None:
        """Return a hint if the body looks like another protocol than the one it is read in."""
        if self._guess is None or self._guess == self.adapter.profile.protocol:
            return None
        adapter = adapter_for(self._guess)
        advice = f"; try --from {adapter}" if adapter else ", which metis cannot read"
        return f"this looks like a request for {PROTOCOL_NAMES[self._guess]}{advice}"

    def wire_request_for(self, target: Target) -> WireRequest:
        """Return what a target would receive; the file's model counts for its own provider only."""
        # Another provider does not have the model that the file names.
        is_same_provider = target.adapter.name == self.adapter.name
        model = target.model or (self.request.options.model if is_same_provider else None)
        options = replace(self.request.options, model=model)
        try:
            with without_loss_log():
                return target.adapter.to_wire(self.request.messages, self.request.tools, options)
        except MetisError as error:
            raise RequestFileError(f"{self.name}: {error}") from None

    def loss_lines(self, wire: WireRequest) -> Iterator[str]:
        """Yield the losses of a request, one a line."""
        numbers = message_numbers(self.request.messages)
        return (loss_line(loss, numbers) for loss in wire.losses)

    def _guessed_adapter(self) -> adapters.Adapter:
        name = None if self._guess is None else adapter_for(self._guess)
        if name is None:
            text = "cannot tell which provider this request is for; name it with --from"
            raise RequestFileError(f"{self.name}: {text}")
        return adapters.get(name)

    def _decode(self) -> CanonicalRequest:
        try:
            return self.adapter.from_wire_request(self._data, RequestContext(session_id="convert"))
        except MetisError as error:
            hint = self.hint()
            text = f"{self.name}: {error}" + (f"; {hint}" if hint else "")
            raise RequestFileError(text) from None


def _decode_or_none(data: bytes) -> object:
    """Return the JSON value of some bytes; None if they are not JSON, which the adapter reports."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None


def print_conversion(  # noqa: PLR0913 - one parameter an option
    source: IO[bytes], *, from_name: str, to_name: str, model: str | None, strict: bool, json: bool
) -> int:
    """Print the converted body; the losses go to standard error.

    With `strict` any loss is a failure, and nothing is printed but the losses.
    """
    target = Target(to_name, find_adapter(to_name, "--to"), model)
    file = RequestFile(source, from_name)
    wire = file.wire_request_for(target)
    hint = file.hint()
    if hint:
        _print_note(f"{file.name}: {hint}", json=json)
    if json:
        for loss in wire.losses:
            echo_json(msgspec.json.encode(loss), err=True)
    else:
        for line in file.loss_lines(wire):
            echo(line, err=True)
    if strict and wire.losses:
        return 1
    echo_json(msgspec.json.format(wire.body, indent=2))
    return 0


def _print_note(text: str, *, json: bool) -> None:
    if json:
        echo_json(msgspec.json.encode({"note": text}), err=True)
    else:
        echo(f"note: {text}", err=True)


class _Side(NamedTuple):
    """One target of a comparison, and what it would receive."""

    target: Target
    wire: WireRequest

    @property
    def body(self) -> Any:
        """The body as plain values."""
        return msgspec.json.decode(self.wire.body)

    @property
    def model(self) -> str:
        """The model that the request names."""
        return maybe_text(maybe_object(self.body).get("model")) or self.target.adapter.wire_model(
            self.target.model
        )


def print_difference(
    source: IO[bytes], first: str, second: str, *, from_name: str | None, json: bool
) -> int:
    """Print both bodies side by side, then the losses of each."""
    targets = find_target(first, "A"), find_target(second, "B")
    file = RequestFile(source, from_name)
    sides = [_Side(target, file.wire_request_for(target)) for target in targets]
    if json:
        echo_json(msgspec.json.encode({"targets": [_as_json(side) for side in sides]}))
        return 0
    hint = file.hint()
    if hint:
        _print_note(f"{file.name}: {hint}", json=False)
    width = screen_width()
    for line in _side_by_side(sides, width):
        echo(line)
    for side in sides:
        echo()
        for line in _loss_report(side, file, width):
            echo(line)
    return 0


def _as_json(side: _Side) -> dict[str, Any]:
    return {
        "target": side.target.name,
        "adapter": side.target.adapter.name,
        "model": side.model,
        "method": side.wire.method,
        "path": side.wire.path,
        "body": side.body,
        "losses": side.wire.losses,
    }


def _side_by_side(sides: Sequence[_Side], width: int) -> Iterator[str]:
    """Yield two columns: the head of each side, then the bodies with equal lines aligned."""
    half = (width - 3) // 2
    for first, second in zip(*(_head(side) for side in sides), strict=True):
        for row in _rows(first, second, EQUAL, half):
            yield style(row, bold=True)
    yield "─" * half + "─┼─" + "─" * half
    first_body, second_body = (body_lines(side.body) for side in sides)
    for mark, first, second in aligned_lines(first_body, second_body):
        for row in _rows(first, second, mark, half):
            yield style(row, fg=_COLOURS[mark]) if mark in _COLOURS else row


def _head(side: _Side) -> list[str]:
    url = f"{side.wire.method} {side.wire.path}"
    return [f"{side.target.adapter.name} · {side.model}", url]


def _rows(first: str, second: str, mark: str, half: int) -> Iterator[str]:
    """Yield one pair of lines as rows of the screen; long lines continue below, indented."""
    first_rows, second_rows = fold(first, half), fold(second, half)
    for number in range(max(len(first_rows), len(second_rows))):
        left_text = first_rows[number] if number < len(first_rows) else ""
        right_text = second_rows[number] if number < len(second_rows) else ""
        padding = " " * (half - cell_width(left_text))
        yield f"{left_text}{padding} {mark} {right_text}".rstrip()


def _loss_report(side: _Side, file: RequestFile, width: int) -> Iterator[str]:
    name = side.target.name
    if not side.wire.losses:
        yield style(f"{name} loses nothing", fg="green")
        return
    yield style(f"{name} loses or changes {len(side.wire.losses)}:", bold=True)
    for line in file.loss_lines(side.wire):
        yield from fold(f"  {line}", width)
