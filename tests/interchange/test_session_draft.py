"""Entries of a long session during import, and comparison at a second import."""

import asyncio
from pathlib import Path

import pytest

from metis.interchange import entry_list
from metis.interchange.claude_code import ClaudeCode
from metis.interchange.entry_list import EntryList
from metis.interchange.residue import apply_residue, differences, make_residue
from metis.interchange.session_import import import_session
from metis.interchange.source import Source
from metis.store import open as open_store
from session_files import claude_file


def test_entries_spilled_to_file_equal_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = claude_file(tmp_path, "/folder")
    (in_memory,) = ClaudeCode().read(Source(path))
    monkeypatch.setattr(entry_list, "_MEMORY_BYTES", 700)
    (in_file,) = ClaudeCode().read(Source(path))
    assert in_file.entries == in_memory.entries
    assert list(in_file.entries) == list(in_memory.entries)
    assert in_file.entries[-1] == in_memory.entries[-1]
    assert list(in_file.entries[1:3]) == list(in_memory.entries)[1:3]
    assert in_file.entries != EntryList(list(in_memory.entries)[1:])
    with pytest.raises(IndexError):
        in_file.entries[len(in_file.entries)]


def test_a_grown_file_adds_only_what_is_new(tmp_path: Path) -> None:
    asyncio.run(add_twice(tmp_path))


async def add_twice(tmp_path: Path) -> None:
    path = claude_file(tmp_path, "/folder")
    lines = path.read_bytes().splitlines(keepends=True)
    async with open_store(f"sqlite:///{tmp_path / 'metis.db'}") as store:
        added: list[int] = []
        for size in (len(lines) - 1, len(lines), len(lines)):
            path.write_bytes(b"".join(lines[:size]))
            for session in ClaudeCode().read(Source(path)):
                added.append((await import_session(store, session)).added)
                stored = await store.messages(session.session_id)
                assert [one.content for one in stored] == [m.content for m in session.messages()]
    assert added[0] > added[1] > added[2] == 0


def test_a_residue_restores_values_types_and_the_order_of_keys() -> None:
    expected = {"b": 1, "a": {"x": [1, {"k": 1}]}, "gone": None, "c": 1}
    actual = {
        "new": {"z": 1, "a": {"y": 1, "b": 2}},
        "a": {"w": 0, "x": [True, {"j": 2, "k": 1}]},
        "b": 1.0,
        "c": [{"q": 1, "p": 2}],
    }
    residue = make_residue(expected, actual, differences(expected, actual))
    restored = apply_residue(expected, residue)
    assert repr(restored) == repr(actual)
    assert apply_residue({**expected, "b": 2}, residue) is None
    assert make_residue(expected, expected, []) == {}
