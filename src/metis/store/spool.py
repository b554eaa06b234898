"""Spool: local files with entries that could not be stored because the database was unreachable.

A response has been paid for and a tool has been run before the database is written, so they must
not be lost. Each failed write is one file, complete or absent, which only its owner may read. It is
removed after its entries are committed. Entries that are already stored are not stored again: a
server may have committed a write that it could not confirm.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from metis.canonical.errors import DecodeError, MetisError
from metis.canonical.ids import new_ulid
from metis.canonical.message import SCHEMA_VERSION
from metis.store.append import AppendJob, PreparedMessage, RecordJob, prepare_message
from metis.store.database import Transaction
from metis.store.entries import (
    AnyEntry,
    MessageEntry,
    SidecarEntry,
    decode_entry,
    encode_entry,
)
from metis.store.private_files import PRIVATE_FILE, make_private_directory
from metis.store.records import SessionRecord, session_row
from metis.store.tables import Tables
from metis.store.transfer import INSERT_SESSION
from metis.store.writer import WriteJob

log = logging.getLogger("metis.store")

SESSION_KIND = "gateway.session"
"""The kind of the first entry of a session that the gateway created; see `RestoreJob`."""
EXCHANGE_KIND = "gateway.exchange"
"""The kind of the spooled entry that becomes a row of `exchanges`."""
_REFUSED = ".refused"
_MESSAGE = (
    "SELECT 1 FROM messages WHERE session_id = ? AND created_at = ? AND role = ? "
    "AND content_json = ?"
)
_ENTRY = (
    "SELECT 1 FROM journal WHERE session_id = ? AND message_id IS NULL AND entry_json LIKE ? "
    "LIMIT 1"
)


def store_prefix(url: str) -> str:
    """Return the prefix of the names of local files with data for a store."""
    parts = urlsplit(url)
    # Without the password, which may change for the same database.
    name = f"{parts.scheme}://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


class Spool:
    """The local files with entries that one store does not have yet."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._prefix = store_prefix(url)

    def add(self, entries: Sequence[AnyEntry]) -> Path:
        """Write entries to a new file; they survive a power failure when this returns."""
        make_private_directory(self._directory)
        path = self._directory / f"{self._prefix}-{new_ulid()}.jsonl"
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(b"".join(encode_entry(entry) + b"\n" for entry in entries))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return path

    def files(self) -> list[Path]:
        """Return the files in the order in which they were written."""
        try:
            return sorted(self._directory.glob(f"{self._prefix}-*.jsonl"))
        except OSError:
            # The home directory may belong to another user; the store is opened nevertheless.
            return []

    def read(self, path: Path) -> list[AnyEntry]:
        """Return the entries of a file; none if another process has stored and removed it."""
        try:
            return [decode_entry(line) for line in path.read_bytes().splitlines() if line]
        except FileNotFoundError:
            return []
        except DecodeError as error:
            self.refuse(path, error)
            return []

    def remove(self, path: Path) -> None:
        """Remove a file whose entries are stored."""
        path.unlink(missing_ok=True)

    def refuse(self, path: Path, error: MetisError) -> None:
        """Rename a file whose entries conflict with their session, so that it is not read again."""
        with suppress(OSError):
            path.replace(path.with_name(path.name + _REFUSED))
        log.warning("%s%s cannot be stored: %s", path, _REFUSED, error)


class RestoreJob(WriteJob):
    """Append spooled entries to their sessions, unless they are already stored."""

    def __init__(self, entries: Sequence[AnyEntry]) -> None:
        self._jobs: list[tuple[AnyEntry, PreparedMessage | None]] = [
            (entry, prepare_message(entry.message) if isinstance(entry, MessageEntry) else None)
            for entry in entries
        ]
        self.session_ids = sorted({entry.session_id for entry in entries})

    def write(self, tables: Tables) -> int:
        """Write the entries that are not stored yet; return their number."""
        count = 0
        for entry, prepared in self._jobs:
            if prepared is None:
                if isinstance(entry, SidecarEntry) and not self._is_journaled(entry, tables):
                    continue
                # `head` locks the session, so that no other process can store the entry now.
                tables.head(entry.session_id)
                if tables.run(_ENTRY, (entry.session_id, f'%"id":"{entry.id}"%')):
                    continue
                RecordJob(entry).write(tables)
            else:
                tables.head(entry.session_id)
                row = prepared.row
                # Not compared by id, because a stored message may have got a new one.
                if tables.run(_MESSAGE, (row[1], row[5], row[2], row[3])):
                    continue
                AppendJob([prepared], renew_ids=True).write(tables)
            count += 1
        return count

    def _is_journaled(self, entry: SidecarEntry, tables: Tables) -> bool:
        """Return whether an entry belongs in a journal; write the row of an exchange or session."""
        if entry.kind == EXCHANGE_KIND:
            values = (entry.id, entry.session_id, entry.data["tenant"], entry.data["record"])
            tables.exchanges.append(values)
            return False
        if entry.kind == SESSION_KIND:
            record = SessionRecord(
                id=entry.session_id,
                workspace_path=str(entry.data.get("workspace_path", "")),
                schema_version=SCHEMA_VERSION,
                created_at=entry.created_at,
                updated_at=entry.created_at,
            )
            tables.change(f"{INSERT_SESSION} ON CONFLICT DO NOTHING", session_row(record))
        return True

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Return the error for the first message that conflicts with stored rows."""
        jobs = (AppendJob([prepared]) for _, prepared in self._jobs if prepared is not None)
        return next(filter(None, (job.explain(transaction) for job in jobs)), None)
