"""Registered files: media types, turns of a thread, and stored bytes."""

import base64
import hashlib
import json
import mimetypes
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis import adapters, interchange
from metis.canonical import DocumentBlock, ImageBlock, Role, validate
from metis.canonical.errors import InvalidValueError, StoreCorruptError
from metis.interchange.gpt2099.documents import (
    MAX_BYTES,
    MEDIA_TYPES,
    UNKNOWN,
    ContentStore,
    media_type,
    register_document,
)
from metis.wire.call import AdapterOptions

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
ENDS = ("pdf", "txt", "md", "json", "csv", "jpg", "png", "webp", "gif", "docx", "xlsx")


@pytest.fixture
def contents(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "contents")


def archive(path: Path, *names: str) -> bytes:
    with zipfile.ZipFile(path, "w") as created:
        for name in ("[Content_Types].xml", *names):
            created.writestr(name, "<x/>")
    return path.read_bytes()


@pytest.mark.row("GX-05")
@pytest.mark.parametrize("end", ENDS)
def test_media_type_follows_file_extension(end: str) -> None:
    """Compared with the standard library's types, without the tables of the system."""
    expected = mimetypes.MimeTypes().guess_type(f"a.{end}")[0]
    ours = media_type(f"Some File.{end.upper()}", b"\xff")
    assert ours == MEDIA_TYPES[f".{end}"]
    later = {"docx", "xlsx", "webp", "md"}  # not in the tables of every version
    assert ours == expected or (end in later and expected is None)


@pytest.mark.row("GX-05")
def test_media_type_follows_bytes_without_known_extension(tmp_path: Path) -> None:
    result = {
        "image/png": PNG,
        "image/jpeg": b"\xff\xd8\xff\xe0rest",
        "image/gif": b"GIF89a...",
        "image/webp": b"RIFF\0\0\0\0WEBPVP8 ",
        "application/pdf": b"%PDF-1.7\n",
        "text/plain": "häfen\n".encode(),
        MEDIA_TYPES[".docx"]: archive(tmp_path / "a", "word/document.xml"),
        MEDIA_TYPES[".xlsx"]: archive(tmp_path / "b", "xl/workbook.xml"),
        "application/zip": archive(tmp_path / "c", "else"),
        UNKNOWN: b"\xfe\xff\x00\x01",
    }
    for kind, data in result.items():
        assert media_type("unnamed", data) == kind
        assert media_type("odd.bin", data) == kind
    assert media_type("x", b"PK\x03\x04broken") == UNKNOWN
    assert media_type("x", b"a\0b") == UNKNOWN


@given(st.text(), st.binary())
def test_every_file_has_a_media_type(name: str, data: bytes) -> None:
    kind, slash, rest = media_type(name, data).partition("/")
    assert kind
    assert slash
    assert rest


@pytest.mark.row("GX-05", "G-029", "G-030", "G-031", "G-032", "G-033")
def test_registered_file_is_a_turn_with_stored_bytes(
    tmp_path: Path, contents: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"# Tides\n"
    (tmp_path / "tides.md").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    result = register_document("tides.md", contents, is_cached=True)
    assert result.hash == "sha256-" + base64.b64encode(hashlib.sha256(data).digest()).decode()
    assert contents.get(result.hash) == data
    message = result.message
    assert message.role is Role.USER
    assert validate(message) == []
    (block,) = message.content
    assert isinstance(block, DocumentBlock)
    assert (block.name, block.media_type) == ("tides.md", "text/markdown")
    dumped = interchange.dump("gpt2099", [message])
    frame = json.loads(dumped.data)
    assert frame["meta"] == {
        "role": "user",
        "cache": True,
        "content_type": "text/markdown",
        "type": "document",
        "document_name": "tides.md",
        "original_path": str(tmp_path / "tides.md"),
        "file_size": len(data),
        "cache_control": "ephemeral",
    }
    assert base64.b64decode(frame["content"]) == data
    back = interchange.load("gpt2099", dumped.data)
    assert back.messages[0].content == message.content
    assert back.messages[0].metadata.hints == message.metadata.hints
    wire = adapters.get("anthropic").to_wire([message], (), AdapterOptions())
    (sent,) = json.loads(wire.body)["messages"][0]["content"]
    assert sent["source"] == {"type": "text", "media_type": "text/plain", "data": "# Tides\n"}
    assert sent["cache_control"] == {"type": "ephemeral"}


@pytest.mark.row("GX-05")
def test_image_can_have_a_custom_name(tmp_path: Path, contents: ContentStore) -> None:
    (tmp_path / "x").write_bytes(PNG)
    result = register_document(tmp_path / "x", contents, name="harbour")
    (block,) = result.message.content
    assert isinstance(block, ImageBlock)
    assert block.media_type == "image/png"
    meta = json.loads(interchange.dump("gpt2099", [result.message]).data)["meta"]
    assert (meta["document_name"], meta["file_size"]) == ("harbour", len(PNG))
    assert (meta["content_type"], meta["cache"]) == ("image/png", False)


@pytest.mark.row("GX-05")
def test_no_file_is_larger_than_a_hundred_megabytes(tmp_path: Path, contents: ContentStore) -> None:
    assert MAX_BYTES == 100_000_000
    large = tmp_path / "large.txt"
    with large.open("wb") as created:
        created.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidValueError, match="larger than 100000000 bytes"):
        register_document(large, contents)
    assert not (tmp_path / "contents").exists()
    small = tmp_path / "small.txt"
    small.write_bytes(b"12345")
    assert register_document(small, contents, max_bytes=5).message.content
    with pytest.raises(InvalidValueError, match="larger than 4 bytes"):
        register_document(small, contents, max_bytes=4)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(InvalidValueError, match="cannot be read"):
            register_document(missing, contents)


@pytest.mark.row("GX-05")
def test_equal_bytes_are_stored_once_and_verified_when_read(
    tmp_path: Path, contents: ContentStore
) -> None:
    folder = tmp_path / "contents"
    with ThreadPoolExecutor(8) as pool:
        hashes = set(pool.map(contents.put, [b"one"] * 64))
    (one,) = hashes
    assert contents.put(b"two") != one
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert one in contents
    assert ContentStore(folder).get(one) == b"one"
    (position,) = [path for path in files if path.read_bytes() == b"one"]
    position.write_bytes(b"changed")
    with pytest.raises(StoreCorruptError):
        contents.get(one)
    removed = "sha256-" + base64.b64encode(bytes(32)).decode()
    assert removed not in contents
    for wrong, reasons in (
        (removed, "nothing is stored"),
        ("sha1-x", "not a sha256"),
        ("sha256-!", "not a sha256"),
    ):
        with pytest.raises(InvalidValueError, match=reasons):
            contents.get(wrong)
