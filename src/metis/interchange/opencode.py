"""Sessions of opencode: its database, the form of its `export`, and older storage directories.

A response of opencode holds several steps, each a call of the model, with the results inside of the
calls. Here each step is a message, followed by a message for each result.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from metis.canonical.blocks import (
    ToolResultBlock,
)
from metis.canonical.message import Role
from metis.interchange.opencode_database import database_documents, is_database
from metis.interchange.opencode_records import (
    new_parts,
    new_record,
    plain_parts,
    report_result,
    response_messages,
    result_state,
    time_of,
    to_milliseconds,
    user_messages,
)
from metis.interchange.session_draft import ForeignSession, SessionDraft
from metis.interchange.session_format import RecordFormat, RecordWriter, write_json
from metis.interchange.source import ForeignRecord, Source, parse_record
from metis.projection.loss import Change
from metis.store.entries import CompactionEntry, KnownEntry, MessageEntry
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

_MAX_FILES = 100_000
_VERSION = "1.0.0"
_read = msgspec.json.Decoder().decode


class OpenCode(RecordFormat):
    """`opencode.db`, `opencode export`, files of `storage/session`, lines of `opencode run`."""

    name = "opencode"
    system = "opencode"

    def fits(self, source: Source) -> bool:
        """Return whether it is a database, an export, a stored session, or the output of a run."""
        if is_database(source):
            return True
        sample = source.sample()
        document = maybe_object(source.sample_document())
        if document:
            is_export = isinstance(document.get("info"), dict) and "messages" in document
            return is_export or self._is_stored(document, source.path)
        first = maybe_object(next(iter(source.sample_records(1)), None))
        if isinstance(first.get("part"), dict) and "sessionID" in first:
            return True
        head = sample[:4000]
        return head.lstrip().startswith(b"{") and b'"info"' in head and b'"sessionID"' in sample

    def _is_stored(self, document: Wire, path: Path | None) -> bool:
        is_session = {"id", "projectID", "time"} <= document.keys() and "directory" in document
        return path is not None and path.parent.parent.name == "session" and is_session

    def records(self, source: Source) -> Iterator[ForeignRecord]:
        """Yield the info of a session, then its messages, each with its parts."""
        if is_database(source):
            for document in database_documents(source, source.member):
                yield from _numbered(document)
            return
        first = maybe_object(next(iter(source.sample_records(1)), None))
        if isinstance(first.get("part"), dict):
            yield from _run_records(source)
            return
        document = maybe_object(parse_record(0, source.read()).value)
        if "messages" in document:
            head = {k: v for k, v in document.items() if k != "messages"}
            messages = maybe_list(document.get("messages"))
        else:
            head, messages = {"info": document}, list(_stored_messages(document, source.path))
        yield from _numbered([head, *messages])

    def join(self, records: Iterable[bytes]) -> bytes:
        """Return the document that `opencode import` reads."""
        values = [_read(line) for line in records]
        # The first record is the session, whatever it holds; a new file begins with it as well.
        head = maybe_object(values[0]) if values and "parts" not in maybe_object(values[0]) else {}
        return write_json({**head, "messages": values[1:] if head else values})

    def record_key(self, record: ForeignRecord) -> str:
        """Return the id of a message."""
        name = maybe_text(maybe_object(record.fields.get("info")).get("id"))
        return name or super().record_key(record)

    def with_foreign_id(self, record: Wire, foreign_id: str) -> Wire:
        """Return a record with the id of another session."""
        info = maybe_object(record.get("info"))
        if "parts" not in record:
            return {**record, "info": {**info, "id": foreign_id}}
        parts = [
            {**part, "sessionID": foreign_id} if "sessionID" in part else part
            for part in map(maybe_object, maybe_list(record.get("parts")))
        ]
        return {**record, "info": {**info, "sessionID": foreign_id}, "parts": parts}

    def note_record(self, record: Wire, writer: RecordWriter) -> None:
        """Note the ids of the session and of the last message of the user."""
        info = maybe_object(record.get("info"))
        if "parts" not in record and not writer.foreign_id:
            writer.foreign_id = maybe_text(info.get("id")) or ""
        elif info.get("role") == "user":
            writer.state["user"] = info.get("id")

    # Reading

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the session of a file, or every session of a database."""
        if is_database(source):
            for document in database_documents(source, source.member):
                yield self._session(_numbered(document), source.identity)
        else:
            yield self._session(self.records(source), source.identity)

    def _session(self, records: Iterable[ForeignRecord], identity: str) -> ForeignSession:
        draft: SessionDraft | None = None
        for record in records:
            info = maybe_object(record.fields.get("info"))
            if draft is None:
                foreign_id = maybe_text(info.get("id")) or maybe_text(info.get("sessionID"))
                draft = SessionDraft(self, foreign_id or identity)
                draft.cwd = maybe_text(info.get("directory")) or ""
                draft.title = maybe_text(info.get("title")) or ""
                draft.version = maybe_text(info.get("version")) or ""
                draft.time(time_of(info))
                if parent := maybe_text(info.get("parentID")):
                    draft.set_parent(parent)
            draft.time(time_of(info))
            role = info.get("role")
            if role not in ("user", "assistant") or "parts" not in record.fields:
                draft.add_record(record, "info") if info else draft.add_unknown_record(record)
                continue
            parts = [maybe_object(part) for part in maybe_list(record.fields.get("parts"))]
            steps = user_messages(parts, record.at, draft) if role == "user" else None
            messages = steps or list(response_messages(info, parts, record.at, draft))
            draft.add_unit(messages, [record], self.store_unit)
        return (draft or SessionDraft(self, identity)).session()

    # Writing

    def encode_unit(self, entries: Sequence[KnownEntry], writer: RecordWriter) -> list[Wire]:
        """Return the record of a message: its parts without ids and times."""
        messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        role = "assistant" if messages and messages[0].role is Role.ASSISTANT else "user"
        return [{"info": {"role": role}, "parts": plain_parts(messages, writer)}]

    def first_records(self, writer: RecordWriter) -> list[Wire]:
        """Return the info of a session."""
        options = writer.options
        now = to_milliseconds(options.now)
        writer.foreign_id = options.foreign_id or writer.foreign_id or f"ses_{now:x}"
        info = {
            "id": writer.foreign_id,
            "slug": writer.foreign_id.lower().replace("_", "-"),
            "version": _VERSION,
            "projectID": "global",
            "directory": options.cwd,
            "title": "Session of another program",
            "time": {"created": now, "updated": now},
        }
        return [{"info": info}]

    def new_records(self, entry: KnownEntry, writer: RecordWriter) -> list[Wire]:
        """Return the record of an entry; a result goes into the record of its call."""
        if isinstance(entry, CompactionEntry):
            reason = "the summary is written as a message; what it replaces is sent as well"
            writer.add_loss(entry, "compaction", reason, change=Change.ALTERED)
            part = {"type": "text", "text": entry.summary}
            return [new_record(entry, "user", [part], writer)]
        if not isinstance(entry, MessageEntry):
            return []
        message = entry.message
        if message.role is Role.SYSTEM:
            writer.add_loss(entry, "system", "opencode uses its own system prompt")
            return []
        if message.role is Role.DEVELOPER:
            reason = "written as a user message"
            writer.add_loss(entry, "developer", reason, change=Change.ALTERED)
        if message.role is Role.TOOL:
            report_result(entry, writer)
            writer.add_result(self._with_result, entry)
            return []
        parts = list(new_parts(entry, writer))
        if not parts:
            writer.add_loss(entry, "message", "opencode can represent none of its blocks")
            return []
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        return [new_record(entry, role, parts, writer)]

    def _with_result(self, record: Wire, entry: MessageEntry, writer: RecordWriter) -> Wire | None:
        """Return a record whose call has its result; None if the call is not in it."""
        block = entry.message.content[0]
        if not isinstance(block, ToolResultBlock):
            return None
        call_id = writer.wire_id(block.tool_use_id)
        parts = [maybe_object(part) for part in maybe_list(record.get("parts"))]
        for index, part in enumerate(parts):
            state = maybe_object(part.get("state"))
            if part.get("callID") == call_id and state.get("status") == "running":
                parts[index] = {**part, "state": {**state, **result_state(block)}}
                return {**record, "parts": parts}
        return None


def _numbered(values: Iterable[Any]) -> Iterator[ForeignRecord]:
    for number, value in enumerate(values, 1):
        yield ForeignRecord(number, value, write_json(value))


def _run_records(source: Source) -> Iterator[ForeignRecord]:
    """Yield the lines of a run as messages: the parts that name one message belong together."""
    number = 1
    parts: list[Any] = []
    name: str | None = None
    session: str | None = None
    for record in source.records():
        part = maybe_object(record.fields.get("part"))
        session = session or maybe_text(record.fields.get("sessionID"))
        if number == 1:
            head: Wire = {"info": {"id": session}}
            yield ForeignRecord(1, head, write_json(head))
            number = 2
        if parts and part.get("messageID") != name:
            yield _run_message(number, session, name, parts)
            parts, number = [], number + 1
        name = maybe_text(part.get("messageID"))
        parts.append(part)
    if parts:
        yield _run_message(number, session, name, parts)


def _run_message(
    number: int, session: str | None, name: str | None, parts: list[Any]
) -> ForeignRecord:
    value = {"info": {"id": name, "sessionID": session, "role": "assistant"}, "parts": parts}
    return ForeignRecord(number, value, write_json(value))


def _stored_messages(info: Wire, path: Path | None) -> Iterator[Wire]:
    """Yield the messages of a session in a storage directory, with their parts."""
    if path is None:
        return
    storage = path.parent.parent.parent
    name = maybe_text(info.get("id")) or ""
    if not name or "/" in name or name.startswith("."):
        return
    messages = sorted((storage / "message" / name).glob("*.json"))[:_MAX_FILES]
    values = [maybe_object(parse_record(0, Source(file).read()).value) for file in messages]
    for value in values:
        message_id = maybe_text(value.get("id")) or ""
        parts: list[Any] = []
        if message_id and "/" not in message_id and not message_id.startswith("."):
            files = sorted((storage / "part" / message_id).glob("*.json"))[:_MAX_FILES]
            parts = [parse_record(0, Source(file).read()).value for file in files]
        yield {"info": value, "parts": parts}
