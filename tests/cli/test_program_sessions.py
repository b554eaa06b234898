"""Sessions of other programs on this machine: listed, imported, followed and shared."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metis.cli import transfer
from metis.cli.main import cli
from metis.cli.output import StatusLine
from metis.interchange.redaction import redact
from metis.interchange.session_index import SessionIndex
from session_files import (
    OPEN_DATABASES,
    PROMPT,
    SESSION_ID,
    claude_file,
    codex_file,
    opencode_database,
    opencode_file,
)


@pytest.fixture(autouse=True)
def home(user: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: user)
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    claude = claude_file(user / "made", "/work/owls")
    target = user / ".claude" / "projects" / "-work-owls" / claude.name
    target.parent.mkdir(parents=True)
    claude.rename(target)
    codex = codex_file(user / "made", "/work/owls")
    rollout = user / ".codex" / "sessions" / "2026" / "05" / "08" / codex.name
    rollout.parent.mkdir(parents=True)
    codex.rename(rollout)
    return user


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == 0, done.output
    return done


def test_all_sessions_are_listed_with_program_folder_and_prompt() -> None:
    rows = json.loads(run("sessions", "--all", "--json").stdout)
    assert {row["program"] for row in rows} == {"claude", "codex"}
    assert {row["title"] for row in rows} == {PROMPT}
    assert {row["folder"] for row in rows} == {"/work/owls"}
    assert {row["id"] for row in rows} == {SESSION_ID}
    run("import", rows[0]["path"])
    again = json.loads(run("sessions", "--all", "--json").stdout)
    assert len(again) == 2
    assert [row["session"] is not None for row in again].count(True) == 1


def test_only_changed_files_are_read_again(home: Path, tmp_path: Path) -> None:
    index = SessionIndex(tmp_path / "index.json")
    assert len(index.update(home, {})) == 2
    assert index.read_count == 2
    again = SessionIndex(tmp_path / "index.json")
    first = again.update(home, {})
    assert again.read_count == 0
    path = Path(next(one.path for one in first if one.program == "codex"))
    with path.open("a") as file:
        file.write('{"timestamp":"2026-05-08T12:00:00Z","type":"event_msg","payload":{}}\n')
    grown = again.update(home, {})
    assert again.read_count == 1
    assert grown[0].records == next(one.records for one in first if one.program == "codex") + 1


def test_a_compressed_rollout_is_listed_imported_and_handed_over(home: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (path,) = home.glob(".codex/sessions/*/*/*/*.jsonl")
    plain = path.read_bytes()
    expected = json.loads(run("import", str(path), "--json").stdout)
    listed = json.loads(run("sessions", "--all", "--json").stdout)
    packed = path.with_name(f"{path.name}.zst")
    # Two frames: a program that appends compresses each part by itself.
    half = plain.index(b"\n", len(plain) // 2) + 1
    compress = zstandard.ZstdCompressor().compress
    packed.write_bytes(compress(plain[:half]) + compress(plain[half:]))
    path.unlink()
    (row,) = [
        row
        for row in json.loads(run("sessions", "--all", "--json").stdout)
        if row["program"] == "codex"
    ]
    (before,) = [row for row in listed if row["program"] == "codex"]
    for name in ("id", "title", "folder", "records", "session"):
        assert row[name] == before[name], name
    report = json.loads(run("import", str(packed), "--json").stdout)
    assert (report["format"], report["added"]) == ("codex", 0)
    assert (report["session"], report["losses"]) == (expected["session"], expected["losses"])
    handed = run("handoff", "claude", "--home", str(home), "--cwd", "/work/owls", "--json")
    assert json.loads(handed.stdout)["session"] == expected["session"]


@pytest.fixture
def database(home: Path) -> Iterator[Path]:
    """Yield the database of opencode with two sessions, open in opencode."""
    path = home / ".local" / "share" / "opencode" / "opencode.db"
    opencode_database(path, opencode_file(home / "made", "/work/owls"), "/work/mice")
    yield path
    OPEN_DATABASES.pop().close()


def test_sessions_in_the_database_of_opencode_are_listed_imported_and_handed_over(
    home: Path, database: Path
) -> None:
    log = database.with_name("opencode.db-wal")
    stored = database.read_bytes(), log.read_bytes()
    rows = json.loads(run("sessions", "--all", "--json").stdout)
    listed = {row["folder"]: row for row in rows if row["program"] == "opencode"}
    assert (listed["/work/owls"]["id"], listed["/work/owls"]["records"]) == ("ses_owls", 3)
    assert (listed["/work/mice"]["id"], listed["/work/mice"]["title"]) == ("ses_other", "other")
    exported = json.loads(run("import", str(home / "made" / "opencode.json"), "--json").stdout)
    again = json.loads(run("import", listed["/work/owls"]["path"], "--json").stdout)
    assert (again["session"], again["added"]) == (exported["session"], 0)
    reports = run("import", str(database), "--json").stdout.splitlines()
    assert len({json.loads(line)["session"] for line in reports}) == 2
    handed = run("handoff", "pi", "--home", str(home), "--cwd", "/work/owls", "--json")
    assert json.loads(handed.stdout)["session"] == exported["session"]
    assert (database.read_bytes(), log.read_bytes()) == stored


def test_new_rows_in_the_log_of_a_database_are_noticed(
    home: Path, database: Path, tmp_path: Path
) -> None:
    index = SessionIndex(tmp_path / "index.json")
    index.update(home, {})
    assert SessionIndex(tmp_path / "index.json").update(home, {})
    size = database.stat().st_size
    OPEN_DATABASES[-1].execute("UPDATE session SET title = 'renamed' WHERE id = 'ses_other'")
    OPEN_DATABASES[-1].commit()
    assert database.stat().st_size == size
    again = index.update(home, {})
    assert index.read_count == 1
    assert "renamed" in {one.title for one in again}


def test_unknown_session_and_damaged_database_of_opencode(home: Path, database: Path) -> None:
    done = CliRunner().invoke(cli, ["import", f"{database}#ses_none"])
    assert done.exit_code == 2
    assert "no session ses_none" in done.stderr
    OPEN_DATABASES[-1].execute("ALTER TABLE message RENAME COLUMN data TO body")
    OPEN_DATABASES[-1].commit()
    done = CliRunner().invoke(cli, ["import", str(database)])
    assert "no such column: data" in done.stderr
    assert {row["program"] for row in json.loads(run("sessions", "--all", "--json").stdout)} == {
        "claude",
        "codex",
        "opencode",
    }


@pytest.mark.parametrize("damage", ["cut off", "overwritten", "no frame", "no decoder"])
def test_damaged_rollout_is_reported_and_others_are_listed(
    home: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zstandard = pytest.importorskip("zstandard")
    (path,) = home.glob(".codex/sessions/*/*/*/*.jsonl")
    data = zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes())
    path.unlink()
    packed = path.with_name(f"{path.name}.zst")
    middle = len(data) // 2
    if damage == "cut off":
        data = data[:middle]
    elif damage == "overwritten":
        data = data[:middle] + b"\xff" * 40 + data[middle + 40 :]
    elif damage == "no frame":
        data = data[:4] + b"\xff" * 100
    else:
        monkeypatch.setitem(sys.modules, "zstandard", None)
    packed.write_bytes(data)
    rows = json.loads(run("sessions", "--all", "--json").stdout)
    assert {row["program"] for row in rows} == {"claude", "codex"}
    done = CliRunner().invoke(cli, ["import", str(packed)])
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit)
    assert ("install metis-llm[zstd]" if damage == "no decoder" else "compressed") in done.stderr
    # The other files of the directory are imported nevertheless.
    done = CliRunner().invoke(cli, ["import", str(home / ".codex"), str(home / ".claude")])
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 1


def test_records_before_damage_are_imported(home: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (path,) = home.glob(".codex/sessions/*/*/*/*.jsonl")
    data = zstandard.ZstdCompressor().compress(path.read_bytes())
    packed = path.with_name(f"{path.name}.zst")
    packed.write_bytes(data + data[:4] + b"\xff" * 100)
    expected = json.loads(run("import", str(path), "--json").stdout)
    report = json.loads(run("import", str(packed), "--json").stdout)
    assert (report["session"], report["messages"]) == (expected["session"], expected["messages"])
    (loss,) = [loss for loss in report["losses"] if loss not in expected["losses"]]
    assert "damaged" in loss["reason"]


def test_an_import_shows_which_file_it_reads_at_a_terminal_only(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(StatusLine, "interval_s", 0.0)
    folders = [str(home / ".claude"), str(home / ".codex")]
    assert "reading" not in run("import", *folders).stderr

    def isatty(_: object) -> bool:
        return True

    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", isatty)
    shown = run("import", *folders)
    rows = [row for row in shown.stderr.split("\r") if "reading" in row]
    assert rows[0].startswith(f"0 sessions imported, reading file 1: {home}"[:78])
    assert rows[1].startswith(f"1 session imported, reading file 2: {home}"[:77])
    # Every drawn row is removed before a line is printed, and at the end.
    assert shown.stderr.count("\r\x1b[K") == len(rows) == 2
    assert "reading" not in run("import", *folders, "--json").stderr


def test_session_name_is_required_without_terminal() -> None:
    done = CliRunner().invoke(cli, ["import"])
    assert done.exit_code == 2
    assert PROMPT in done.stderr


def test_watch_imports_new_records(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = home.glob(".codex/sessions/*/*/*/*.jsonl")
    polls: list[int] = []

    async def poll(_: float) -> None:
        polls.append(1)
        if len(polls) == 2:
            part = {"type": "input_text", "text": "by day?"}
            payload = {"type": "message", "role": "user", "content": [part]}
            line = {"timestamp": "2026-05-08T12:00:00Z", "type": "response_item"}
            with path.open("a") as file:
                file.write(json.dumps(line | {"payload": payload}) + "\n")
        if len(polls) > 4:
            raise RuntimeError("no more polls")

    monkeypatch.setattr(transfer.asyncio, "sleep", poll)
    done = CliRunner().invoke(cli, ["import", str(path), "--watch", "--json"])
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["added"] for report in reports] == [5, 1]


def test_a_shared_export_has_no_keys_addresses_or_home_directories(tmp_path: Path) -> None:
    path = claude_file(tmp_path, "/home/ada/owls")
    text = path.read_text().replace(
        "owl 1", "OPENAI_API_KEY=sk-proj-abcdefghijklmnop1234 of ada@example.org in /Users/ada/x"
    )
    path.write_text(text)
    session = run("import", str(path)).stdout.strip()
    target = tmp_path / "shared.jsonl"
    done = run("export", session, "--format", "claude-code", "-o", str(target), "--share", "--json")
    report = json.loads(done.stdout)
    shared = target.read_text()
    for secret in ("sk-proj", "ada@example", "/home/ada", "/Users/ada"):
        assert secret not in shared
    assert {one["kind"] for one in report["redacted"]} == {"key", "mail address", "home directory"}
    assert all(json.loads(line) for line in shared.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefghijklmnopqrstuvwx",
        '{\\"api_key\\": \\"abcdefgh12345678\\"}',
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    ],
)
def test_keys_of_every_form_are_removed(text: str) -> None:
    data, (found,) = redact(text.encode())
    assert found.kind == "key"
    assert b"[key removed]" in data
    assert redact(data)[1] == []


def test_programs_whose_sessions_are_only_read_are_listed(home: Path) -> None:
    moment = "2026-05-08T10:00:00.000Z"
    text = [{"type": "text", "text": "which owls?"}]
    start = {"sessionId": "s1", "context": {"cwd": "/work/lynx"}}
    copilot = [
        {"type": "session.start", "data": start, "timestamp": moment},
        {"type": "user.message", "data": {"content": "which owls?"}, "timestamp": moment},
    ]
    qwen = {"uuid": "u", "parentUuid": None, "sessionId": "q1", "cwd": "/work/lynx", "type": "user"}
    message = {"role": "user", "content": text}
    files: dict[str, list[Any]] = {
        ".copilot/session-state/s1/events.jsonl": copilot,
        ".cursor/projects/p/agent-transcripts/c1/c1.jsonl": [{"role": "user", "message": message}],
        ".qwen/projects/p/chats/q1.jsonl": [qwen | {"message": {"role": "user", "parts": text}}],
        ".kimi-code/sessions/p/k1/agents/main/wire.jsonl": [
            {"type": "context.append_message", "message": message, "time": 1785613801001}
        ],
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/tasks/17/"
        "api_conversation_history.json": [[message | {"ts": 1785613801001}]],
    }
    for name, records in files.items():
        path = home / name
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = json.loads(run("sessions", "--all", "--json").stdout)
    others = [row for row in rows if row["program"] not in ("claude", "codex")]
    assert {row["program"] for row in others} == {"copilot", "cursor", "qwen", "kimi", "cline"}
    assert {row["title"] for row in others} == {"which owls?"}
    # A session of another folder is not handed over; a transcript without a folder is nobody's.
    handed = run("handoff", "claude", "--home", str(home), "--cwd", "/work/lynx", "--json")
    assert json.loads(handed.stdout)["path"].endswith(".jsonl")
    done = CliRunner().invoke(cli, ["handoff", "pi", "--home", str(home), "--cwd", "/work/none"])
    assert "no program has a session" in done.stderr
