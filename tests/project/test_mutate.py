"""The mutation script makes every kind of change, and each mutant compiles."""

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "mutate.py"
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


def script() -> ModuleType:
    """Load the script as a module."""
    spec = importlib.util.spec_from_file_location("mutate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_mutant_changes_one_statement_and_compiles() -> None:
    made = [make() for _, make in script().mutants_of(Path("sample.py"), SAMPLE)]
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
