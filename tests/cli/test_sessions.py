"""Commands on stored sessions."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from build import assistant, call, numbered, provenance, tool, tool_id, user
from metis import store
from metis.cli.main import cli
from metis.store.database import newest_schema

Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a metis home with one session."""
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    raw = {"anthropic": {"n": "x" * 300}}
    messages = numbered(
        user("what does the owl say?"),
        assistant(call("read", tool_id(7)), metadata=provenance(provider_raw=raw)),
        tool("hoot", answers=tool_id(7)),
    )

    async def fill() -> None:
        async with store.open() as opened:
            await opened.create_session("sess_42", workspace_path="/work", active_model="a:b")
            await opened.append_all(messages)

    asyncio.run(fill())
    return tmp_path


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


def test_sessions_and_show_commands(home: Path) -> None:
    listed = run("sessions")
    assert listed.exit_code == 0
    assert listed.stdout.startswith("sess_42  20")
    assert listed.stdout.endswith("  a:b  3  $0.000654  what does the owl say?\n")
    (listed_session,) = json.loads(run("sessions", "--json").stdout)
    assert (listed_session["id"], listed_session["title"]) == ("sess_42", "what does the owl say?")
    assert (listed_session["message_count"], listed_session["folder"]) == (3, "/work")
    assert json.loads(run("sessions", "--json", "--here").stdout) == []
    assert "without --here" in run("sessions", "--here").stderr
    shown = run("show", "sess_42")
    assert "what does the owl say?" in shown.stdout
    assert "hoot" in shown.stdout
    unknown = run("show", "sess_none")
    assert unknown.exit_code == 2
    assert "no session has 'sess_none' in its id or title" in unknown.stderr


def test_a_session_is_found_by_words_of_its_title(home: Path) -> None:
    assert "hoot" in run("show", "the OWL").stdout
    assert "no session has 'the cow' in its id or title" in run("show", "the cow").stderr


def test_sessions_are_a_table_on_a_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metis.cli.sessions.terminal_width", lambda: 60)
    lines = run("sessions").stdout.splitlines()
    assert lines[0].split() == ["id", "changed", "title", "model", "msgs", "cost"]
    assert lines[1].startswith("ess_42")
    assert max(map(len, lines[:2])) == 60


def test_export_and_import_through_files(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    assert run("export", "sess_42", "-o", str(file)).exit_code == 0
    assert run("export", "sess_42").stdout_bytes == file.read_bytes()
    assert run("import", str(file)).exit_code == 2
    again = run("import", str(file), "--new-ids")
    assert again.exit_code == 0
    assert again.stdout.startswith("sess_")
    assert "3 messages" in again.stderr
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert run("import", "-", "--store", other, stdin=file.read_bytes()).stdout == "sess_42\n"
    assert run("export", "sess_42", "--store", other).stdout_bytes == file.read_bytes()
    assert "line 1" in run("import", "-", stdin=b"nonsense").stderr


def test_fork_and_search(home: Path) -> None:
    forked = run("fork", "sess_42").stdout.strip()
    assert forked.startswith("sess_")
    matches = run("search", "owl", "say")
    assert len(matches.stdout.splitlines()) == 2
    assert "[owl]" in matches.stdout
    assert len(run("search", "owl", "--session", forked).stdout.splitlines()) == 1
    nothing = run("search", "walrus")
    assert (nothing.exit_code, nothing.stdout) == (1, "")


def test_the_store_is_checked_copied_swept_and_migrated(home: Path, tmp_path: Path) -> None:
    assert run("store", "check").exit_code == 0
    copy = tmp_path / "copy.db"
    assert run("store", "backup", str(copy)).exit_code == 0
    assert run("store", "backup", str(copy)).exit_code == 2
    assert run("export", "sess_42", "--store", f"sqlite:///{copy}").exit_code == 0
    planned = run("store", "sweep", "--raw-bytes", "100")
    assert "raw bytes" in planned.stdout
    assert "--apply" in planned.stderr
    assert run("store", "sweep", "--raw-bytes", "100", "--apply").stdout == planned.stdout
    assert run("store", "sweep", "--raw-bytes", "100").stdout == ""
    assert f"version {newest_schema('sqlite')}" in run("store", "migrate").stdout
    with sqlite3.connect(home / "metis.db") as database:
        database.execute("UPDATE tool_calls SET result_message_id = NULL")
    database.close()
    checked = run("store", "check")
    assert checked.exit_code == 1
    assert "the table has" in checked.stdout


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:///", "postgresql://127.0.0.1:1/x"])
def test_invalid_store_is_one_line_without_traceback(url: str) -> None:
    done = run("sessions", "--store", url)
    assert done.exit_code == 2
    assert done.stderr.startswith("metis: ")


def test_sessions_uses_configured_store(home: Path) -> None:
    (home / "metis.db").rename(home / "elsewhere.db")
    (home / "config.toml").write_text(f'store = "sqlite:///{home / "elsewhere.db"}"\n')
    assert "sess_42" in run("sessions").output
    assert "sess_42" not in run("sessions", "--store", f"sqlite:///{home / 'new.db'}").output


@pytest.mark.usefixtures("home")
def test_a_session_is_renamed_tagged_and_deleted() -> None:
    assert run("sessions", "rename", "sess_42", "Owls", "of", "Europe").exit_code == 0
    assert run("sessions", "tag", "Owls", "birds", "#night").stdout == "birds night\n"
    assert run("sessions", "tag", "birds", "birds", "--remove").stdout == "night\n"
    listed = json.loads(run("sessions", "--json", "--tag", "night").stdout)
    assert [(row["title"], row["tags"]) for row in listed] == [("Owls of Europe", ["night"])]
    assert json.loads(run("sessions", "--json", "--tag", "birds").stdout) == []
    assert "#night Owls of Europe" in run("sessions").stdout
    declined = run("sessions", "delete", "Owls", stdin=b"n\n")
    assert "Delete" in declined.stderr
    assert "Owls" in run("sessions").stdout
    assert run("sessions", "delete", "-y", "Owls").exit_code == 0
    assert "Owls" not in run("sessions").stdout
