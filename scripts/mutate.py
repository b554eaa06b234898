"""Measure whether tests notice changed behaviour: one-point mutants of a package.

    python scripts/mutate.py routing --count 40 --seed 1

First the tests of the package run under coverage, which shows what each line is reached by. Then
mutants are drawn with the seed: each changes one operator, constant, condition or statement of the
package in a copy of the source, and only the tests that reach the line run against it. A mutant
that no test notices survives. `tests/project/equivalent_mutants.toml` lists the mutants that change
nothing.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import coverage

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
WORK = ROOT / "build" / "mutate"
EQUIVALENTS = ROOT / "tests" / "project" / "equivalent_mutants.toml"
MAX_TESTS = 40
"""How many of the tests that reach a line run, the most specific ones first.

A line of the core is reached by thousands of tests, most of which are about something else.
"""
TIMEOUT_S = 120.0

_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
}


class Mutant(NamedTuple):
    """One change of one module."""

    path: Path
    """The module, relative to the source directory."""
    line: int
    before: str
    after: str
    """The changed statement, before and after."""
    module: str
    """The source of the whole module with the change."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n  - {self.before}\n  + {self.after}"


class Outcome(NamedTuple):
    """Whether tests noticed a mutant."""

    mutant: Mutant
    is_killed: bool
    test_count: int


def mutants_of(path: Path, text: str) -> Iterator[tuple[int, Callable[[], Mutant]]]:
    """Yield the line of every possible mutant of a module and how to make it."""
    tree = ast.parse(text)
    for index, node in enumerate(ast.walk(tree)):
        if changed(node) is not None:
            line: int = getattr(node, "lineno", 0)
            yield line, partial(_make, path, tree, index)


def _make(path: Path, tree: ast.Module, index: int) -> Mutant:
    mutated = copy.deepcopy(tree)
    node = list(ast.walk(mutated))[index]
    line: int = getattr(node, "lineno", 0)
    replacement = changed(node)
    if replacement is not None:
        _replace(node, replacement, line)
    return Mutant(
        path, line, _statement(tree, line), _statement(mutated, line), ast.unparse(mutated)
    )


def changed(node: ast.AST) -> ast.AST | None:
    """Return what a mutant has in the place of a node; None if it has no mutant."""
    change = _CHANGES.get(type(node))
    return None if change is None else change(node)


def _change_comparison(node: ast.Compare) -> ast.AST | None:
    if len(node.ops) > 1:
        return None
    return ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators)


def _change_operator(node: ast.BinOp) -> ast.AST | None:
    other = _OPERATORS.get(type(node.op))
    return None if other is None else ast.BinOp(node.left, other(), node.right)


def _change_not(node: ast.UnaryOp) -> ast.AST | None:
    if not isinstance(node.op, ast.Not):
        return None
    return ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])


def _change_constant(node: ast.Constant) -> ast.AST | None:
    value = node.value
    if isinstance(value, bool):
        return ast.Constant(not value)
    return ast.Constant(value + 1) if isinstance(value, int | float) else None


def _change_return(node: ast.Return) -> ast.AST | None:
    value = node.value
    is_none = value is None or (isinstance(value, ast.Constant) and value.value is None)
    return None if is_none else ast.Return(ast.Constant(None))


def _remove_call(node: ast.Expr) -> ast.AST | None:
    # Docstrings are expressions too, and removing one changes nothing.
    return ast.Pass() if isinstance(node.value, ast.Call | ast.Await | ast.Yield) else None


_CHANGES: Mapping[type[ast.AST], Callable[[Any], ast.AST | None]] = {
    ast.Compare: _change_comparison,
    ast.BinOp: _change_operator,
    ast.BoolOp: lambda node: ast.BoolOp(
        ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values
    ),
    ast.If: lambda node: ast.If(_negated(node.test), node.body, node.orelse),
    ast.IfExp: lambda node: ast.IfExp(_negated(node.test), node.body, node.orelse),
    ast.While: lambda node: ast.While(_negated(node.test), node.body, node.orelse),
    ast.UnaryOp: _change_not,
    ast.Constant: _change_constant,
    ast.Return: _change_return,
    ast.Expr: _remove_call,
    ast.AugAssign: lambda _: ast.Pass(),
    ast.Raise: lambda _: ast.Pass(),
    ast.Break: lambda _: ast.Continue(),
    ast.Continue: lambda _: ast.Break(),
}


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _replace(node: ast.AST, other: ast.AST, line: int) -> None:
    """Turn a node into another one in its place."""
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(other.__dict__)
    vars(node)["lineno"] = line
    ast.fix_missing_locations(node)


def _statement(tree: ast.Module, line: int) -> str:
    """Return the innermost statement of a line, in one line."""
    statements = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line
    ]
    inner = max(statements, key=lambda node: node.lineno, default=tree.body[0])
    return " ".join(ast.unparse(inner).split())[:160]


# Which tests reach a line


def reaching_tests(package: str, tests: Sequence[str]) -> dict[Path, dict[int, list[str]]]:
    """Run tests under coverage; return the ids of the tests that reach each line of a package."""
    data = WORK / f"coverage.{package.replace('/', '.')}"
    config = WORK / "coveragerc"
    config.write_text(f"[run]\ndata_file = {data}\nsource = {SOURCE / 'metis'}\n")
    plugin = WORK / "contexts.py"
    plugin.write_text(_PLUGIN)
    data.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest"),
        *("-q", "-n", "0", "-p", "contexts", *tests),
    ]
    environment = {**os.environ, "PYTHONPATH": str(WORK)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)  # noqa: S603 - our own command
    if done.returncode:
        raise SystemExit("the tests must pass before mutants can be judged")
    recorded = coverage.CoverageData(str(data))
    recorded.read()
    reached: dict[Path, dict[int, list[str]]] = {}
    for name in recorded.measured_files():
        path = Path(name)
        if path.is_relative_to(SOURCE / "metis" / package):
            contexts = recorded.contexts_by_lineno(name)
            reached[path.relative_to(SOURCE)] = {
                line: [test for test in tests if test] for line, tests in contexts.items()
            }
    return reached


_PLUGIN = '''
"""Names the running test in the coverage data."""
import coverage, pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    return (yield)
'''


def judge(mutant: Mutant, tests: Sequence[str]) -> bool:
    """Run tests against a mutant; return whether one of them failed."""
    copied = WORK / "src" / mutant.path
    original = copied.read_text()
    copied.write_text(mutant.module)
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", *tests]
        # In front of the installed package, so that programs which tests start see the mutant too.
        environment = {
            **os.environ,
            "PYTHONPATH": str(WORK / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(  # noqa: S603 - our own command
            command, cwd=ROOT, env=environment, check=False, capture_output=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return True  # an endless loop is noticed
    finally:
        copied.write_text(original)
    return done.returncode != 0


def equivalent_mutants() -> set[tuple[str, str, str]]:
    """Return module and statement, before and after, of every mutant listed as equivalent."""
    if not EQUIVALENTS.exists():
        return set()
    listed = tomllib.loads(EQUIVALENTS.read_text()).get("mutant", [])
    return {(entry["module"], entry["before"], entry["after"]) for entry in listed}


def draw(
    reached: Mapping[Path, Mapping[int, list[str]]], count: int, seed: int, most: int = MAX_TESTS
) -> Iterator[tuple[Mutant, list[str]]]:
    """Yield mutants in lines that tests reach, in a random order that the seed determines."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    points: list[tuple[Path, int, Callable[[], Mutant]]] = []
    for path in sorted(reached):
        text = (SOURCE / path).read_text()
        points += [
            (path, line, make) for line, make in mutants_of(path, text) if reached[path].get(line)
        ]
    equivalents = equivalent_mutants()
    breadths = Counter(
        test for lines in reached.values() for tests in lines.values() for test in tests
    )
    rng.shuffle(points)
    for path, line, make in points:
        if count == 0:
            return
        mutant = make()
        change = (str(path), mutant.before, mutant.after)
        if mutant.before == mutant.after or change in equivalents:
            continue
        # A test that is named like the module, or that reaches little else, is about this line.
        tests = sorted(
            set(reached[path][line]),
            key=lambda test: (f"test_{path.stem}" not in test, breadths[test], test),
        )
        count -= 1
        yield mutant, tests[:most]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants of a package and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", help="a package of src/metis, such as routing or wire/gemini")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="*", help="by default the tests of the package")
    parser.add_argument(
        "--most", type=int, default=MAX_TESTS, help="how many tests run against a mutant"
    )
    given = parser.parse_args(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(WORK / "src", ignore_errors=True)
    shutil.copytree(SOURCE, WORK / "src")
    tests = given.tests or [f"tests/{given.package.split('/')[0]}"]
    started_s = time.monotonic()
    reached = reaching_tests(given.package, tests)
    outcomes: list[Outcome] = []
    for mutant, ids in draw(reached, given.count, given.seed, given.most):
        outcome = Outcome(mutant, judge(mutant, ids), len(ids))
        outcomes.append(outcome)
        print("killed  " if outcome.is_killed else "SURVIVED", mutant, flush=True)
    survivors = sum(not outcome.is_killed for outcome in outcomes)
    total = len(outcomes)
    share = 100 * (total - survivors) / total if total else 0.0
    seconds = time.monotonic() - started_s
    killed = f"{total - survivors} of {total} mutants killed"
    print(f"{given.package}: {killed}, {share:.0f} %, {seconds:.0f} s")
    return 0 if total and not survivors else 1


if __name__ == "__main__":
    sys.exit(main())
