"""`metis verify`: what holds for recorded exchanges, and what would be lost or changed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO

import click
from msgspec.structs import replace

from metis.canonical import Message, MetisError
from metis.cli.conversion import Target, find_adapter, find_target, loss_line, without_loss_log
from metis.cli.message_files import file_label
from metis.cli.render import count
from metis.cli.text import escape_controls, fold, terminal_width
from metis.projection import Loss
from metis.verify.laws import Findings, Law, check_laws
from metis.verify.recordings import Recording, adapter_of, read_recording
from metis.wire.call import CanonicalRequest

_BOM = b"\xef\xbb\xbf"


def print_verdicts(
    sources: Sequence[IO[bytes]], *, from_name: str | None, to_name: str | None
) -> int:
    """Print the findings of each file, then what holds for it; 1 if something broke."""
    if from_name is not None:
        find_adapter(from_name, "--from")
    target = None if to_name is None else find_target(to_name, "--to")
    with without_loss_log():
        results = [_File(source, from_name, target).run() for source in sources]
    return 0 if all(results) else 1


class _File:
    """One file of recordings, and what was found in it so far."""

    def __init__(self, source: IO[bytes], from_name: str | None, target: Target | None) -> None:
        self._source = source
        self._name = file_label(source)
        self._from_name = from_name
        self._width = terminal_width()
        self._target = target
        self._answers: dict[str, Message] = {}
        self._seen: Counter[Law] = Counter()
        self._held: Counter[Law] = Counter()
        self._skipped: Counter[str] = Counter()
        self._exchanges = self._bad = self._changed = self._errors = 0
        self._losing = self._losses = 0

    def run(self) -> bool:
        """Check every line; whether nothing broke."""
        for number, line in enumerate(self._source, 1):
            data = line.removeprefix(_BOM) if number == 1 else line
            if data.strip():
                self._take(number, data)
        if not self._exchanges:
            click.echo(f"{self._name}: the file holds no exchange", err=True)
            return False
        for line in self._summary():
            click.echo(line)
        return not self._bad and self._seen == self._held

    def _take(self, number: int, data: bytes) -> None:
        self._exchanges += 1
        try:
            recording = read_recording(data)
        except MetisError as error:
            self._bad += 1
            click.echo(f"{self._name}:{number}: {error}", err=True)
            return
        adapter = adapter_of(recording, self._from_name)
        if adapter is None:
            self._skipped[recording.protocol or recording.provider or "unnamed"] += 1
            return
        findings = check_laws(recording, adapter, self._answers)
        if findings.response is not None and recording.id:
            self._answers[recording.id] = findings.response
        self._errors += bool(findings.notes)
        self._show(f"{self._name}:{number}", list(self._lines(recording, findings)))

    def _show(self, place: str, lines: Sequence[str]) -> None:
        """Print the findings of an exchange: for people below its place, for programs beside it."""
        if self._width is None:
            for line in lines:
                click.echo(f"{place}: {escape_controls(line)}")
        elif lines:
            click.secho(place, bold=True)
            for line in lines:
                click.echo("\n".join(fold(f"  {line}", self._width)))

    def _lines(self, recording: Recording, findings: Findings) -> Iterator[str]:
        for verdict in findings.verdicts:
            self._seen[verdict.law] += 1
            self._held[verdict.law] += not verdict.faults
            yield from (f"broken: {verdict.law}: {fault}" for fault in verdict.faults)
        self._changed += bool(findings.losses)
        if findings.request is None:
            return
        yield from _loss_lines(findings.losses, findings.request, "repaired")
        if self._target is not None:
            yield from self._lost(findings.request, self._target, recording)

    def _lost(
        self, request: CanonicalRequest, target: Target, recording: Recording
    ) -> Iterator[str]:
        """What would be lost on the way to the target."""
        at_home = recording.provider == target.adapter.name
        model = target.model or (request.options.model if at_home else None)
        try:
            wire = target.adapter.to_wire(
                request.messages, request.tools, replace(request.options, model=model)
            )
        except MetisError as error:
            self._losing += 1
            yield f"to {target.name}: refused: {error}"
            return
        self._losing += bool(wire.losses)
        self._losses += len(wire.losses)
        yield from _loss_lines(wire.losses, request, f"to {target.name}")

    def _summary(self) -> Iterator[str]:
        yield click.style(f"{self._name}: {count(self._exchanges, 'exchange')}", bold=True)
        for law in Law:
            if self._seen[law]:
                yield self._law_line(law)
        if self._bad:
            lines = count(self._bad, "line")
            yield click.style(f"  ✗ {lines} that cannot be read", fg="red")
        for protocol, number in self._skipped.items():
            yield f"  - {number} not checked: no adapter speaks {protocol}"
        if self._errors:
            yield f"  - {self._errors} ended in an error, as recorded"
        if self._changed:
            requests = count(self._changed, "request")
            yield f"  - {requests} would be repaired before being sent again"
        if self._target is not None:
            yield f"  - to {self._target.name}: {self._target_line()}"

    def _law_line(self, law: Law) -> str:
        seen, held = self._seen[law], self._held[law]
        mark, colour = ("✓", "green") if seen == held else ("✗", "red")
        return click.style(f"  {mark} {law:<20}{held:>6} of {seen}", fg=colour)

    def _target_line(self) -> str:
        if not self._losing:
            return "nothing would be lost or changed"
        parts, exchanges = count(self._losses, "part"), count(self._losing, "exchange")
        return f"{parts} of {exchanges} would be lost or changed"


def _loss_lines(losses: Sequence[Loss], request: CanonicalRequest, what: str) -> Iterator[str]:
    places = {message.id: number for number, message in enumerate(request.messages, 1)}
    return (f"{what}: {loss_line(loss, places)}" for loss in losses)
