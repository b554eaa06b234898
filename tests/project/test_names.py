"""Names say what a value is: words that tell how the code came by it are refused.

CONTRIBUTING has the vocabulary. The list is short on purpose: it holds the words that once stood
for a dozen different things each.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "metis"
REFUSED = {
    "told",
    "tell",
    "telling",
    "said",
    "says",
    "say",
    "asked",
    "asking",
    "taken",
    "wanted",
    "wants",
    "kept",
    "keeps",
    "own",
    "theirs",
    "found",
    "felt",
    "held",
    "heard",
    "meant",
    "unsaid",
    "unkept",
    "made",
    "spoken",
    "looked",
    "looking",
    "known",
    "seen",
    "left",
    "begun",
    "gone",
}
PUBLIC_FIELDS = {"canonical/errors.py": {"known"}}
"""Exported before this rule was made: programs read these fields of errors."""
MODULES_IN_ING = {"pricing", "reasoning", "routing", "signing", "streaming", "thinking"}
MODULES = sorted(SOURCE.rglob("*.py"))


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of everything that a module defines or assigns."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
                arguments = node.args
                for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
                    yield from ((argument.lineno, argument.arg) for argument in group)
            case ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case _:
                pass


def refused(tree: ast.AST) -> list[str]:
    return [
        f"line {line}: {name}"
        for line, name in bound_names(tree)
        if name.strip("_").lower() in REFUSED
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_name_tells_a_story(path: Path) -> None:
    name = str(path.relative_to(SOURCE))
    allowed = PUBLIC_FIELDS.get(name, set())
    lines = refused(ast.parse(path.read_text(encoding="utf-8")))
    assert [line for line in lines if line.split()[-1] not in allowed] == []


def test_a_refused_name_is_noticed_wherever_it_is_bound() -> None:
    tree = ast.parse(
        "def f(told): pass\nclass Kept: pass\n_found = 1\nself.said = 2\nfor own in x: pass"
    )
    assert len(refused(tree)) == 5


def test_no_docstring_refers_to_its_neighbour() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    leaning = [
        f"{path.relative_to(SOURCE)}: {docstring.splitlines()[0]}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
        and (docstring := ast.get_docstring(node) or "").startswith("The same")
    ]
    assert leaning == []


def test_modules_are_named_by_nouns() -> None:
    stems = {path.stem for path in MODULES}
    assert sorted(stem for stem in stems if stem in REFUSED) == []
    in_ing = {stem for stem in stems if stem.endswith("ing") and stem.isalpha()}
    assert sorted(in_ing - MODULES_IN_ING) == []
