"""The table of the laws over session files: every file of a program satisfies all of them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from session_files import claude_file, codex_file, gemini_file, opencode_file, pi_file

ROOT = Path(__file__).parents[2]
SESSIONS = ROOT.parent / "shared" / "sessions"


def session_laws() -> ModuleType:
    spec = importlib.util.spec_from_file_location("session_laws", ROOT / "scripts/session_laws.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_counts_files_by_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for write in (claude_file, codex_file, gemini_file, opencode_file, pi_file):
        (tmp_path / write.__name__).mkdir()
        write(tmp_path / write.__name__, "/work/owls")
    (tmp_path / "notes.txt").write_text("not a session")
    assert session_laws().main([str(tmp_path), "--verbose"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows.keys() == {"format", "claude-code", "codex", "gemini-cli", "opencode", "pi"}
    # Usage is in some of them only; all other laws apply.
    assert {cell for name in rows if name != "format" for cell in rows[name]} <= {"1", "1/1", "-"}
    assert rows["claude-code"] == ["1", *["1/1"] * 9]


@pytest.mark.slow
@pytest.mark.skipif(not SESSIONS.is_dir(), reason="no session files here")
def test_every_file_at_hand_satisfies_the_laws(capsys: pytest.CaptureFixture[str]) -> None:
    code = session_laws().main([str(SESSIONS), "--verbose"])
    assert code == 0, capsys.readouterr().out
