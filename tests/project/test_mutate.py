"""The mutation script makes every kind of change, and each mutant compiles and runs."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
SAMPLE = """
def check(items, limit=3):
    \"\"\"Return the count of items up to a limit.\"\"\"
    count = 0
    for item in items:
        if not item or item == "x":
            continue
        count += 1
        if count >= limit and item is not None:
            break
        print(item)
    while False:
        raise ValueError(count)
    return count - 1 if count else None
"""


def script(name: str) -> ModuleType:
    """Load a script as a module."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_mutant_changes_one_statement_and_compiles() -> None:
    made = [make() for _, make in script("mutants").mutants_of(Path("sample.py"), SAMPLE)]
    for mutant in made:
        compile(mutant.module, "sample.py", "exec")
        assert mutant.before != mutant.after
    changes = {mutant.after for mutant in made}
    assert "return None" in changes
    assert "pass" in changes
    assert "break" in changes
    assert "continue" in changes
    assert "count = 1" in changes
    assert any("not item and" in after for after in changes)
    assert any("count > limit" in after for after in changes)
    assert any("count + 1 if count" in after for after in changes)
    assert any("if not count else" in after for after in changes)
    assert any("bool(item)" in after for after in changes)
    assert len(made) == len({mutant.module for mutant in made})


LIVE = """
class Counter:
    start = 0

    def next(self, step=1):
        return [self.start + offset + step for offset in range(2)]
"""


def test_a_live_function_gets_the_code_of_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    # The script is a program: it imports its other half from its own directory.
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    mutate = script("mutate")
    path = Path("metis/sample.py")
    results: dict[str, tuple[bool, object]] = {}
    for _, make in sys.modules["mutants"].mutants_of(path, LIVE):
        mutant = make()
        module: dict[str, type] = {}
        exec(compile(LIVE, str(mutate.COPY / path), "exec"), module)  # noqa: S102 - our own text
        next_of_counter = vars(module["Counter"])["next"]
        places = {("Counter.next", 5): [next_of_counter]}
        is_installed = mutate.install(mutant, LIVE, places)
        results[mutant.after] = (is_installed, next_of_counter(module["Counter"]()))
    assert results == {
        # What a class body or the default of a parameter computes was computed at the import.
        "start = 1": (False, [1, 2]),
        "def next(self, step=2): return [self.start + offset + step for offset in range(2)]": (
            False,
            [1, 2],
        ),
        "return None": (True, None),
        "return [self.start + offset - step for offset in range(2)]": (True, [-1, 0]),
        "return [self.start - offset + step for offset in range(2)]": (True, [1, 0]),
        "return [self.start + offset + step for offset in range(3)]": (True, [1, 2, 3]),
    }
