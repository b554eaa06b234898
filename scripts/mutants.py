"""Make one-point mutants of a module: one operator, constant, condition or statement changed."""

import ast
import copy
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

EQUIVALENTS = Path(__file__).parent.parent / "tests" / "project" / "equivalent_mutants.toml"
EXCERPT = 160
"""How many characters of a changed statement are printed, beginning shortly before the change."""

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
    tree: ast.Module
    """The whole module with the change; the lines are those of the original."""

    @property
    def module(self) -> str:
        """The source of the whole module with the change."""
        return ast.unparse(self.tree)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n  - {self.before}\n  + {self.after}"


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
        _replace(node, replacement)
    before, after = _statement(tree, line), _statement(mutated, line)
    common = _common_length(before, after)
    # Long statements are cut so that the change shows.
    start = 0 if common < EXCERPT - 40 else common - 60
    return Mutant(
        path, line, before[start : start + EXCERPT], after[start : start + EXCERPT], mutated
    )


def _common_length(before: str, after: str) -> int:
    pairs = enumerate(zip(before, after, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(before), len(after)))


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


def _replace(node: ast.AST, other: ast.AST) -> None:
    """Turn a node into another one in its place."""
    ast.copy_location(other, node)
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(other.__dict__)
    ast.fix_missing_locations(node)


def _statement(tree: ast.Module, line: int) -> str:
    """Return the innermost statement of a line, in one line."""
    statements = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line
    ]
    inner = max(statements, key=lambda node: node.lineno, default=tree.body[0])
    return " ".join(ast.unparse(inner).split())


def equivalent_mutants() -> set[tuple[str, str, str]]:
    """Return module and statement, before and after, of every mutant listed as equivalent."""
    if not EQUIVALENTS.exists():
        return set()
    listed = tomllib.loads(EQUIVALENTS.read_text()).get("mutant", [])
    return {(entry["module"], entry["before"], entry["after"]) for entry in listed}
