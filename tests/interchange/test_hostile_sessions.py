"""Session files with arbitrary content: no record is fatal, and none is lost."""

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from metis.canonical import validate_session
from metis.canonical.errors import ForeignDocumentError
from metis.cli.transfer import sources_of
from metis.interchange.registry import session_format, session_formats
from metis.interchange.session_format import WriteOptions
from metis.interchange.session_index import index_file
from metis.interchange.source import Source, read_small_file
from session_files import claude_file, codex_file, gemini_file, opencode_file, pi_file

FILES = {
    "claude-code": claude_file,
    "codex": codex_file,
    "gemini-cli": gemini_file,
    "opencode": opencode_file,
    "pi": pi_file,
}
VALUES: tuple[Any, ...] = (None, 0, -1, 1.5, "", "x", [], {}, [None], [{}], {"type": "x"}, True)
ROUNDS = 25


def mutated(value: Any, source: random.Random) -> Any:
    """Draw the value with one part replaced, removed or added."""
    if isinstance(value, dict) and value and source.random() < 0.8:
        fields: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType] - JSON
        key = source.choice(sorted(fields))
        if source.random() < 0.2:
            del fields[key]
        else:
            fields[key] = mutated(fields[key], source)
        return fields
    if isinstance(value, list) and value and source.random() < 0.8:
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType] - JSON
        index = source.randrange(len(items))
        items[index] = mutated(items[index], source)
        return items
    return source.choice(VALUES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_any_record_is_imported_or_reported_and_round_trips(name: str, tmp_path: Path) -> None:
    path = FILES[name](tmp_path, "/work/owls")
    form = session_format(name)
    source = random.Random(name)  # noqa: S311 - test data, the same in every run
    is_document = name == "opencode"
    original = path.read_text()
    for _ in range(ROUNDS):
        values = json.loads(original)["messages"] if is_document else _lines(original)
        for _ in range(source.randint(1, 3)):
            index = source.randrange(len(values))
            values[index] = mutated(values[index], source)
        if is_document:
            document = json.loads(original) | {"messages": values}
            data = json.dumps(document).encode()
        else:
            data = "".join(json.dumps(value) + "\n" for value in values).encode()
        (session,) = form.read(Source(None, data))
        assert validate_session(session.messages()) == []
        written = form.write(list(session.entries), WriteOptions())
        if not is_document:
            assert _lines(written.data.decode()) == values
        other = session_format("codex" if name == "claude-code" else "claude-code")
        other.write(list(session.entries), WriteOptions(foreign_id="f"))


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini-cli", "pi"])
def test_oversized_deep_or_non_json_lines_are_reported(name: str, tmp_path: Path) -> None:
    path = FILES[name](tmp_path, "/work/owls")
    deep = b'{"type":"user","message":' + b"[" * 5000 + b"]" * 5000 + b"}\n"
    wide = b'{"type":"user","message":' + b'{"a":[' * 150 + b"]}" * 150 + b"}\n"
    path.write_bytes(path.read_bytes() + deep + wide + b"\xff\xfe not JSON\n" + b'{"type":"us')
    (session,) = session_format(name).read(Source(path))
    broken = [loss for loss in session.losses if loss.block_type == "line"]
    assert len(broken) == 4
    assert "still be writing" in broken[-1].reason
    assert len(session.messages()) == len(list(_messages(name, tmp_path / "other")))


def _messages(name: str, directory: Path) -> list[Any]:
    (session,) = session_format(name).read(Source(FILES[name](directory, "/work/owls")))
    return session.messages()


def record(uuid: str, parent: Any, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"text {uuid}"}
    base = {"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s"}
    return base | {"timestamp": "2026-01-01T00:00:00Z", "message": message} | fields


def encoded(*records: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 20,
    "lone surrogates": b'{"type":"user","uuid":"\\ud800","message":{"role":"user","content":'
    b'"\\udfff"}}',
    "cycles": encoded(record("a", "b"), record("b", "c"), record("c", "a"), record("a", "a")),
    "one uuid": encoded(*[record("a", None)] * 20),
    "nested lists": b"[" * 20_000 + b"]" * 20_000,
    "nested objects": b'{"messages":' * 2000 + b"1" + b"}" * 2000,
    "long line": b'{"type":"user","message":{"role":"user","content":"' + b"a" * 400_000 + b'"}}\n',
    "numbers": encoded(record("a", None, timestamp=1e300), record("b", 10**40)),
    "no objects": encoded(None, 1, "x", [], {}, [[]]),
    "types as lists": encoded(record("a", None, type=[]), {"role": {}, "message": {"role": []}}),
    "empty messages": json.dumps(
        [None, {"role": None}, {"role": "user", "content": None}]
    ).encode(),
    "byte order mark": b"\xef\xbb\xbf" + encoded(record("a", None)),
    "torn": encoded(record("a", None)) + b'{"type":"assis',
    "no archive": b"\x28\xb5\x2f\xfd" + b"\xff" * 100,
    "no database": b"SQLite format 3\0" + b"\xff" * 5000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", session_formats())
def test_every_format_reads_or_refuses_any_file(name: str, tmp_path: Path) -> None:
    form = session_format(name)
    target = form if form.is_writable else session_format("claude-code")
    for case, data in HOSTILE.items():
        path = tmp_path / "file.jsonl"
        path.write_bytes(data)
        try:
            sessions = list(form.read(Source(path)))
        except ForeignDocumentError:
            continue  # with the place in the file
        for session in sessions:
            assert validate_session(session.messages()) == [], case
            target.write(session.entries, WriteOptions(foreign_id="f"))
        assert path.read_bytes() == data


def test_a_directory_with_links_in_a_circle_is_read_once(tmp_path: Path) -> None:
    claude_file(tmp_path, "/work/owls")
    (tmp_path / "claude" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "itself.jsonl").symlink_to(tmp_path / "itself.jsonl")
    listed = [source.path for source, _ in sources_of([str(tmp_path)])]
    assert len(listed) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_named_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "a.jsonl"
    os.mkfifo(pipe)
    (tmp_path / "b.jsonl").symlink_to("/dev/zero")
    for path in (pipe, tmp_path / "b.jsonl"):
        assert Source(path).sample() == b""
        with pytest.raises(OSError, match="not a regular file"):
            Source(path).read()
        assert read_small_file(path, 10) == b""
        assert [entry.records for entry in index_file("claude", "claude-code", path)] == [0]
    assert list(sources_of([str(tmp_path)])) == []


def test_index_counts_a_bounded_part_of_what_a_file_unpacks_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setattr("metis.interchange.session_index._MAX_CHUNKS", 2)
    path = tmp_path / "rollout.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"\n" * (20 << 20)))
    assert path.stat().st_size < 10_000
    (entry,) = index_file("codex", "codex", path)
    assert 0 < entry.records <= 3 << 20
    path.write_bytes(b"\x28\xb5\x2f\xfd damaged")
    assert [entry.records for entry in index_file("codex", "codex", path)] == [0]


def test_standard_input_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metis.cli.transfer._MAX_PIPED_BYTES", 10)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * 11)))
    with pytest.raises(ForeignDocumentError, match="standard input"):
        list(sources_of(["-"]))
