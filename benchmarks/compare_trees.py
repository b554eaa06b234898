"""Compare the required figures of two checkouts: instructions, or CPU time in alternating runs.

Each tree runs its own benchmark modules with its own `.venv`, in one process that stays. Times on a
shared machine vary by a tenth and more, so the default counts the instructions that valgrind
executes, which hardly vary: `time.process_time_ns`, which the benchmarks read, is replaced by
a count of instructions. `--time` reads CPU time instead and alternates between the trees.
Either way the least of several runs counts, since other work can only add to it.

    python benchmarks/compare_trees.py BASE HEAD [--rows WORDS] [--time] [--rounds N]

BASE and HEAD are directories of checkouts. A figure that one tree does not have is marked `-`.
"""

import argparse
import asyncio
import gc
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from itertools import permutations
from pathlib import Path
from typing import Any

_PROTOCOLS = ("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses")
_MESSAGES = 200
_STORED = 1024
_TURNS = 10
_LIMIT = 1.05

Figure = Callable[[], float]
"""Runs one measurement in this process and returns microseconds, or thousands of instructions."""


def labels() -> Iterator[str]:
    """The names of all figures, in the order of the table."""
    yield from ("canonical decode", "canonical decode_trusted", "canonical encode")
    for name in _PROTOCOLS:
        yield f"{name} to_wire, first time"
        yield f"{name} to_wire, a turn later, {_MESSAGES}"
        yield f"{name} to_wire, a turn later, 5000"
        yield f"{name} to_wire, of a client of {name}"
        yield f"{name} to_wire, of a client of {'openai' if name == 'anthropic' else 'anthropic'}"
        yield f"{name} from_wire_request"
        yield f"{name} from_wire_response"
        yield f"{name} stream"
    yield from (f"{source} stream to {target}" for source, target in permutations(_PROTOCOLS, 2))
    for name in _PROTOCOLS:
        yield f"{name} next_turn {_MESSAGES}, read"
        yield from (f"{name} next_turn {_MESSAGES}, sent to {to}" for to in ("anthropic", "openai"))
    yield from ("store append", "store load", "store 64 tasks", "store 64 in one")
    for count in (10, 100, 1000):
        yield from (f"session first turn, {count}", f"session later turn, {count}")


class Figures:
    """The figures of the tree whose benchmark modules are imported, by label."""

    def __init__(self) -> None:
        self._wire: dict[str, Any] = {}
        self._messages: list[Any] = []

    def find(self, label: str) -> Figure:
        """Prepare a figure. Raises ImportError or KeyError if this tree does not have it."""
        subject, _, work = label.partition(" ")
        match subject:
            case "canonical":
                return self._canonical(work)
            case "store":
                return partial(_in_directory, partial(self._store, work))
            case "session":
                return partial(_in_directory, partial(_session, work))
            case _ if work.startswith("next_turn"):
                return _next_turn(subject, work)
            case _ if " to " in work and work.startswith("stream"):
                target = work.removeprefix("stream to ")
                return _wire_figure(import_module("wire").translation(subject, target))
            case _:
                if label not in self._wire:
                    found = import_module("wire").works(subject, _MESSAGES)
                    self._wire = {f"{subject} {one.name}": one for one in found}
                return _wire_figure(self._wire[label])

    def messages(self) -> list[Any]:
        """The conversation of the canonical figures and of the store."""
        if not self._messages:
            self._messages = import_module("canonical").make_messages(_STORED)
        return self._messages

    def _canonical(self, work: str) -> Figure:
        canonical, messages = import_module("canonical"), self.messages()
        function = getattr(canonical, work)
        items = messages if work == "encode" else [canonical.encode(each) for each in messages]
        return partial(canonical.cpu_us, function, items, len(messages))

    async def _store(self, work: str, url: str) -> float:
        store, messages = import_module("store"), self.messages()
        match work:
            case "append":
                job = partial(store.append_one_by_one, messages=messages)
            case "load":
                await store.in_store(url, partial(store.append_one_by_one, messages=messages))
                job = partial(store.load, name=messages[0].session_id)
            case "64 tasks":
                parts = store.copies(messages[: _STORED // 64], 64)
                job = partial(store.append_from_tasks, parts=parts)
            case _:
                job = partial(store.append_to_one, messages=messages)
        return (await store.in_store(url, job)).cpu


def _wire_figure(work: Any) -> Figure:
    def run() -> float:
        return import_module("wire").cpu_us(partial(work.ours, work.adapter()))

    return run


def _next_turn(name: str, work: str) -> Figure:
    module = import_module("next_turn")
    turns = module.turns_of(name, _MESSAGES)
    target = work.partition(", sent to ")[2]
    prepare = (
        partial(module.read_and_send, turns, target) if target else partial(module.read, turns)
    )
    return lambda: module.cpu_us(prepare())


async def _session(work: str, url: str) -> float:
    module = import_module("session")
    options = module.Options(
        keys={"anthropic": "none"},
        bus=module.Bus(),
        compact_at=None,
        options=module.AdapterOptions(),
    )
    async with module.Metis(url, options) as m:
        before = int(work.rpartition(" ")[2])
        first, later = await module.turns(m, module.WORDS, before, _TURNS)
    return first if work.startswith("first") else later


def _in_directory(job: Callable[[str], Awaitable[float]]) -> float:
    async def run(url: str) -> float:
        return await job(url)

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(run(f"sqlite:///{directory}/bench.db"))


class InstructionCounter:
    """A count of instructions in place of CPU time, in a process below callgrind.

    Callgrind counts only within the context, since it slows everything down fifty times. It
    writes what it counted to a new file, and begins at 0 again, whenever `getppid` is called.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self._counting = False
        self._parts = 0
        self._total = 0
        self._reading = 0
        with self:
            self._reading = min(-self() + self() for _ in range(20))

    def __enter__(self) -> None:
        self._switch("on")
        self._counting = True
        self()

    def __exit__(self, *_: object) -> None:
        self._counting = False
        self._switch("off")

    def _switch(self, state: str) -> None:
        command = ["vgdb", f"--pid={os.getpid()}", "instrumentation", state]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - fixed words

    def __call__(self) -> int:
        """The instructions so far, without those of reading the count."""
        if not self._counting:
            return 0
        os.getppid()
        self._parts += 1
        path = f"{self._output}.{self._parts}"
        with open(path, "rb") as part:  # noqa: PTH123 - fewer instructions than a Path
            header = part.read(2000)
        os.unlink(path)  # noqa: PTH108 - the same
        self._total += int(header.partition(b"summary: ")[2].split()[0]) - self._reading
        return self._total


def measure(tree: Path, output: str | None) -> None:
    """Answer each line of standard input, `rounds TAB label`, with the least of so many runs."""
    sys.path[0] = str(tree / "benchmarks")
    logging.disable(logging.WARNING)  # losses are counted, not printed
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    counter = InstructionCounter(output) if output is not None else None
    if counter is not None:
        time.process_time_ns = counter
    figures = Figures()
    for line in sys.stdin:
        rounds, label = line.rstrip("\n").split("\t")
        try:
            figure = figures.find(label)
        except (ImportError, KeyError):
            print("nan", file=answers)
            continue
        figure()  # the first run fills caches
        gc.collect()
        with counter or nullcontext():
            print(min(figure() for _ in range(int(rounds))), file=answers)


@contextmanager
def worker(tree: Path, output: str | None) -> Generator[subprocess.Popen[str]]:
    """The process of one tree, which ends with the context."""
    command = [f"{tree}/.venv/bin/python", __file__, "--measure", str(tree)]
    if output is not None:
        options = ["--tool=callgrind", "--instr-atstart=no", "--dump-before=getppid"]
        options.append(f"--callgrind-out-file={output}")
        command = ["valgrind", "-q", *options, *command, "--output", output]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(  # noqa: S603 - the interpreters of the trees that the caller names
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        assert process.stdin is not None  # noqa: S101 - a pipe, as opened above
        process.stdin.close()


def ask(process: subprocess.Popen[str], label: str, rounds: int) -> None:
    """Let a worker measure a figure; its answer is read later."""
    assert process.stdin is not None  # noqa: S101 - a pipe
    process.stdin.write(f"{rounds}\t{label}\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> float:
    """The figure that was measured. Raises ValueError if the worker ended."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    return float(process.stdout.readline())


def compare(base: Path, head: Path, wanted: str, rounds: int, *, timed: bool) -> None:
    """Print the table."""
    unit = "CPU us" if timed else "1000 instructions"
    print(f"| figure | base, {unit} | head | head / base |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as directory:
        outputs = [None, None] if timed else [f"{directory}/base", f"{directory}/head"]
        with worker(base, outputs[0]) as old, worker(head, outputs[1]) as new:
            for label in labels():
                if not any(word in label for word in wanted.split("|")):
                    continue
                both = _alternate if timed else _together
                before, after = both(old, new, label, rounds)
                mark = " over 5 %" if after > before * _LIMIT else ""
                row = f"{before:.1f} | {after:.1f} | {after / before:.3f}{mark} |"
                print(f"| {label} | {row}".replace("nan", "-"), flush=True)


def _together(
    old: subprocess.Popen[str], new: subprocess.Popen[str], label: str, rounds: int
) -> tuple[float, float]:
    """Both trees at once: counts do not depend on what runs beside them."""
    ask(old, label, rounds)
    ask(new, label, rounds)
    return answer(old), answer(new)


def _alternate(
    old: subprocess.Popen[str], new: subprocess.Popen[str], label: str, rounds: int
) -> tuple[float, float]:
    """One tree after the other, several times."""
    values: dict[subprocess.Popen[str], list[float]] = {old: [], new: []}
    for number in range(rounds):
        for process in (old, new) if number % 2 else (new, old):
            ask(process, label, 5)
            values[process].append(answer(process))
    return min(values[old]), min(values[new])


def main() -> None:
    """Compare two trees, or measure one of them for the process that compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="BASE and HEAD")
    parser.add_argument("--rows", default="", help="only labels with one of these words, by |")
    parser.add_argument("--time", action="store_true", help="CPU time instead of instructions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        measure(given.measure, given.output)
    elif len(given.trees) == 2:  # noqa: PLR2004 - one before, one after
        base, head = (each.resolve() for each in given.trees)
        compare(base, head, given.rows, given.rounds, timed=given.time)
    else:
        parser.error("name two trees, BASE and HEAD")


if __name__ == "__main__":
    main()
