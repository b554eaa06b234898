import os
from pathlib import Path

import pytest

from metis.canonical.blocks import DocumentBlock, TextBlock
from metis.canonical.errors import InvalidValueError
from metis.cli import attachments
from metis.cli.attachments import read_attachment, read_fragment, read_prompt

pytestmark = pytest.mark.anyio
ALIASES = frozenset({"haiku"})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_come_before_the_words(folder: Path) -> None:
    (folder / "a.txt").write_text("hello\n")
    prompt = read_prompt("explain @a.txt, please", ALIASES)
    assert prompt.blocks == (TextBlock("a.txt:\n\nhello\n"), TextBlock("explain @a.txt, please"))
    assert prompt.notes == ("a.txt · 1 line",)
    assert prompt.model is None


def test_a_name_with_blanks_stands_in_quotes(folder: Path) -> None:
    (folder / "my page.pdf").write_bytes(b"%PDF-1.4\n")
    (block,) = read_prompt('read @"my page.pdf"', ALIASES).files
    assert isinstance(block, DocumentBlock)
    assert block.name == "my page.pdf"


def test_an_alias_at_the_start_is_a_model_and_a_file_is_a_file(folder: Path) -> None:
    (folder / "haiku").write_text("a poem")
    (folder / "notes").write_text("a note")
    prompt = read_prompt("@haiku look at @notes", ALIASES)
    assert (prompt.model, prompt.text, len(prompt.files)) == ("haiku", "look at @notes", 1)
    plain = read_prompt("@notes look", ALIASES)
    assert (plain.model, plain.text, len(plain.files)) == (None, "@notes look", 1)


def test_what_is_no_file_stays_as_it_is_written(folder: Path) -> None:
    prompt = read_prompt("use @property and @./missing.txt", ALIASES)
    assert prompt.blocks == (TextBlock("use @property and @./missing.txt"),)
    assert prompt.notes == ("@./missing.txt: no such file; sent as plain text",)
    assert read_prompt(r"\@haiku is a name", ALIASES).text == "@haiku is a name"


@pytest.mark.parametrize("name", ["folder", "program"])
def test_what_models_are_not_shown_is_refused_in_a_sentence(folder: Path, name: str) -> None:
    (folder / "folder").mkdir()
    (folder / "program").write_bytes(b"\x7fELF\x00\x01")
    with pytest.raises(InvalidValueError, match="cannot attach"):
        read_prompt(f"look at @{name}", ALIASES)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file without end")
def test_a_file_without_end_is_too_large(folder: Path) -> None:
    (folder / "notes.txt").symlink_to("/dev/zero")
    with pytest.raises(InvalidValueError, match="larger than"):
        read_attachment(folder / "notes.txt")
    with pytest.raises(InvalidValueError, match="larger than"):
        read_prompt("look at @notes.txt", ALIASES)


async def test_links_in_a_circle_are_no_files_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "MAX_MATCHES", 500)
    inner = folder / "inner"
    inner.mkdir()
    (inner / "a.txt").write_text("words")
    for name in ("one", "two"):
        (inner / name).symlink_to(inner)
    with pytest.raises(InvalidValueError, match="more than 500 files"):
        await read_fragment("inner")
    with pytest.raises(InvalidValueError, match="more than 500 files"):
        await read_fragment("inner/**/*.txt")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_named_pipe_without_a_writer_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert isinstance(read_attachment(folder / "pipe"), TextBlock)
