"""Index: the sessions of every program on this machine; only changed files are read again."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import ForeignDocumentError, MetisError
from metis.interchange.opencode_database import FORMAT as OPENCODE
from metis.interchange.opencode_database import database_sessions, is_database
from metis.interchange.programs import Environment, marked_folder, session_files
from metis.interchange.source import (
    MEMBER_MARK,
    Source,
    file_state,
    member_name,
    open_regular,
    parse_record,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

_CHUNK = 1024 * 1024
_MAX_CHUNKS = 512
"""How many megabytes of a file are counted; what follows them is not."""
_MAX_INDEX_BYTES = 256 * 1024 * 1024
_HEAD_BYTES = 64 * 1024
_MAX_RECORDS = 60
_MAX_TITLE = 200
# Texts that programs send for the user: the folder, rules, reminders.
_NOT_A_PROMPT = ("<", "# AGENTS.md", "Caveat:", "[Request interrupted")
_ID_KEYS = ("sessionId", "session_id", "sessionID", "id")


class IndexedSession(Struct, frozen=True, kw_only=True):
    """One session: what a list shows of it, and the state of its file when that was read."""

    program: str
    format: str
    path: str
    """The file; for one session of a database, followed by its id (`opencode.db#ses_1`)."""
    size: int
    changed_ns: int
    file_ns: int = 0
    """When the file changed; a session of a database may have changed earlier."""
    id: str = ""
    cwd: str = ""
    title: str = ""
    records: int = 0
    """How many lines it has."""


class SessionIndex:
    """The index of a user, stored in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sessions: dict[str, list[IndexedSession]] = {}
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            with open_regular(path) as file:
                data = file.read(_MAX_INDEX_BYTES)
            stored = msgspec.json.decode(data, type=list[IndexedSession])
            self._sessions = _by_file(stored)
        self.read_count = 0
        """How many files were read by the last update."""

    def update(self, home: Path, environment: Environment) -> list[IndexedSession]:
        """Return the sessions of all programs, newest first; only changed files are read."""
        self.read_count = 0
        current: dict[str, list[IndexedSession]] = {}
        for program, path in session_files(home, environment):
            try:
                size, changed_ns = file_state(path)
            except OSError:
                continue
            stored = self._sessions.get(str(path))
            if stored is None or (stored[0].size, stored[0].file_ns) != (size, changed_ns):
                self.read_count += 1
                stored = index_file(program.name, program.format, path)
            if stored:
                current[str(path)] = stored
        if current != self._sessions:
            self._sessions = current
            self._save()
        sessions = chain.from_iterable(current.values())
        return sorted(sessions, key=lambda session: session.changed_ns, reverse=True)

    def _save(self) -> None:
        data = msgspec.json.encode(list(chain.from_iterable(self._sessions.values())))
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):  # the index only saves time
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            draft.replace(self._path)


def _by_file(sessions: Iterable[IndexedSession]) -> dict[str, list[IndexedSession]]:
    files: dict[str, list[IndexedSession]] = {}
    for session in sessions:
        path = session.path.removesuffix(f"{MEMBER_MARK}{session.id}")
        files.setdefault(path, []).append(session)
    return files


def index_file(program: str, format_name: str, path: Path) -> list[IndexedSession]:
    """Return what a list shows of the sessions of a file: one, or those of a database."""
    size, changed_ns = file_state(path)
    shared = IndexedSession(
        program=program,
        format=format_name,
        path=str(path),
        size=size,
        changed_ns=changed_ns,
        file_ns=changed_ns,
    )
    if format_name == OPENCODE and is_database(Source(path)):
        return list(_database_entries(shared, path))
    return [_file_entry(shared, path)]


def _database_entries(shared: IndexedSession, path: Path) -> Iterator[IndexedSession]:
    with suppress(ForeignDocumentError):
        for session in database_sessions(Source(path)):
            yield replace(
                shared,
                path=member_name(path, session.id),
                changed_ns=session.updated_ms * 1_000_000,
                id=session.id,
                cwd=session.directory,
                title=session.title[:_MAX_TITLE],
                records=session.message_count,
            )


def _file_entry(shared: IndexedSession, path: Path) -> IndexedSession:
    """Return the entry of a file with one session: its beginning is parsed, the rest counted."""
    facts = _Facts()
    records = 0
    with suppress(OSError, ValueError, MetisError), Source(path).open() as file:
        head = file.read(_HEAD_BYTES)
        facts.read(head)
        records = head.count(b"\n")
        # A compressed file of a few kilobytes may unpack to gigabytes.
        for _ in range(_MAX_CHUNKS):
            chunk = file.read(_CHUNK)
            if not chunk:
                break
            records += chunk.count(b"\n")
    return replace(
        shared,
        id=facts.id or path.name.partition(".")[0],
        cwd=facts.cwd or marked_folder(path) or "",
        title=facts.title,
        records=records,
    )


class _Facts:
    """Id, folder and first prompt of a session, from its first records."""

    def __init__(self) -> None:
        self.id = self.cwd = self.title = ""

    def read(self, head: bytes) -> None:
        for line in head.split(b"\n")[:_MAX_RECORDS]:
            value = parse_record(0, line).value if line.strip() else None
            for record in _records(value):
                self._note(record)
            if self.id and self.cwd and self.title:
                return
        if not self.id:  # one document instead of lines, perhaps cut off
            for record in _records(parse_record(0, head).value):
                self._note(record)

    def _note(self, record: Wire) -> None:
        data = maybe_object(record.get("data"))
        for fields in (
            maybe_object(record.get("payload")),
            maybe_object(record.get("info")),
            data,
            maybe_object(data.get("context")),
            record,
        ):
            for key in ("cwd", "directory"):
                self.cwd = self.cwd or maybe_text(fields.get(key)) or ""
            is_message = "role" in fields or "parentUuid" in fields
            for key in _ID_KEYS[:3] if is_message else _ID_KEYS:
                self.id = self.id or maybe_text(fields.get(key)) or ""
        self.title = self.title or _prompt(record)


def _records(value: Any) -> Iterator[Wire]:
    if isinstance(value, list):
        yield from map(maybe_object, maybe_list(value)[:_MAX_RECORDS])
    elif isinstance(value, dict):
        record = maybe_object(value)
        yield record
        for name in ("messages", "loglines"):
            yield from map(maybe_object, maybe_list(record.get(name))[:_MAX_RECORDS])


def _prompt(record: Wire) -> str:
    """Return the first line of a record that is a prompt of the user; else an empty text."""
    data = maybe_object(record.get("data"))
    candidates: tuple[Mapping[str, Any], ...] = (
        maybe_object(record.get("payload")),
        maybe_object(record.get("message")),
        {**data, "role": "user"} if record.get("type") == "user.message" else {},
        record,
    )
    for fields in candidates:
        if "user" not in (fields.get("role"), fields.get("type")):
            continue
        content = fields.get("content", fields.get("parts"))
        parts = [content] if isinstance(content, str) else maybe_list(content)
        for part in parts:
            text = part if isinstance(part, str) else maybe_text(maybe_object(part).get("text"))
            line = (text or "").strip()
            if line and not line.startswith(_NOT_A_PROMPT):
                return line.splitlines()[0][:_MAX_TITLE]
    return ""
