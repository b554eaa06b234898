"""`metis convert` and `metis diff`: what other providers would receive for a request in a file."""

import difflib
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.canonical import MetisError
from metis.canonical.errors import UnknownAdapterError
from metis.cli.message_files import file_label
from metis.cli.text import cell_width, fold, screen_width
from metis.projection import Loss
from metis.verify.recordings import PROTOCOL_NAMES, adapter_for, guess_protocol
from metis.wire.call import CanonicalRequest, RequestContext, WireRequest
from metis.wire.json_access import maybe_list, maybe_object, maybe_text

_BOM = b"\xef\xbb\xbf"


class RequestFileError(click.ClickException):
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
def without_loss_log() -> Generator[None]:
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
        self.name = file_label(source)
        self._data = source.read().removeprefix(_BOM)
        if not self._data.strip():
            raise RequestFileError(f"{self.name}: the file is empty")
        self._guess = guess_protocol(_decode_or_none(self._data))
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

    def wire_request_for(self, target: Target) -> WireRequest:
        """What a target would receive; the model of the file is kept at home only."""
        is_home = target.adapter.name == self.adapter.name
        model = target.model or (self.request.options.model if is_home else None)
        options = replace(self.request.options, model=model)
        try:
            with without_loss_log():
                return target.adapter.to_wire(self.request.messages, self.request.tools, options)
        except MetisError as error:
            raise RequestFileError(f"{self.name}: {error}") from None

    def loss_lines(self, losses: list[Loss]) -> Iterator[str]:
        """The losses for people, one a line."""
        places = {message.id: number for number, message in enumerate(self.request.messages, 1)}
        return (loss_line(loss, places) for loss in losses)

    def _guessed_adapter(self) -> adapters.Adapter:
        known = None if self._guess is None else adapter_for(self._guess)
        if known is None:
            raise RequestFileError(
                f"{self.name}: whose request this is cannot be told from it; say so with --from"
            )
        return adapters.get(known)

    def _read(self) -> CanonicalRequest:
        try:
            return self.adapter.from_wire_request(self._data, RequestContext(session_id="convert"))
        except MetisError as error:
            hint = self.hint()
            raise RequestFileError(
                f"{self.name}: {error}" + (f"; {hint}" if hint else "")
            ) from None


def loss_line(loss: Loss, places: Mapping[str, int]) -> str:
    """A loss in one line, with the number of its message."""
    number = places.get(loss.message_id)
    where = f"{loss.path}" if number is None else f"message {number} {loss.path}"
    return f"{loss.change}: {loss.block_type} at {where}: {loss.reason}"


def _decode_or_none(data: bytes) -> object:
    """The JSON in some bytes; None if they are none, which the reader will say better."""
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
        click.echo(_hint_line(f"{file.name}: {hint}", json=json), err=True)
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


def _hint_line(text: str, *, json: bool) -> str:
    return msgspec.json.encode({"note": text}).decode() if json else f"note: {text}"


_STRING_SHOWN = 240
_HEAD_SHOWN = 40
_EQUAL, _LEFT, _RIGHT, _BOTH = " ", "<", ">", "|"
_COLOUR = {_LEFT: "red", _RIGHT: "green", _BOTH: "yellow"}


class Side(NamedTuple):
    """One target, and what it would receive."""

    target: Target
    wire: WireRequest

    @property
    def body(self) -> Any:
        """The body as plain values."""
        return msgspec.json.decode(self.wire.body)

    @property
    def model(self) -> str:
        """The model that is asked."""
        return maybe_text(maybe_object(self.body).get("model")) or self.target.adapter.wire_model(
            self.target.model
        )


def print_difference(
    source: IO[bytes], left: str, right: str, *, from_name: str | None, json: bool
) -> int:
    """Print both bodies beside each other, then the losses of each."""
    targets = find_target(left, "A"), find_target(right, "B")
    file = RequestFile(source, from_name)
    sides = [Side(target, file.wire_request_for(target)) for target in targets]
    if json:
        click.echo(msgspec.json.encode({"targets": [_as_json(side) for side in sides]}).decode())
        return 0
    hint = file.hint()
    if hint:
        click.echo(f"note: {file.name}: {hint}", err=True)
    width = screen_width()
    for line in _columns(sides, width):
        click.echo(line)
    for side in sides:
        click.echo()
        for line in _losses(side, file, width):
            click.echo(line)
    return 0


def _as_json(side: Side) -> dict[str, Any]:
    return {
        "target": side.target.name,
        "adapter": side.target.adapter.name,
        "model": side.model,
        "method": side.wire.method,
        "path": side.wire.path,
        "body": side.body,
        "losses": side.wire.losses,
    }


def _columns(sides: Sequence[Side], width: int) -> Iterator[str]:
    """Two columns: the head of each, then the bodies, line by line where they say the same."""
    half = (width - 3) // 2
    for texts in zip(*(_head(side) for side in sides), strict=True):
        for row in _row(texts[0], texts[1], _EQUAL, half):
            yield click.style(row, bold=True)
    yield "─" * half + "─┼─" + "─" * half
    left, right = (_lines(side.body) for side in sides)
    for mark, one, other in _aligned(left, right):
        for row in _row(one, other, mark, half):
            yield click.style(row, fg=_COLOUR[mark]) if mark in _COLOUR else row


def _head(side: Side) -> list[str]:
    url = f"{side.wire.method} {side.wire.path}"
    return [f"{side.target.adapter.name} · {side.model}", url]


def _lines(body: Any) -> list[str]:
    return msgspec.json.format(msgspec.json.encode(_shortened(body)), indent=2).decode().split("\n")


def _shortened(value: Any) -> Any:
    """The same with long strings cut, such as images: who needs them whole asks for JSON."""
    if isinstance(value, str) and len(value) > _STRING_SHOWN:
        return f"{value[:_HEAD_SHOWN]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in maybe_object(value).items()}
    if isinstance(value, list):
        return [_shortened(item) for item in maybe_list(value)]
    return value


def _aligned(left: list[str], right: list[str]) -> Iterator[tuple[str, str, str]]:
    """Pairs of lines with a mark: the same, changed, or on one side only."""
    one, other = ([_said(line) for line in lines] for lines in (left, right))
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    for kind, start, end, begin, stop in matcher.get_opcodes():
        mine, theirs = left[start:end], right[begin:stop]
        shared = min(len(mine), len(theirs))
        mark = _EQUAL if kind == "equal" else _BOTH
        yield from ((mark, a, b) for a, b in zip(mine, theirs, strict=False))
        yield from ((_LEFT, line, "") for line in mine[shared:])
        yield from ((_RIGHT, "", line) for line in theirs[shared:])


def _said(line: str) -> str:
    """What two lines have in common if they say the same; a bracket says where it stands."""
    bare = line.strip().rstrip(",")
    return line.rstrip(",") if len(bare) == 1 else bare


def _row(left: str, right: str, mark: str, half: int) -> Iterator[str]:
    """One pair of lines as rows of the screen; what is too long goes on below, indented."""
    one, other = fold(left, half), fold(right, half)
    for number in range(max(len(one), len(other))):
        mine = one[number] if number < len(one) else ""
        theirs = other[number] if number < len(other) else ""
        yield f"{mine}{' ' * (half - cell_width(mine))} {mark} {theirs}".rstrip()


def _losses(side: Side, file: RequestFile, width: int) -> Iterator[str]:
    name = side.target.name
    if not side.wire.losses:
        yield click.style(f"{name} loses nothing", fg="green")
        return
    yield click.style(f"{name} loses or changes {len(side.wire.losses)}:", bold=True)
    for line in file.loss_lines(side.wire.losses):
        yield from fold(f"  {line}", width)
