"""Run the fuzz targets: `make fuzz TIME=3600`, or `python -m fuzz.run --total 1000000 NAME…`.

An input that raises anything but a MetisError, takes more than a second, or needs more than twenty
times its size in memory is written to `regressions/<target>/`, where the tests read it for ever.
The number of inputs of each target is stored in `build/fuzz.json`, so that interrupted runs add up.
"""

import argparse
import collections
import gc
import hashlib
import json
import logging
import signal
import sys
import time
import traceback
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from fuzz.mutation import Mutator, Run
from fuzz.targets import TARGETS
from metis.canonical import MetisError

REGRESSIONS = Path(__file__).parent / "regressions"
MAX_SECONDS = 1.0
MAX_GROWTH = 20
ROOM = 8_000_000
"""Memory that an input of any size may need: caches, compiled patterns."""
COUNTS = Path(__file__).parents[2] / "build" / "fuzz.json"
_MEASURED = 1_000
"""One in this many inputs is measured, because measuring memory takes time."""
_MEASURED_SECONDS = 0.05
"""Every input that takes longer is measured too: what needs memory needs time."""
_SLICE = 20_000
"""How many inputs of a target run before those of the next, so that all are tried early."""
_AMPLIFIED = 20_000
"""One in this many inputs is long."""
_PER_PLACE = 2
"""How many inputs are stored that fail at the same place."""
_BATCH = 200
_BATCH_SECONDS = 60.0
"""CPU time after which the input that runs is a fault: its work does not end."""
_PACKAGE = f"{Path('src') / 'metis'}"


class Endless(BaseException):
    """An input whose work did not end. No decoder catches it by mistake."""


def fault_of(run: Run, data: bytes) -> str | None:
    """Run a target; return what is wrong with it for this input, if anything is."""
    return _timed_fault(run, data)[0]


def _timed_fault(run: Run, data: bytes) -> tuple[str | None, float]:
    """Return the fault of an input, and its seconds of CPU."""
    start = time.process_time()
    try:
        run(data)
    except MetisError:
        pass
    except Exception as error:  # noqa: BLE001 - any other exception is what we look for
        return f"{type(error).__name__} at {_place(error)}: {str(error)[:200]}", 0.0
    seconds = time.process_time() - start
    return f"slow: {seconds:.1f} seconds" if seconds > MAX_SECONDS else None, seconds


def _raise_endless(_: int, __: FrameType | None) -> None:
    raise Endless


def _place(error: BaseException) -> str:
    """Return the innermost line of metis at which an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if _PACKAGE in frame.filename] or list(frames)
    return f"{Path(inner[-1].filename).name}:{inner[-1].lineno}"


def growth_of(run: Run, data: bytes) -> str | None:
    """Return by how much an input grows in memory, if that is too much."""
    gc.collect()
    tracemalloc.start()
    try:
        fault = fault_of(run, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if fault is not None and not fault.startswith("slow"):
        return fault
    too_much = MAX_GROWTH * len(data) + ROOM
    return f"large: {peak:,} bytes of memory of {len(data):,}" if peak > too_much else None


def store(name: str, data: bytes) -> Path:
    """Write an input to the regressions of a target."""
    path = REGRESSIONS / name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


class Campaign:
    """The run of one target: inputs, and the faults by the place where they happen."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.count = self.faults = 0
        target = TARGETS[name]
        self._run = target.run
        self._mutator = Mutator(target.seeds(), seed, target.pack)
        self._places: collections.Counter[str] = collections.Counter()
        # Seeds and modules live as long as the run: no collection has to look at them again.
        gc.freeze()

    def step(self) -> None:
        """Run some inputs, in the main thread."""
        signal.signal(signal.SIGVTALRM, _raise_endless)
        signal.setitimer(signal.ITIMER_VIRTUAL, _BATCH_SECONDS)
        data = b""
        try:
            for data in self._inputs():
                self._run_input(data)
        except Endless as error:
            self._note(f"endless at {_place(error)}: more than {_BATCH_SECONDS} seconds", data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _inputs(self) -> Iterator[bytes]:
        for _ in range(_BATCH):
            self.count += 1
            is_long = self.count % _AMPLIFIED == 0
            yield self._mutator.amplified() if is_long else self._mutator.next()

    def _run_input(self, data: bytes) -> None:
        # Measuring memory slows the work down, so time is measured without it.
        fault, seconds = _timed_fault(self._run, data)
        if fault is None and (self.count % _MEASURED == 0 or seconds > _MEASURED_SECONDS):
            fault = growth_of(self._run, data)
        self._note(fault, data)

    def _note(self, fault: str | None, data: bytes) -> None:
        if fault is None:
            return
        self.faults += 1
        place = fault.partition(": ")[0]
        self._places[place] += 1
        if self._places[place] <= _PER_PLACE:
            path = store(self.name, data)
            print(f"{self.name}: {fault}: {path.name}", flush=True)  # noqa: T201 - the output of a command


class Counts:
    """How many inputs each target has run, in a file that later runs continue."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.numbers: dict[str, int] = json.loads(path.read_bytes()) if path.exists() else {}

    def add(self, name: str, count: int) -> None:
        """Add inputs of a target to the file."""
        self.numbers[name] = self.numbers.get(name, 0) + count
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps(self.numbers, indent=1, sort_keys=True))
        temporary.replace(self._path)


def _run_for(campaign: Campaign, counts: Counts, seconds: float, inputs: int) -> None:
    """Run a target for a time, or a number of inputs."""
    start, first, faults = time.monotonic(), campaign.count, campaign.faults
    while time.monotonic() < start + seconds and campaign.count - first < inputs:
        campaign.step()
    counts.add(campaign.name, campaign.count - first)
    total, found = counts.numbers[campaign.name], campaign.faults - faults
    line = f"{campaign.name}: {campaign.count - first:,} inputs, {found} faults, {total:,} in all"
    print(f"{line}, {time.monotonic() - start:.0f} s", flush=True)  # noqa: T201 - the output of a command


def _run_up_to(total: int, names: Sequence[str], seed: int, counts: Counts) -> int:
    """Run targets in turn until each has a number of inputs; return the number of faults."""
    campaigns: dict[str, Campaign] = {}
    while rest := [name for name in names if counts.numbers.get(name, 0) < total]:
        for name in rest:
            if name not in campaigns:
                # Inputs of a continued run must not be those of the run before.
                campaigns[name] = Campaign(name, seed + counts.numbers.get(name, 0))
            missing = total - counts.numbers.get(name, 0)
            _run_for(campaigns[name], counts, 1e9, min(_SLICE, missing))
    return sum(campaign.faults for campaign in campaigns.values())


def main() -> None:
    """Run all targets, or those that are named, for an equal share of the time or of inputs."""
    logging.disable()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, help="for all targets together")
    parser.add_argument("--inputs", type=int, help="for each target")
    parser.add_argument("--total", type=int, help="for each target, with those of earlier runs")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    print(f"seed {options.seed}", flush=True)  # noqa: T201 - the output of a command
    counts = Counts(COUNTS)
    if options.total:
        sys.exit(_run_up_to(options.total, names, options.seed, counts) > 0)
    share = (options.seconds or (1e9 if options.inputs else 60.0)) / len(names)
    faults = 0
    for name in names:
        campaign = Campaign(name, options.seed)
        _run_for(campaign, counts, share, options.inputs or 1 << 62)
        faults += campaign.faults
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
