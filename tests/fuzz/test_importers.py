"""Documents of other programs, damaged at random: every importer returns entries or a typed error.

Each seed is a document of a format; bytes, lines and values of it are changed. A document that once
raised anything else is a file in `regressions/import`, named by its format.
"""

import contextlib
import random
from pathlib import Path

import pytest

from build import assistant, call, tool, tool_id, ulid, user
from metis import interchange
from metis.canonical.errors import MetisError
from metis.store.transfer import read_transcript

REGRESSIONS = Path(__file__).parent / "regressions" / "import"
HISTORY = [
    user("why, 世界?", id=ulid(1)),
    assistant("let me look", call("read", tool_id(1)), id=ulid(2)),
    tool("a result", answers=tool_id(1), id=ulid(3)),
    assistant("because", id=ulid(4)),
]
# Bytes that JSON, UTF-8 and line ends give a meaning, and some that they never have.
PIECES = (
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\n", b"\r", b'"', b"\\"),
    *(b"{", b"}", b"[", b"]", b",", b":", b"null", b"-1", b"1e999", b"99999999999999999999", b'""'),
    *(b"\\ud800", b"[" * 2000, b'{"a":' * 2000, b"true", b"NaN", b"\xe2\x80\xa8", b"\xef\xbb\xbf"),
)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A document with one to four changes."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 0, 1, 1, 8, 80)))
        piece = chance.choice((*PIECES, data[start : start + 40], b""))
        data = data[:start] + piece + data[end:]
    return data


def read(name: str, data: bytes) -> None:
    """Read a document as an import does; a typed error is as good as entries."""
    try:
        if name == "metis":
            read_transcript(data.splitlines())
            return
        interchange.load(name, data)
    except MetisError:
        pass
    with contextlib.suppress(MetisError):
        interchange.detect(data)


def seed_document(name: str) -> bytes:
    if name == "metis":
        head = b'{"format":1,"session":{"created_at":"2026-01-01T00:00:00Z","id":"sess_42",'
        head += b'"schema_version":1,"updated_at":"2026-01-01T00:00:00Z","workspace_path":"/w"},'
        return head + b'"type":"session"}\n'
    entries = HISTORY[-1:] if name == "attocode-response" else HISTORY  # it holds one response
    return interchange.dump(name, entries).data


NAMES = ("metis", *interchange.formats())


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_document_is_read_or_refused(name: str) -> None:
    document, chance = seed_document(name), random.Random(name)  # noqa: S311 - a test
    for _ in range(10):
        read(name, damaged(document, chance))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", NAMES)
def test_many_damaged_documents_are_read_or_refused(name: str) -> None:
    document, chance = seed_document(name), random.Random()  # noqa: S311 - a test
    for _ in range(2_000):
        data = damaged(document, chance)
        try:
            read(name, data)
        except Exception:
            (REGRESSIONS / f"{name}.{chance.randrange(1 << 32):08x}").write_bytes(data)
            raise


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*.*")), ids=lambda path: path.name)
def test_what_failed_once_is_read_or_refused(path: Path) -> None:
    read(path.name.partition(".")[0], path.read_bytes())
