"""gemini-cli records that change earlier messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metis.cli.main import cli
from metis.interchange.gemini_cli import GeminiCli
from metis.interchange.session_format import WriteOptions
from metis.interchange.source import Source
from metis.store.threads import Threads

MOMENT = "2026-05-08T10:00:00.000Z"
TOKENS = {"input": 10, "output": 2, "cached": 0, "thoughts": 0, "tool": 0, "total": 12}
HEAD = {"sessionId": "s-1", "projectHash": "0", "startTime": MOMENT, "lastUpdated": MOMENT}
UPDATE = {"$set": {"lastUpdated": MOMENT}}


def user(name: str, text: str) -> dict[str, Any]:
    return {"id": name, "timestamp": MOMENT, "type": "user", "content": [{"text": text}]}


def model(name: str, text: str) -> dict[str, Any]:
    return {
        "id": name,
        "timestamp": MOMENT,
        "type": "gemini",
        "content": [{"text": text}],
        "tokens": TOKENS,
        "model": "gemini-2.5-pro",
    }


A, B, C, D = user("a", "A"), model("b", "B"), user("c", "C"), model("d", "D")
NOTE = {"id": "n", "timestamp": MOMENT, "type": "info", "content": "a note"}

CASES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "the target of a rewind goes too": ([A, B, C, D, {"$rewindTo": "c"}], "AB"),
    "what follows a rewind follows what is left": (
        [A, B, C, {"$rewindTo": "c"}, user("e", "E")],
        "ABE",
    ),
    "to the first": ([A, B, {"$rewindTo": "a"}, C], "C"),
    "to a message that is not there": ([A, B, {"$rewindTo": "odd"}, C], "C"),
    "twice": ([A, B, C, D, {"$rewindTo": "d"}, {"$rewindTo": "b"}, user("e", "E")], "AE"),
    "to a note": ([A, B, NOTE, C, {"$rewindTo": "n"}], "AB"),
    "all messages are replaced": ([A, B, C, {"$set": {"messages": [user("x", "X"), D]}}], "XD"),
    "messages that stay are not repeated": ([A, B, C, {"$set": {"messages": [A, B]}}, D], "ABD"),
    "a message is changed in the list": (
        [A, B, C, {"$set": {"messages": [A, model("b", "b"), C]}}],
        "AbC",
    ),
    "all messages are removed": ([A, B, {"$set": {"messages": []}}, C], "C"),
    "a message that is written again": ([A, model("b", ""), UPDATE, B, UPDATE, C], "ABC"),
    "a message that others follow": ([A, model("b", "b"), C, B, D], "AbCD"),
    "values of other types": ([A, B, {"$rewindTo": 3}, {"$set": {"messages": 3}}, C], "ABC"),
}
every_case = pytest.mark.parametrize(("records", "left"), CASES.values(), ids=CASES)


def data(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in (HEAD, *records))


def texts(messages: Any) -> str:
    return "".join(getattr(block, "text", "") for one in messages for block in one.content)


@every_case
def test_messages_equal_those_that_gemini_cli_loads(
    records: list[dict[str, Any]], left: str
) -> None:
    (session,) = GeminiCli().read(Source(None, data(records)))
    assert texts(Threads(session.entries).path()) == left
    written = GeminiCli().write(list(session.entries), WriteOptions())
    assert [json.loads(line) for line in written.data.splitlines()] == [HEAD, *records]
    responses: set[str] = {record["id"] for record in records if record.get("type") == "gemini"}
    used = [message for message in session.messages() if message.metadata.usage is not None]
    if left == "XD":  # the response in the list
        responses.add("d")
    assert len(used) == len(responses)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@every_case
def test_growing_file_is_imported_like_the_whole_file(
    records: list[dict[str, Any]], left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METIS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    session = ""
    path = tmp_path / "session.jsonl"
    for end in range(len(records) + 1):
        path.write_bytes(data(records[:end]))
        session = json.loads(run("import", str(path), "--json"))["session"]
    assert json.loads(run("import", str(path), "--json"))["added"] == 0
    lines = run("export", session, "--format", "gemini-cli").splitlines()
    assert [json.loads(line) for line in lines] == [HEAD, *records]
    stored = json.loads(run("export", session, "--format", "json"))
    blocks = [block for message in stored["messages"] for block in message["content"]]
    assert "".join(block["text"] for block in blocks) == left


def test_session_id_is_replaced_everywhere() -> None:
    records = [A, {"$set": {"sessionId": "s-1"}}]
    (session,) = GeminiCli().read(Source(None, data(records)))
    written = GeminiCli().write(list(session.entries), WriteOptions(foreign_id="s-2"))
    assert b"s-1" not in written.data
    assert written.data.count(b"s-2") == 2
