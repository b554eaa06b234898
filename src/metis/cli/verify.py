"""`metis verify`: check recorded exchanges against the round-trip rules."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO

from msgspec.structs import replace

from metis.canonical import Message, MetisError
from metis.cli.conversion import Target, find_adapter, find_target, without_loss_log
from metis.cli.message_files import BYTE_ORDER_MARK, file_label
from metis.cli.output import echo
from metis.cli.render import loss_line, message_numbers
from metis.cli.text import count, escape_controls, fold, style, terminal_width
from metis.projection import Loss
from metis.verify.laws import Findings, Law, check_laws
from metis.verify.recordings import Recording, adapter_of, read_recording
from metis.wire.call import CanonicalRequest


def print_verdicts(
    sources: Sequence[IO[bytes]], *, from_name: str | None, to_name: str | None
) -> int:
    """Print the findings of each file and a summary; the exit code is 1 if a rule was broken."""
    if from_name is not None:
        find_adapter(from_name, "--from")
    target = None if to_name is None else find_target(to_name, "--to")
    with without_loss_log():
        results = [_RecordingFile(source, from_name, target).check() for source in sources]
    return 0 if all(results) else 1


class _RecordingFile:
    """One file of recorded exchanges, and the counts of what was found in it."""

    def __init__(self, source: IO[bytes], from_name: str | None, target: Target | None) -> None:
        self._source = source
        self._name = file_label(source)
        self._from_name = from_name
        self._width = terminal_width()
        self._target = target
        self._responses: dict[str, Message] = {}
        self._checked: Counter[Law] = Counter()
        self._passed: Counter[Law] = Counter()
        self._skipped: Counter[str] = Counter()
        self._exchange_count = self._unreadable_count = 0
        self._repaired_count = self._error_count = 0
        self._lossy_count = self._loss_count = 0

    def check(self) -> bool:
        """Check every line; return whether all could be read and no rule was broken."""
        for number, line in enumerate(self._source, 1):
            data = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if data.strip():
                self._check_line(number, data)
        if not self._exchange_count:
            echo(f"{self._name}: no exchange in this file", err=True)
            return False
        for line in self._summary():
            echo(line)
        return not self._unreadable_count and self._checked == self._passed

    def _check_line(self, number: int, data: bytes) -> None:
        self._exchange_count += 1
        try:
            recording = read_recording(data)
        except MetisError as error:
            self._unreadable_count += 1
            echo(f"{self._name}:{number}: {error}", err=True)
            return
        adapter = adapter_of(recording, self._from_name)
        if adapter is None:
            self._skipped[recording.protocol or recording.provider or "unnamed"] += 1
            return
        findings = check_laws(recording, adapter, self._responses)
        # A later recording may continue from this response by its id.
        if findings.response is not None and recording.id:
            self._responses[recording.id] = findings.response
        self._error_count += bool(findings.notes)
        self._print(f"{self._name}:{number}", list(self._lines(recording, findings)))

    def _print(self, location: str, lines: Sequence[str]) -> None:
        """Print the findings of an exchange: at a terminal below its location, else behind it."""
        if self._width is None:
            for line in lines:
                echo(f"{location}: {escape_controls(line)}")
        elif lines:
            echo(style(location, bold=True))
            for line in lines:
                echo("\n".join(fold(f"  {line}", self._width)))

    def _lines(self, recording: Recording, findings: Findings) -> Iterator[str]:
        for verdict in findings.verdicts:
            self._checked[verdict.law] += 1
            self._passed[verdict.law] += not verdict.faults
            yield from (f"broken: {verdict.law}: {fault}" for fault in verdict.faults)
        self._repaired_count += bool(findings.losses)
        if findings.request is None:
            return
        yield from _loss_lines(findings.losses, findings.request, "repaired")
        if self._target is not None:
            yield from self._target_losses(findings.request, self._target, recording)

    def _target_losses(
        self, request: CanonicalRequest, target: Target, recording: Recording
    ) -> Iterator[str]:
        """Yield what the target would not receive as it is."""
        is_same_provider = recording.provider == target.adapter.name
        model = target.model or (request.options.model if is_same_provider else None)
        try:
            wire = target.adapter.to_wire(
                request.messages, request.tools, replace(request.options, model=model)
            )
        except MetisError as error:
            self._lossy_count += 1
            yield f"to {target.name}: refused: {error}"
            return
        self._lossy_count += bool(wire.losses)
        self._loss_count += len(wire.losses)
        yield from _loss_lines(wire.losses, request, f"to {target.name}")

    def _summary(self) -> Iterator[str]:
        yield style(f"{self._name}: {count(self._exchange_count, 'exchange')}", bold=True)
        for law in Law:
            if self._checked[law]:
                yield self._law_line(law)
        if self._unreadable_count:
            lines = count(self._unreadable_count, "line")
            yield style(f"  ✗ {lines} could not be read", fg="red")
        for protocol, number in self._skipped.items():
            yield f"  - {number} not checked: no adapter for {protocol}"
        if self._error_count:
            yield f"  - {self._error_count} ended in an error, as recorded"
        if self._repaired_count:
            requests = count(self._repaired_count, "request")
            yield f"  - {requests} would be repaired before being sent again"
        if self._target is not None:
            yield f"  - to {self._target.name}: {self._target_summary()}"

    def _law_line(self, law: Law) -> str:
        checked, passed = self._checked[law], self._passed[law]
        mark, colour = ("✓", "green") if checked == passed else ("✗", "red")
        return style(f"  {mark} {law:<20}{passed:>6} of {checked}", fg=colour)

    def _target_summary(self) -> str:
        if not self._lossy_count:
            return "nothing would be lost or changed"
        parts, exchanges = count(self._loss_count, "part"), count(self._lossy_count, "exchange")
        return f"{parts} of {exchanges} would be lost or changed"


def _loss_lines(losses: Sequence[Loss], request: CanonicalRequest, prefix: str) -> Iterator[str]:
    numbers = message_numbers(request.messages)
    return (f"{prefix}: {loss_line(loss, numbers)}" for loss in losses)
