"""`metis handoff`: a session moves to another program and back without loss."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli

CWD = "/work/owls"
SIGNATURE = "c2lnbmVkIGJ5IGNsYXVkZQ=="
SESSION_ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == 0, done.output
    return done


def record(kind: str, number: int, content: Any, **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"msg_{fields.pop('response')}", "model": "claude-opus-4-5"}
        message |= {"usage": {"input_tokens": 100, "output_tokens": 20}}
    return {
        "parentUuid": f"00000000-0000-4000-8000-{number - 1:012}" if number > 1 else None,
        "isSidechain": False,
        "cwd": CWD,
        "sessionId": SESSION_ID,
        "version": "2.1.0",
        "type": kind,
        "message": message,
        "uuid": f"00000000-0000-4000-8000-{number:012}",
        "timestamp": f"2026-05-08T10:00:{number:02}.000Z",
        **fields,
    }


def claude_records() -> list[dict[str, Any]]:
    thinking = {"type": "thinking", "thinking": "owls hoot", "signature": SIGNATURE}
    calls = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": "Bash", "input": {"command": f"ls {n}"}}
        for n in (1, 2)
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": f"owl {n}"} for n in (1, 2)
    ]
    return [
        record("user", 1, "which owls are here?"),
        record("assistant", 2, [thinking], response=1),
        record("assistant", 3, [calls[0]], response=1),
        record("user", 4, [results[0]], toolUseResult={"stdout": "owl 1"}),
        record("assistant", 5, [calls[1]], response=1),
        record("user", 6, [results[1]], toolUseResult={"stdout": "owl 2"}),
        record("assistant", 7, [{"type": "text", "text": "Two owls."}], response=2),
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {"odd": 1.5}},
    ]


def write_claude(home: Path) -> Path:
    path = home / ".claude" / "projects" / "-work-owls" / f"{SESSION_ID}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in claude_records()))
    return path


def hand_over(target: str, home: Path, *more: str) -> dict[str, Any]:
    done = run("handoff", target, "--home", str(home), "--cwd", CWD, "--json", *more)
    return json.loads(done.stdout)


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def codex_turn(path: str) -> None:
    """Return what Codex appends for one turn."""
    sealed: dict[str, Any] = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": "gAAAAsealed",
    }
    items: list[dict[str, Any]] = [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "and by day?"}],
        },
        sealed,
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "None by day."}],
        },
    ]
    with Path(path).open("a") as file:
        for item in items:
            line = {"timestamp": "2026-05-08T11:00:00.000Z", "type": "response_item"}
            file.write(json.dumps(line | {"payload": item}) + "\n")


def test_newest_session_of_directory_is_handed_to_codex(tmp_path: Path) -> None:
    write_claude(tmp_path)
    report = hand_over("codex", tmp_path)
    assert report["resume"][:2] == ["codex", "resume"]
    assert report["resume"][2] in report["path"]
    written = lines(report["path"])
    assert written[0]["type"] == "session_meta"
    assert written[0]["payload"]["id"] == report["resume"][2]
    items = [line["payload"] for line in written if line["type"] == "response_item"]
    kinds = [item["type"] for item in items]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 2
    assert {item.get("call_id") for item in items} >= {"toolu_1", "toolu_2"}
    named = {(loss["block_type"], loss["change"]) for loss in report["losses"]}
    assert ("thinking", "dropped") in named
    assert any("line 2" in loss["reason"] for loss in report["losses"])


def test_return_handoff_keeps_sealed_parts_and_joins_the_new_turn(
    tmp_path: Path,
) -> None:
    original = write_claude(tmp_path).read_text().splitlines()
    there = hand_over("codex", tmp_path)
    codex_turn(there["path"])
    back = hand_over("claude", tmp_path)
    assert back["session"] == there["session"]
    written = lines(back["path"])
    expected = [json.loads(line) for line in original]
    new_id = back["resume"][2]
    assert new_id != SESSION_ID
    for line in expected:
        if "sessionId" in line:
            line["sessionId"] = new_id
    assert written[: len(expected)] == expected
    rest = written[len(expected) :]
    texts = [line["message"]["content"] for line in rest]
    assert "and by day?" in json.dumps(texts)
    assert "None by day." in json.dumps(texts)
    assert rest[0]["parentUuid"] == expected[6]["uuid"]


def test_second_round_trip_adds_no_loss(tmp_path: Path) -> None:
    write_claude(tmp_path)
    first = hand_over("codex", tmp_path)
    codex_turn(first["path"])
    hand_over("claude", tmp_path)
    second = hand_over("codex", tmp_path)
    hand_over("claude", tmp_path)
    third = hand_over("codex", tmp_path)
    assert len(second["losses"]) == len(third["losses"])
    sealed = [line for line in lines(third["path"]) if "gAAAAsealed" in json.dumps(line)]
    assert len(sealed) == 1
    assert len(lines(second["path"])) == len(lines(third["path"]))


def test_calls_are_renamed_to_tools_of_the_program_on_request(tmp_path: Path) -> None:
    write_claude(tmp_path)
    report = hand_over("codex", tmp_path, "--map-tools")
    calls = [
        line["payload"]
        for line in lines(report["path"])
        if line["payload"].get("type") == "function_call"
    ]
    assert {call["name"] for call in calls} == {"exec_command"}
    assert json.loads(calls[0]["arguments"]) == {"cmd": "ls 1"}


def test_handoff_to_metis_prints_command_to_continue(tmp_path: Path) -> None:
    write_claude(tmp_path)
    report = hand_over("metis", tmp_path)
    assert report["resume"][:2] == ["metis", "-s"]
    assert "Two owls." in run("show", report["resume"][2]).stdout


def test_a_grown_file_adds_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / f"{SESSION_ID}.jsonl"
    all_lines = [json.dumps(line) + "\n" for line in claude_records()]
    added: list[int] = []
    for end in range(1, len(all_lines)):
        path.write_text("".join(all_lines[:end]) + all_lines[end][:20])
        report = json.loads(run("import", str(path), "--json").stdout)
        added.append(report["added"])
        assert any("incomplete" in loss["reason"] for loss in report["losses"])
    path.write_text("".join(all_lines))
    report = json.loads(run("import", str(path), "--json").stdout)
    assert report["messages"] == 5
    again = run("export", report["session"], "--format", "claude-code")
    assert [json.loads(line) for line in again.stdout.splitlines()] == claude_records()


def test_an_imported_session_is_searched_traced_priced_and_continued(tmp_path: Path) -> None:
    path = write_claude(tmp_path)
    session = run("import", str(path)).stdout.strip()
    assert session in run("search", "owls").stdout
    # Two responses of 100 and 20 tokens, however many records they have.
    spent = json.loads(run("cost", "--by", "model", "--json").stdout)
    (group,) = spent["groups"].values()
    assert (group["call_count"], group["input_tokens"], group["output_tokens"]) == (2, 200, 40)
    assert float(group["cost_usd"]) > 0
    assert "Bash" in run("trace", session).stdout
    assert run("-s", session, "-m", "sim", "say on").stdout == "on\n"
    again = json.loads(run("import", str(path), "--json").stdout)
    assert again["added"] == 0


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o700)


def test_program_runs_in_directory_and_its_exit_code_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = run("import", str(write_claude(tmp_path))).stdout.strip()
    script(tmp_path / "bin", "codex", f'echo "$PWD $*" > {tmp_path}/call; exit 7')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    folder = tmp_path / "owls"
    folder.mkdir()
    place = ("--home", str(tmp_path), "--cwd", str(folder))
    done = CliRunner().invoke(cli, ["handoff", "codex", session, *place, "--json", "--go"])
    assert done.exit_code == 7
    resume = json.loads(done.stdout)["resume"]
    assert (tmp_path / "call").read_text() == f"{folder} {' '.join(resume[1:])}\n"
    assert resume[:2] == ["codex", "resume"]


def test_missing_program_is_reported_after_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = run("import", str(write_claude(tmp_path))).stdout.strip()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    place = ("--home", str(tmp_path), "--cwd", str(tmp_path))
    done = CliRunner().invoke(cli, ["handoff", "codex", session, *place, "--go"])
    assert done.exit_code == 127
    assert done.stdout.startswith("codex resume ")
    assert "cannot run codex" in done.stderr
    # The session is written nevertheless, for a later installation of the program.
    assert len(list(tmp_path.glob(".codex/sessions/*/*/*/*.jsonl"))) == 1
