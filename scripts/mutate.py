"""Measure whether tests notice changed behaviour: one-point mutants of a package.

    python scripts/mutate.py routing --count 40 --seed 1

The tests of the package are collected once. They run under coverage, which shows what each line is
reached by; the result is stored for each test file until the sources or that file change. Then
mutants are drawn with the seed: each changes one operator, constant, condition or statement of the
package in a copy of the source, and only the tests that reach the line run against it, in a fork of
the process in which the changed function has its new code. A mutant that no test notices is judged
once more in a fresh process, because a cache may hold what the old code computed; it survives if
no test notices it there either. `tests/project/equivalent_mutants.toml` lists the mutants that
change nothing. `--at FILE:LINE` judges every mutant of a line instead.
"""

import argparse
import ast
import contextlib
import gc
import hashlib
import inspect
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple, TextIO

import coverage
import pytest

from mutants import Mutant, equivalent_mutants, mutants_of

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
WORK = ROOT / "build" / "mutate"
COPY = WORK / "src"
MAX_TESTS = 40
"""How many of the tests that reach a line run, the most specific ones first.

A line of the core is reached by thousands of tests, most of which are about something else.
"""
TIMEOUT_S = 120.0
NOT_PREPARED = 2
"""The status of a fork in which only a new import would have the mutant."""


Place = tuple[str, int]


class Outcome(NamedTuple):
    """Whether tests noticed a mutant."""

    mutant: Mutant
    is_killed: bool
    test_count: int


# A mutant in a running process


def functions_by_file(files: Iterable[Path]) -> dict[str, dict[Place, list[FunctionType]]]:
    """Return the live functions of modules by where they are defined."""
    names = {str(path) for path in files}
    functions: dict[str, dict[Place, list[FunctionType]]] = {name: {} for name in names}
    gc.unfreeze()
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and found.__code__.co_filename in names:
            places = functions[found.__code__.co_filename]
            places.setdefault(_place(found.__code__), []).append(found)
    gc.freeze()
    return functions


def _place(code: CodeType) -> Place:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType, *, in_function: bool = False) -> Iterator[tuple[CodeType, bool]]:
    """Yield a code object and all that it contains, each with whether a function contains it."""
    yield code, in_function
    is_function = in_function or bool(code.co_flags & inspect.CO_OPTIMIZED)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant, in_function=is_function)


def _own(code: CodeType) -> tuple[object, ...]:
    # With their types in the spelling: 1, 1.0 and True are equal.
    constants = [repr(value) for value in code.co_consts if not isinstance(value, CodeType)]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_exceptiontable


def install(mutant: Mutant, text: str, functions: Mapping[Place, list[FunctionType]]) -> bool:
    """Give live functions the code of a mutant; False if only a new import would have it."""
    filename = str(COPY / mutant.path)
    before = _by_place(compile(text, filename, "exec"))
    after = _by_place(compile(mutant.tree, filename, "exec"))
    replaced: list[tuple[FunctionType, CodeType]] = []
    for place, codes in before.items():
        others = after.get(place, [])
        if [_own(code) for code, _ in codes] != [_own(code) for code, _ in others]:
            live = functions.get(place, [])
            is_inner = all(in_function for _, in_function in codes)
            # The code of a module or class body has run already, and two lambdas of a line
            # cannot be told apart.
            if not is_inner and (len(codes) > 1 or not live):
                return False
        if len(codes) == len(others) == 1:
            replaced += [(function, others[0][0]) for function in functions.get(place, [])]
    try:
        for function, code in replaced:
            function.__code__ = code
    except ValueError:  # other free variables
        return False
    return bool(replaced)


def _by_place(code: CodeType) -> dict[Place, list[tuple[CodeType, bool]]]:
    places: dict[Place, list[tuple[CodeType, bool]]] = defaultdict(list)
    for inner, in_function in _codes(code):
        places[_place(inner)].append((inner, in_function))
    return dict(places)


# Which tests reach a line


def reached_lines(package: str, data_files: Iterable[Path]) -> dict[Path, dict[int, list[str]]]:
    """Return the ids of the tests that reach each line of a package."""
    reached: dict[Path, dict[int, list[str]]] = {}
    for data in data_files:
        recorded = coverage.CoverageData(str(data))
        recorded.read()
        for name in recorded.measured_files():
            path = Path(name)
            if path.is_relative_to(COPY / "metis" / package):
                lines = reached.setdefault(path.relative_to(COPY), defaultdict(list))
                for line, tests in recorded.contexts_by_lineno(name).items():
                    lines[line] += [test for test in tests if test]
    return reached


def near_lines(package: str, items: Iterable[pytest.Item]) -> dict[Path, dict[int, list[str]]]:
    """Return the ids of the tests that are about each module, for every line of its functions."""
    by_file: dict[Path, list[str]] = defaultdict(list)
    for item in items:
        by_file[item.path].append(item.nodeid)
    texts = {file: file.read_text() for file in by_file}
    reached: dict[Path, dict[int, list[str]]] = {}
    for path in (COPY / "metis" / package).rglob("*.py"):
        module = ".".join(path.relative_to(COPY).with_suffix("").parts)

        distances = {file: _distance(module, file, text) for file, text in texts.items()}
        near = [file for file in by_file if distances[file] < UNRELATED]
        near.sort(key=lambda file, distances=distances: (distances[file], file.stem))
        tests = [test for file in near or by_file for test in by_file[file]]
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        reached[path.relative_to(COPY)] = {
            line: tests
            for node in functions
            for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        }
    return reached


UNRELATED = 5


def _distance(module: str, file: Path, text: str) -> int:
    """Return how far the subject of a test file is from a module, as names and imports show."""
    *_, parent, stem = module.split(".")
    signs = (
        file.stem in (f"test_{stem}", f"test_{parent}_{stem}"),
        f"{module} " in text,
        re.search(rf"\b{stem}\b", text) is not None,
        not set(stem.split("_")).isdisjoint(file.stem.split("_")),
        parent in file.stem,
        True,
    )
    return signs.index(True)


def _hash_of(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Judge:
    """A plugin of pytest that runs tests against mutants in the place of its loop."""

    def __init__(self, given: argparse.Namespace, report: TextIO) -> None:
        self._given = given
        self._report = report
        self._has_failed = False
        self.outcomes: list[Outcome] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test has failed."""
        self._has_failed = self._has_failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge mutants once the tests are collected."""
        if self._given.near:
            reached = near_lines(self._given.package, session.items)
        else:
            reached = reached_lines(self._given.package, self._measure(session))
        items = {item.nodeid: item for item in session.items}
        functions = functions_by_file(COPY / path for path in reached)
        numbers = itertools.count(1_000_000_000)
        for mutant, ids in draw(reached, self._given):
            tests = [items[test] for test in ids if test in items]
            text = (COPY / mutant.path).read_text()
            with mutated_file(mutant, next(numbers)):
                known = functions.get(str(COPY / mutant.path), {})
                status = self._fork(session, tests, partial(install, mutant, text, known))
                if status == NOT_PREPARED or not (status or self._given.near):
                    status = fails_afresh([test.nodeid for test in tests])
                is_killed = bool(status)
            outcome = Outcome(mutant, is_killed, len(tests))
            self.outcomes.append(outcome)
            verdict = "killed  " if is_killed else "SURVIVED"
            print(verdict, mutant, file=self._report, flush=True)
        return True

    def _measure(self, session: pytest.Session) -> list[Path]:
        """Run the tests of every changed file under coverage; return the data of all files."""
        sources = _hash_of(*sorted((COPY / "metis").rglob("*.py")))
        maps = WORK / "maps" / sources
        maps.mkdir(parents=True, exist_ok=True)
        data_files: list[Path] = []
        for file, items in itertools.groupby(session.items, key=lambda item: item.path):
            tests = list(items)
            data = maps / f"{file.stem}.{_hash_of(file)}"
            data_files.append(data)
            if not data.exists() and self._fork(session, tests, partial(_trace, data), data):
                print("fails without a mutant:", file, file=self._report, flush=True)
        return [data for data in data_files if data.exists()]

    def _fork(
        self,
        session: pytest.Session,
        tests: Sequence[pytest.Item],
        prepare: Callable[[], object],
        data: Path | None = None,
    ) -> int:
        """Run tests in a fork until one fails; return its status, not 0 if one did.

        With the path of coverage data all tests run.
        """
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            status = 1
            try:
                prepared = prepare()
                status = self._run(session, tests, prepared) if prepared else NOT_PREPARED
            finally:
                os._exit(status)
        return _wait(child, TIMEOUT_S if data is None else 20 * TIMEOUT_S)

    def _run(self, session: pytest.Session, tests: Sequence[pytest.Item], prepared: object) -> int:
        measured = prepared if isinstance(prepared, coverage.Coverage) else None
        failed: list[str] = []
        for test, following in itertools.zip_longest(tests, tests[1:]):
            self._has_failed = False
            if measured is not None:
                measured.switch_context(test.nodeid)
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if self._has_failed:
                failed.append(test.nodeid)
                if measured is None:
                    session._setupstate.teardown_exact(None)  # noqa: SLF001 - ends servers that tests started  # pyright: ignore[reportPrivateUsage] - pytest has no public way
                    break
        if measured is not None:
            measured.stop()
            measured.save()
            if failed:
                print(*failed, file=self._report, flush=True)
        return 1 if failed else 0


def _trace(data: Path) -> coverage.Coverage:
    measured = coverage.Coverage(
        data_file=str(data), source=[str(COPY / "metis")], config_file=False, messages=False
    )
    measured.start()
    return measured


def _wait(child: int, seconds: float) -> int:
    """Wait for a fork; return its status. An endless loop is a failure."""
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s:
            process, status = os.waitpid(child, os.WNOHANG)
            if process:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        return 1
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


@contextlib.contextmanager
def mutated_file(mutant: Mutant, modified_s: int) -> Generator[None]:
    """Write a mutant into the copy of the sources, for programs that tests start."""
    path = COPY / mutant.path
    original, times = path.read_text(), path.stat()
    path.write_text(mutant.module)
    # Compiled modules are recognised by time in seconds and size, which two mutants may share.
    os.utime(path, (modified_s, modified_s))
    try:
        yield
    finally:
        path.write_text(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def fails_afresh(tests: Sequence[str]) -> bool:
    """Run tests in a new process; return whether one of them failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", *tests]
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command, cwd=ROOT, check=False, capture_output=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def draw(
    reached: Mapping[Path, Mapping[int, list[str]]], given: argparse.Namespace
) -> Iterator[tuple[Mutant, list[str]]]:
    """Yield mutants in lines that tests reach, in a random order that the seed determines."""
    rng = random.Random(given.seed)  # noqa: S311 - repeatable, not secret
    points: list[tuple[Path, int, Callable[[], Mutant]]] = []
    for path in sorted(reached):
        text = (SOURCE / path).read_text()
        points += [
            (path, line, make) for line, make in mutants_of(path, text) if reached[path].get(line)
        ]
    count: int = given.count
    if given.at:
        points = [point for point in points if f"{point[0]}:{point[1]}" in given.at]
        count = len(points)
    equivalents = equivalent_mutants()
    breadths: Counter[str] = Counter()
    if not given.near:
        for lines in reached.values():
            breadths.update(itertools.chain.from_iterable(lines.values()))
    rng.shuffle(points)
    for path, line, make in points:
        if count == 0:
            return
        mutant = make()
        change = (str(path), mutant.before, mutant.after)
        if mutant.before == mutant.after or change in equivalents:
            continue
        # A test that is named like the module, or that reaches little else, is about this line.
        tests = reached[path][line]
        if not given.near:
            tests = sorted(
                set(tests),
                key=lambda test: (f"test_{path.stem}" not in test, breadths[test], test),
            )
        count -= 1
        yield mutant, tests[: given.most]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants of a package and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", help="a package of src/metis, such as routing or wire/gemini")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="*", help="by default the tests of the package")
    parser.add_argument("--at", action="append", help="a line, such as metis/routing/rules.py:42")
    parser.add_argument(
        "--near",
        action="store_true",
        help="run the tests in files about the module, without measuring which reach the line",
    )
    parser.add_argument(
        "--most", type=int, default=MAX_TESTS, help="how many tests run against a mutant"
    )
    given = parser.parse_args(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(SOURCE, COPY, ignore=shutil.ignore_patterns("__pycache__"))
    # In front of the installed package, so that programs which tests start see the mutant too.
    sys.path.insert(0, str(COPY))
    os.environ["PYTHONPATH"] = str(COPY)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.chdir(ROOT)
    tests = given.tests or [f"tests/{given.package.split('/')[0]}"]
    started_s = time.monotonic()
    with os.fdopen(os.dup(1), "w") as report, Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        judge = Judge(given, report)
        pytest.main(["-n", "0", *tests], plugins=[judge])
        outcomes = judge.outcomes
        survivors = sum(not outcome.is_killed for outcome in outcomes)
        total = len(outcomes)
        share = 100 * (total - survivors) / total if total else 0.0
        seconds = time.monotonic() - started_s
        killed = f"{total - survivors} of {total} mutants killed"
        print(f"{given.package}: {killed}, {share:.0f} %, {seconds:.0f} s", file=report)
    return 0 if total and not survivors else 1


if __name__ == "__main__":
    sys.exit(main())
