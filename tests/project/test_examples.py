"""The programs in examples/ run, and between them use every public name of `metis`."""

import ast
import runpy
from pathlib import Path

import pytest

import metis

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))
    assert capsys.readouterr().out


def test_every_public_name_has_an_example() -> None:
    used = {
        name
        for path in EXAMPLES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (getattr(node, "id", None), getattr(node, "attr", None))
        if name
    }
    assert sorted(set(metis.__all__) - used) == []
