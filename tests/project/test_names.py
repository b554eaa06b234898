"""Identifiers state what a value is: words for how the code obtained it are refused.

CONTRIBUTING has the vocabulary. The list is short on purpose: its words are vague, so that each
could name a dozen different values.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from folded import for_every

SOURCE = Path(__file__).parent.parent.parent / "src" / "metis"
TESTS = Path(__file__).parent.parent
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
REFUSED_IN_TESTS = {"told", "heard", "spoken", "unsaid", "felt", "asked", "theirs", "begun"}
REFUSED_IN_TEST_NAMES = {
    "told",
    "said",
    "heard",
    "road",
    "roads",
    "house",
    "room",
    "rooms",
    "journey",
    "walks",
    "neighbour",
    "nobody",
    "whoever",
    "thought",
    "thoughts",
    "picture",
    "pictures",
}
"""Words of test function names; several may occur in one name, so each part is compared."""
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


def refused(tree: ast.AST, words: set[str] = REFUSED) -> list[str]:
    return [
        f"line {line}: {name}"
        for line, name in bound_names(tree)
        if name.strip("_").lower() in words
    ]


@for_every(MODULES)
def test_source_identifiers_have_no_refused_word(path: Path) -> None:
    name = str(path.relative_to(SOURCE))
    allowed = PUBLIC_FIELDS.get(name, set())
    lines = refused(ast.parse(path.read_text(encoding="utf-8")))
    assert [line for line in lines if line.split()[-1] not in allowed] == []


def test_refused_name_is_detected_wherever_it_is_bound() -> None:
    tree = ast.parse(
        "def f(told): pass\nclass Kept: pass\n_found = 1\nself.said = 2\nfor own in x: pass"
    )
    assert len(refused(tree)) == 5


def test_test_identifiers_have_no_refused_word() -> None:
    faults: list[str] = []
    for path in sorted(TESTS.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        places = refused(tree, REFUSED_IN_TESTS)
        places += [
            f"line {line}: {name}"
            for line, name in bound_names(tree)
            if name.startswith("test_") and REFUSED_IN_TEST_NAMES & set(name.split("_"))
        ]
        faults += [f"{path.relative_to(TESTS)} {place}" for place in places]
    assert faults == []


def test_no_docstring_begins_with_the_same() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    leaning = [
        f"{path.relative_to(SOURCE)}: {docstring.splitlines()[0]}"
        for path in MODULES
        if "The same" in (code := path.read_text(encoding="utf-8"))  # parsing all takes seconds
        for node in ast.walk(ast.parse(code))
        if isinstance(node, kinds)
        and (docstring := ast.get_docstring(node) or "").startswith("The same")
    ]
    assert leaning == []


def test_module_names_are_nouns() -> None:
    stems = {path.stem for path in MODULES}
    assert sorted(stem for stem in stems if stem in REFUSED) == []
    in_ing = {stem for stem in stems if stem.endswith("ing") and stem.isalpha()}
    assert sorted(in_ing - MODULES_IN_ING) == []
