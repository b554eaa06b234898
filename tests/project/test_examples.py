"""The programs in examples/ run, and between them use every public name of every public package."""

import importlib.util
import runpy
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))
    assert capsys.readouterr().out


def reference() -> ModuleType:
    """The script that shows the examples in the reference."""
    spec = importlib.util.spec_from_file_location(
        "python_reference", ROOT / "scripts" / "python_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_an_example() -> None:
    assert reference().names_without_example() == []
