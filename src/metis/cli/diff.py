"""`metis diff`: what two targets would receive for the same conversation, side by side."""

import difflib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import click
import msgspec

from metis.cli.columns import cells, columns, fold
from metis.cli.requests import RequestFile, Target, find_target
from metis.wire.call import WireRequest
from metis.wire.shape import maybe_list, maybe_object, maybe_text

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
    sides = [Side(target, file.sent_to(target)) for target in targets]
    if json:
        click.echo(msgspec.json.encode({"targets": [_as_json(side) for side in sides]}).decode())
        return 0
    hint = file.hint()
    if hint:
        click.echo(f"note: {file.name}: {hint}", err=True)
    width = columns()
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
        yield f"{mine}{' ' * (half - cells(mine))} {mark} {theirs}".rstrip()


def _losses(side: Side, file: RequestFile, width: int) -> Iterator[str]:
    name = side.target.name
    if not side.wire.losses:
        yield click.style(f"{name} loses nothing", fg="green")
        return
    yield click.style(f"{name} loses or changes {len(side.wire.losses)}:", bold=True)
    for line in file.loss_lines(side.wire.losses):
        yield from fold(f"  {line}", width)
