"""The records that Claude Code writes, from our entries."""

import hashlib
from abc import ABC
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from metis.canonical.message import Message, Role
from metis.interchange.session_draft import foreign_data
from metis.interchange.session_format import (
    RecordFormat,
    RecordWriter,
    joined_document,
    write_json,
)
from metis.interchange.source import ForeignRecord, Source, parse_record
from metis.projection.loss import Change
from metis.store.entries import CompactionEntry, ErrorEntry, KnownEntry, MessageEntry
from metis.wire.anthropic.blocks import PROTOCOL, decode_block, encode_block
from metis.wire.anthropic.response import encode_stop_reason, encode_usage
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.original_form import original_blocks, original_form_of

# The version of Claude Code that new records name; it accepts records of older versions.
VERSION = "2.1.0"
_HEAD_BYTES = 200
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


class ClaudeCodeRecords(RecordFormat, ABC):
    """Writes the records of Claude Code."""

    name = "claude-code"
    system = "claude-code"

    def records(self, source: Source) -> Iterator[ForeignRecord]:
        """Yield the records of a file; the list in an export of the web version is one as well."""
        if b'"loglines"' not in source.sample()[:_HEAD_BYTES]:
            yield from source.records()
            return
        document = maybe_object(parse_record(0, source.read()).value)
        lines = maybe_list(document.get("loglines"))
        head: Wire = {"loglines": [], **{k: v for k, v in document.items() if k != "loglines"}}
        yield ForeignRecord(0, head, write_json(head))
        for number, value in enumerate(lines, 1):
            yield ForeignRecord(number, value, write_json(value))

    def join(self, records: Iterable[bytes]) -> bytes:
        """Return the file: one record per line, or the list of an export."""
        lines = list(records)
        document = joined_document(lines, "loglines")
        return super().join(lines) if document is None else write_json(document)

    def record_key(self, record: ForeignRecord) -> str:
        """Return the uuid of a record, or its position and checksum."""
        return maybe_text(record.fields.get("uuid")) or super().record_key(record)

    def with_foreign_id(self, record: Wire, foreign_id: str) -> Wire:
        """Return a record with the id of another session."""
        return {**record, "sessionId": foreign_id} if "sessionId" in record else record

    def note_record(self, record: Wire, writer: RecordWriter) -> None:
        """Note the last record of the main thread, which the next one follows."""
        uuid = maybe_text(record.get("uuid"))
        if uuid is not None and record.get("isSidechain") is not True:
            writer.state["uuid"] = uuid
        for key in ("cwd", "version", "gitBranch", "sessionId"):
            if isinstance(record.get(key), str):
                writer.state[key] = record[key]

    def encode_unit(self, entries: Sequence[KnownEntry], writer: RecordWriter) -> list[Wire]:
        """Return the records of a unit without their envelopes."""
        first = entries[0]
        match first:
            case ErrorEntry():
                return [_record("assistant", [_text(first.text)])]
            case CompactionEntry():
                return [_record("user", first.summary)]
            case MessageEntry() if first.message.role is Role.ASSISTANT:
                return self._assistant_records(first, writer)
            case MessageEntry():
                return [self._user_record(entries, writer)]
            case _:
                return []

    def _assistant_records(self, entry: MessageEntry, writer: RecordWriter) -> list[Wire]:
        message = entry.message
        shape = maybe_list(foreign_data(entry, self.system).get("blocks"))
        if sum(shape) != len(message.content):
            shape = [len(message.content)]
        parts = encoded_blocks(message, writer)
        records: list[Wire] = []
        start = 0
        for count in shape:
            record = _record("assistant", parts[start : start + count])
            start += count
            if message.metadata.response_id is not None:
                record["message"]["id"] = message.metadata.response_id
            if message.metadata.model is not None:
                record["message"]["model"] = message.metadata.model.partition(":")[2]
            record["message"]["type"] = "message"
            records.append(record)
        return records

    def _user_record(self, entries: Sequence[KnownEntry], writer: RecordWriter) -> Wire:
        parts: list[Any] = []
        ui: Any = UNSET
        is_list = len(entries) > 1
        for entry in entries:
            if not isinstance(entry, MessageEntry):
                continue
            data = foreign_data(entry, self.system)
            is_list = is_list or bool(data.get("parts")) or entry.message.role is Role.TOOL
            encoded = encoded_blocks(entry.message, writer)
            if entry.message.role is Role.TOOL and not data.get("list"):
                encoded = [_with_plain_content(part) for part in encoded]
            parts += encoded
            outcome = entry.message.metadata.outcome
            if ui is UNSET and outcome is not None:
                ui = outcome.ui
        is_text = len(parts) == 1 and set(maybe_object(parts[0])) == {"type", "text"}
        record = _record("user", parts if is_list or not is_text else parts[0]["text"])
        return record if ui is UNSET else {**record, "toolUseResult": ui}

    # New records

    def new_records(self, entry: KnownEntry, writer: RecordWriter) -> list[Wire]:
        """Return complete records for an entry of another program or of metis."""
        match entry:
            case CompactionEntry():
                return self._new_summary(entry, writer)
            case MessageEntry():
                return self._new_message(entry, writer)
            case _:
                return []

    def _new_message(self, entry: MessageEntry, writer: RecordWriter) -> list[Wire]:
        message = entry.message
        if message.role is Role.SYSTEM:
            reason = "Claude Code uses its own system prompt"
            writer.add_loss(entry, "system", reason)
            return []
        content = list(self._writable_blocks(entry, writer))
        if not content:
            writer.add_loss(entry, "message", "Claude Code can represent none of its blocks")
            return []
        if message.role is Role.ASSISTANT:
            return self._new_response(entry, content, writer)
        record = _record("user", content)
        parts = record["message"]["content"]
        if message.role is Role.TOOL:
            outcome = message.metadata.outcome
            ui = UNSET if outcome is None else outcome.ui
            if ui is not UNSET:
                record["toolUseResult"] = ui
        elif len(parts) == 1 and set(parts[0]) == {"type", "text"}:
            record["message"]["content"] = parts[0]["text"]
        if message.role is Role.DEVELOPER:
            record["isMeta"] = True
            reason = "written as a user message that is not shown"
            writer.add_loss(entry, "developer", reason, change=Change.ALTERED)
        return [self._with_envelope(record, writer, message, 0)]

    def _new_response(
        self, entry: MessageEntry, content: Sequence[Any], writer: RecordWriter
    ) -> list[Wire]:
        message = entry.message
        metadata = message.metadata
        name = (metadata.model or writer.options.model or "unknown").partition(":")[2]
        response_id = metadata.response_id if metadata.provider == PROTOCOL else None
        records: list[Wire] = []
        for index, part in enumerate(content):
            is_last = index == len(content) - 1
            record = _record("assistant", [part])
            record["message"] = {
                "id": response_id or f"msg_{message.id}",
                "type": "message",
                "role": "assistant",
                "model": name or "unknown",
                "content": [part],
                "stop_reason": encode_stop_reason(metadata.stop_reason) if is_last else None,
                "stop_sequence": None,
                "usage": encode_usage(metadata.usage),
            }
            records.append(self._with_envelope(record, writer, message, index))
        return records

    def _writable_blocks(self, entry: MessageEntry, writer: RecordWriter) -> Iterator[Any]:
        message = entry.message
        originals = original_blocks(message, original_form_of(message, PROTOCOL), decode_block)
        for index, block in enumerate(message.content):
            path = f"$.content[{index}]"
            if isinstance(block, ThinkingBlock | RedactedThinkingBlock) and (
                block.issuer != PROTOCOL or getattr(block, "signature", "") is None
            ):
                reason = f"thinking of {block.issuer or 'another model'} cannot be sent to Claude"
                writer.add_loss(entry, block.type, reason, path=path)
                continue
            part = originals.get(str(index)) or encode_block(block, writer.wire_id)
            if part is None or (isinstance(block, TextBlock) and not block.text):
                if part is None:
                    writer.add_loss(entry, block.type, "Claude Code has no block for it", path=path)
                continue
            plain = _read(_write(part))
            if isinstance(block, ToolResultBlock):
                self._report_result(entry, block, plain, writer, path)
                plain = _with_plain_content(plain)
            yield plain

    def _report_result(
        self,
        entry: MessageEntry,
        block: ToolResultBlock,
        part: Wire,
        writer: RecordWriter,
        path: str,
    ) -> None:
        missing = len(block.content) - len(maybe_list(part.get("content")))
        if missing > 0:
            reason = f"{missing} parts of the result have no block in Claude Code"
            writer.add_loss(entry, "tool_result", reason, path=path, change=Change.ALTERED)

    def _new_summary(self, entry: CompactionEntry, writer: RecordWriter) -> list[Wire]:
        if entry.first_kept_id is not None:
            reason = "messages that stay beside a summary are before it, and not sent again"
            writer.add_loss(entry, "compaction", reason, change=Change.ALTERED)
        previous = writer.state.get("uuid")
        boundary: Wire = {
            "type": "system",
            "subtype": "compact_boundary",
            "content": "Conversation compacted",
            "isMeta": False,
            "level": "info",
            "compactMetadata": {"trigger": "manual", "preTokens": entry.tokens_before or 0},
        }
        boundary = self._with_envelope(boundary, writer, entry, 0)
        boundary["parentUuid"] = None
        if previous is not None:
            boundary["logicalParentUuid"] = previous
        writer.state["uuid"] = boundary["uuid"]
        summary = _record("user", entry.summary)
        summary |= {"isCompactSummary": True, "isVisibleInTranscriptOnly": True}
        return [boundary, self._with_envelope(summary, writer, entry, 1)]

    def _with_envelope(
        self, record: Wire, writer: RecordWriter, item: Message | KnownEntry, index: int
    ) -> Wire:
        state, options = writer.state, writer.options
        # Derived from the session of metis, so that a second handoff refers to the same records.
        uuid = new_uuid(item.session_id, item.id, str(index))
        if not writer.foreign_id:
            writer.foreign_id = state.get("sessionId") or new_uuid(item.session_id)
        envelope: Wire = {
            "parentUuid": state.get("uuid"),
            "isSidechain": False,
            "userType": "external",
            "cwd": options.cwd or state.get("cwd", ""),
            "sessionId": writer.foreign_id,
            "version": state.get("version", VERSION),
            "gitBranch": state.get("gitBranch", ""),
            **record,
            "uuid": uuid,
            "timestamp": js_time(item.created_at),
        }
        state["uuid"] = uuid
        return envelope


def encoded_blocks(message: Message, writer: RecordWriter) -> list[Any]:
    """Return the blocks of a message as Claude Code stores them."""
    originals = original_blocks(message, original_form_of(message, PROTOCOL), decode_block)
    parts: list[Any] = []
    for index, block in enumerate(message.content):
        part = originals.get(str(index))
        if part is None:
            part = _encode(block, writer)
        parts.append(part)
    return parts


def _encode(block: ContentBlock, writer: RecordWriter) -> Any:
    if isinstance(block, ThinkingBlock) and block.signature is None:
        return {"type": "thinking", "thinking": block.text}
    return _read(_write(encode_block(block, writer.wire_id)))


def _record(kind: str, content: Any) -> Wire:
    return {"type": kind, "message": {"role": kind, "content": content}}


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _with_plain_content(part: Any) -> Any:
    """Return a result whose only text is a string, as Claude Code writes it."""
    content = maybe_list(maybe_object(part).get("content"))
    if not content:
        return {**part, "content": ""}
    is_text = len(content) == 1 and set(maybe_object(content[0])) == {"type", "text"}
    return {**part, "content": content[0]["text"]} if is_text else part


def new_uuid(*parts: str) -> str:
    """Return a uuid that follows from texts, so that a session is always written the same way."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return str(UUID(bytes=digest[:16], version=4))


def js_time(moment: datetime) -> str:
    """Return a time as JavaScript writes it."""
    return (
        moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
    )
