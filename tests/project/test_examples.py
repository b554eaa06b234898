"""The programs in examples/ run, and between them use every public name of every public package."""

import importlib.util
import re
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


PROGRAMS = (
    *("agent", "rag", "batch", "gateway_hook", "cost_report"),
    *("from_litellm", "from_langchain", "from_pydantic_ai"),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_is_short(name: str) -> None:
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 60


def test_agents_of_the_readme_have_twelve_lines_and_equal_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocking, waiting = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:2]
    namespace: dict[str, object] = {}
    printed: list[str] = []
    for source in (blocking, waiting):
        assert len([line for line in source.splitlines() if line.strip()]) <= 12
        exec(compile(source, "README.md", "exec"), namespace)  # noqa: S102 - our own page
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "It is snowing in Oslo." in printed[0]
    assert "['simulated value']" in printed[0]


def reference() -> ModuleType:
    """Load the script that puts the examples into the reference."""
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
