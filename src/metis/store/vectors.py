"""The index of vectors of stored messages, and the search for the nearest ones.

Like the full-text index it is a separate file beside a SQLite store, which can be deleted. It needs
no extension: the sign bits of all vectors are compared first, by XOR and a bit count of integers,
and only the nearest few hundred vectors are compared exactly.
"""

import hashlib
import heapq
import math
import sqlite3
import threading
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from operator import mul
from pathlib import Path
from typing import Any

from msgspec import Struct

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.store.database import Rows, Transaction
from metis.store.private_files import make_private_file
from metis.store.records import from_row
from metis.store.sqlite_file import translate_errors

PART_CHARACTERS = 2_000
"""The length of a part of a message that gets a vector; small models read no more."""
MAX_PARTS = 16
"""How many parts of a message get vectors; later parts are not searched."""
EXACT_VECTORS = 2_000
"""Up to this number of vectors, all are compared exactly."""
MIN_CANDIDATES = 300
"""How many vectors are compared exactly if there are more than `EXACT_VECTORS`."""

_VERSION = 1
# The column of bits precedes the vector, so that reading it does not load the overflow pages.
_TABLES = f"""
DROP TABLE IF EXISTS vectors;
DROP TABLE IF EXISTS progress;
CREATE TABLE vectors (model TEXT NOT NULL, number INTEGER NOT NULL, part INTEGER NOT NULL,
session_id TEXT NOT NULL, digest BLOB NOT NULL, bits BLOB NOT NULL, vector BLOB NOT NULL,
PRIMARY KEY (model, number, part));
CREATE INDEX vectors_by_digest ON vectors (model, digest);
CREATE INDEX vectors_by_session ON vectors (session_id);
CREATE TABLE progress (model TEXT PRIMARY KEY, last INTEGER NOT NULL);
PRAGMA user_version = {_VERSION};
"""
_ROW = "rowid, id, session_id, role, content_json, metadata_json, created_at, schema_version"
_NEXT_ROWS = f"SELECT {_ROW} FROM messages WHERE rowid > ? ORDER BY rowid LIMIT ?"  # noqa: S608 - no input
_ONE_ROW = f"SELECT {_ROW} FROM messages WHERE rowid = ?"  # noqa: S608 - no input
_ROLES = (Role.USER, Role.ASSISTANT)


class TextPart(Struct, frozen=True):
    """A part of a message that has no vector yet."""

    number: int
    """The row of the message."""
    part: int
    session_id: str
    text: str

    @property
    def digest(self) -> bytes:
        """The digest of the text; forks have many equal texts, which share a vector."""
        return hashlib.blake2b(self.text.encode(errors="replace"), digest_size=16).digest()


class SimilarText(Struct, frozen=True, kw_only=True):
    """A part of a message that is near to a query."""

    session_id: str
    message_id: str
    score: float
    """The cosine similarity of the vectors; 1 for the same direction."""
    text: str


def text_parts(message: Message) -> list[str]:
    """Return the text of prompts and responses in parts; tool results are left out."""
    blocks = message.content if message.role in _ROLES else ()
    text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock)).strip()
    parts: list[str] = []
    while text and len(parts) < MAX_PARTS:
        end = len(text)
        if end > PART_CHARACTERS:
            space = max(text.rfind(" ", 1, PART_CHARACTERS), text.rfind("\n", 1, PART_CHARACTERS))
            end = space if space > PART_CHARACTERS // 2 else PART_CHARACTERS
        parts.append(text[:end].strip())
        text = text[end:].strip()
    return parts


def sign_bits(vector: Sequence[float]) -> bytes:
    """Return one bit per number: 1 if it is positive."""
    bits = int("".join("1" if value > 0 else "0" for value in vector), 2)
    return bits.to_bytes((len(vector) + 7) // 8)


def unit_vector(vector: Sequence[float]) -> "array[float]":
    """Return the vector of length one with the same direction; a zero vector is unchanged."""
    length = math.sqrt(sum(map(mul, vector, vector))) or 1.0
    return array("f", [value / length for value in vector])


class VectorIndex:
    """The vectors of a store, by model; vectors of different models cannot be compared."""

    def __init__(self, path: Path, read: Callable[[], AbstractContextManager[Transaction]]) -> None:
        self._name = str(path)
        self._read = read
        self._lock = threading.Lock()
        with translate_errors(self._name):
            # Private, because a text can be partly reconstructed from its vector.
            with suppress(OSError):
                make_private_file(path)
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=30
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA secure_delete = ON")
            with self._writing() as execute:
                if execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                    for statement in _TABLES.strip().split(";\n"):
                        execute(statement)

    @contextmanager
    def _writing(self) -> Generator[Callable[..., sqlite3.Cursor]]:
        execute = self._connection.execute
        with self._lock, translate_errors(self._name):
            execute("BEGIN IMMEDIATE")
            try:
                yield execute
                execute("COMMIT")
            except BaseException:
                execute("ROLLBACK")
                raise

    def models(self) -> list[str]:
        """Return the models that have vectors, the one with the most first."""
        sql = "SELECT model FROM vectors GROUP BY model ORDER BY count(*) DESC, model"
        return [row[0] for row in self._run(sql)]

    def pending(self, model: str) -> tuple[int, int]:
        """Return the approximate number of messages and bytes that a model has not embedded."""
        sql = (
            "SELECT count(*), coalesce(sum(length(content_json)), 0) FROM messages "
            "WHERE rowid > ? AND role IN (?, ?)"
        )
        with self._read() as messages:
            return messages.run(sql, (self._last(model), *map(str, _ROLES)))[0]

    def next_parts(self, model: str, limit: int) -> tuple[list[TextPart], int]:
        """Return about `limit` parts without a vector, and the row up to which they reach.

        They end before a partial message, because messages are embedded in order.
        """
        last, parts = self._last(model), list[TextPart]()
        with self._read() as messages:
            while len(parts) < limit and (rows := messages.run(_NEXT_ROWS, (last, limit))):
                for row in rows:
                    message = from_row(row[1:])
                    if message.metadata.status is MessageStatus.PARTIAL or len(parts) >= limit:
                        return parts, last
                    last = row[0]
                    texts = enumerate(text_parts(message))
                    parts += [TextPart(last, part, row[2], text) for part, text in texts]
        return parts, last

    def known_vectors(self, model: str, parts: Sequence[TextPart]) -> dict[bytes, bytes]:
        """Return the stored vectors of equal texts, by digest."""
        sql = "SELECT vector FROM vectors WHERE model = ? AND digest = ? LIMIT 1"
        rows = {part.digest: self._run(sql, (model, part.digest)) for part in parts}
        return {digest: row[0][0] for digest, row in rows.items() if row}

    def add(
        self, model: str, parts: Sequence[TextPart], vectors: Sequence[Sequence[float]], last: int
    ) -> None:
        """Store the vectors of parts, and `last` as the row up to which messages are embedded.

        Raises:
            InvalidValueError: earlier vectors of the model have another length.
        """
        size = self._dimensions(model)
        units = [unit_vector(vector) for vector in vectors]
        if any(len(unit) != (size or len(units[0])) for unit in units):
            fault = (
                f"{model} now gives vectors of another length than the {size} numbers that are "
                "stored; `metis embed --clear` starts again"
            )
            raise InvalidValueError(fault, path="$.vectors")
        rows = [
            (
                *(model, part.number, part.part, part.session_id, part.digest),
                *(sign_bits(unit), unit.tobytes()),
            )
            for part, unit in zip(parts, units, strict=True)
        ]
        with self._writing() as execute:
            for row in rows:
                execute("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (model, last))

    def find(
        self, model: str, vector: Sequence[float], *, session_id: str | None = None, limit: int = 20
    ) -> list[SimilarText]:
        """Return the parts of messages that are nearest to a vector; equal texts once.

        Parts without a positive similarity are left out.
        """
        unit = unit_vector(vector)
        # A model may change its dimensions; vectors of different lengths cannot be compared.
        if len(unit) != self._dimensions(model):
            return []
        where, values = ("", ()) if session_id is None else (" AND session_id = ?", (session_id,))
        candidates = self._candidates(model, sign_bits(unit), where, values, limit)
        scored = sorted(self._scored(model, unit, candidates), reverse=True)
        texts: dict[bytes, SimilarText] = {}
        with self._read() as messages:
            for score, number, part, digest in scored:
                if len(texts) == limit or score <= 0:
                    break
                rows = messages.run(_ONE_ROW, (number,)) if digest not in texts else []
                parts = text_parts(from_row(rows[0][1:])) if rows else []
                # SQLite may have reused the row id after a deletion.
                if part < len(parts) and TextPart(0, 0, "", parts[part]).digest == digest:
                    texts[digest] = SimilarText(
                        session_id=rows[0][2],
                        message_id=rows[0][1],
                        score=round(score, 4),
                        text=parts[part],
                    )
        return list(texts.values())

    def _candidates(
        self, model: str, bits: bytes, where: str, values: tuple[str, ...], limit: int
    ) -> Rows:
        columns = f"SELECT number, part, bits FROM vectors WHERE model = ?{where}"  # noqa: S608 - no input
        count = self._run(f"SELECT count(*) FROM ({columns})", (model, *values))[0][0]  # noqa: S608 - no input
        if count <= EXACT_VECTORS:
            return self._run(columns, (model, *values))
        query = int.from_bytes(bits)

        def distance(row: Sequence[Any]) -> int:
            return (int.from_bytes(row[2]) ^ query).bit_count()

        with self._lock, translate_errors(self._name):
            rows = self._connection.execute(columns, (model, *values))
            return heapq.nsmallest(max(MIN_CANDIDATES, 20 * limit), rows, key=distance)

    def _scored(
        self, model: str, unit: "array[float]", candidates: Rows
    ) -> Iterator[tuple[float, int, int, bytes]]:
        sql = "SELECT vector, digest FROM vectors WHERE model = ? AND number = ? AND part = ?"
        for number, part, _ in candidates:
            for vector, digest in self._run(sql, (model, number, part)):
                yield sum(map(mul, unit, array("f", vector))), number, part, digest

    def remove_sessions(self, session_ids: Sequence[str], newest: int) -> None:
        """Remove sessions; SQLite will reuse row ids above `newest` for other messages."""
        with self._writing() as execute:
            for session_id in session_ids:
                execute("DELETE FROM vectors WHERE session_id = ?", (session_id,))
            execute("UPDATE progress SET last = ? WHERE last > ?", (newest, newest))

    def clear(self, model: str | None = None) -> int:
        """Delete all vectors, or those of a model, and return how many there were."""
        values = () if model is None else (model,)
        where = "" if model is None else " WHERE model = ?"
        with self._writing() as execute:
            count = execute(f"DELETE FROM vectors{where}", values).rowcount  # noqa: S608 - no input
            execute(f"DELETE FROM progress{where}", values)  # noqa: S608 - no input
        return count

    def purge(self) -> None:
        """Free the space of deleted rows."""
        with self._lock, translate_errors(self._name):
            self._connection.execute("VACUUM")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _last(self, model: str) -> int:
        rows = self._run("SELECT last FROM progress WHERE model = ?", (model,))
        return rows[0][0] if rows else 0

    def _dimensions(self, model: str) -> int:
        sql = "SELECT length(vector) FROM vectors WHERE model = ? LIMIT 1"
        rows = self._run(sql, (model,))
        return rows[0][0] // array("f").itemsize if rows else 0

    def _run(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        with self._lock, translate_errors(self._name):
            return self._connection.execute(sql, values).fetchall()
