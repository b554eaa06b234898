"""Claude Code sessions: a JSON lines file per session, and one per sub-agent.

Claude Code writes one record per content block, so the records that share a `message.id` are one
message here, with the usage of the last of them. Records form a tree by `parentUuid`.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Outcome, OutcomeStatus
from metis.interchange.claude_code_records import ClaudeCodeRecords
from metis.interchange.conversion import parse_time
from metis.interchange.session_draft import ForeignSession, SessionDraft, priced
from metis.interchange.source import ForeignRecord, Source, parse_record, read_small_file
from metis.store.entries import CompactionEntry, ErrorEntry, KnownEntry
from metis.wire.anthropic.blocks import PROTOCOL, decode_block, decode_non_result, is_exact
from metis.wire.anthropic.response import decode_stop_reason, decode_usage
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.original_form import form_metadata

META_TYPES = frozenset(
    [
        "summary",
        "system",
        "attachment",
        "file-history-snapshot",
        "queue-operation",
        "progress",
        "ai-title",
        "custom-title",
        "agent-name",
        "agent-color",
        "permission-mode",
        "mode",
        "last-prompt",
        "pr-link",
        "worktree-state",
        "tag",
        "marble-origami-commit",
        "content-replacement",
        "relocated",
        "task-summary",
        "bridge-session",
        "speculation-accept",
        "attribution-snapshot",
        "agent-setting",
        "session-kind",
    ]
)
"""The records that are not messages; all are written back as they were."""

_MAX_FACTS_BYTES = 64 * 1024
_NOT_A_MODEL = frozenset({"<synthetic>", ""})
_CONTEXT = RequestContext(session_id="")
_write = msgspec.json.Encoder().encode


class ClaudeCode(ClaudeCodeRecords):
    """`projects/<directory>/<session>.jsonl` and the files of its sub-agents."""

    def fits(self, source: Source) -> bool:
        """Return whether the first lines are records of Claude Code."""
        records = source.sample_records()
        if not records or "loglines" in records[0]:
            document = maybe_object(source.sample_document())
            return _is_record(maybe_object(next(iter(maybe_list(document.get("loglines"))), None)))
        # Qwen Code writes records of the same shape with parts of the Gemini protocol.
        if any("parts" in maybe_object(record.get("message")) for record in records):
            return False
        return any(_is_record(record) for record in records)

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the session of a file."""
        yield _Reader(self, source).read()


def _is_record(record: Wire) -> bool:
    message = record.get("message")
    if record.get("type") in ("user", "assistant") and isinstance(message, dict):
        return "content" in message
    if record.get("type") == "summary":
        return "leafUuid" in record
    # Droid writes records of these types as well, with times that are numbers.
    if maybe_text(record.get("type")) not in META_TYPES or isinstance(record.get("timestamp"), int):
        return False
    return bool({"sessionId", "messageId", "uuid"} & record.keys())


class _Unit:
    """Records that become entries together, while more of them may follow."""

    def __init__(self, kind: str, record: ForeignRecord) -> None:
        self.kind = kind
        self.records = [record]
        self.is_open = kind == "assistant"

    @property
    def response_id(self) -> str | None:
        return maybe_text(maybe_object(self.records[0].fields.get("message")).get("id"))


class _Reader:
    """Reads one file."""

    def __init__(self, file_format: ClaudeCode, source: Source) -> None:
        self._file_format = file_format
        self._source = source
        self._draft = SessionDraft(file_format, "")
        self._units: deque[_Unit] = deque()
        self._open: dict[str, _Unit] = {}
        self._checksums: set[int] = set()
        # The message that a record belongs to or follows, by the uuid of the record.
        self._message_ids: dict[str, str] = {}
        # The last result of the calls of a response, and the response of each result.
        self._last_results: dict[str, str] = {}
        self._response_of_result: dict[str, str] = {}
        self._previous: str | None = None
        self._main_tip: str | None = None
        self._is_agent = False

    def read(self) -> ForeignSession:
        records = self._file_format.records(self._source)
        first: list[ForeignRecord] = []
        for record in records:
            first.append(record)
            if {"type", "role"} & record.fields.keys():
                break
        self._start(first[-1].fields if first else {})
        for record in chain(first, records):
            self._add(record)
            self._emit()
        for unit in self._open.values():
            unit.is_open = False
        self._emit()
        session = self._draft.session()
        session.tip = self._main_tip
        return session

    def _start(self, fields: Wire) -> None:
        stem = "" if self._source.path is None else self._source.path.name.partition(".")[0]
        session_id = stem if _is_uuid(stem) else maybe_text(fields.get("sessionId"))
        if stem.startswith("agent-"):
            session_id = _session_of_agent(self._source.path) or session_id
        agent = maybe_text(fields.get("agentId"))
        self._is_agent = fields.get("isSidechain") is True
        foreign_id = session_id or self._source.identity or self._source.content_digest()
        if self._is_agent and (agent or stem.startswith("agent-")):
            foreign_id = f"{session_id}/{agent or stem.removeprefix('agent-')}"
        self._draft = SessionDraft(self._file_format, foreign_id)
        if self._is_agent and foreign_id != session_id:
            self._draft.time(_time_of(fields))
            self._set_parent(session_id or "")

    def _set_parent(self, session_id: str) -> None:
        """Note the session, or the other sub-agent, that started this one."""
        path = self._source.path
        facts: Wire = {}
        if path is not None:
            data = read_small_file(path.with_suffix(".meta.json"), _MAX_FACTS_BYTES)
            facts = maybe_object(parse_record(0, data).value)
        parent_agent = maybe_text(facts.get("parentAgentId"))
        parent = f"{session_id}/{parent_agent}" if parent_agent else session_id
        self._draft.set_parent(parent, maybe_text(facts.get("toolUseId")))

    def _add(self, record: ForeignRecord) -> None:
        fields = record.fields
        kind = maybe_text(fields.get("type")) or maybe_text(fields.get("role"))
        message = maybe_object(fields.get("message"))
        self._note(fields)
        if kind in ("user", "assistant") and self._is_repeated(fields):
            self._units.append(_Unit("duplicate", record))
            return
        thread = str(fields.get("agentId") or "") if fields.get("isSidechain") else "main"
        open_unit = self._open.get(thread)
        if kind == "assistant" and isinstance(message.get("content"), list | str):
            response_id = maybe_text(message.get("id"))
            # A record without a parent is a copy of the response, not its next block.
            is_next = fields.get("parentUuid") is not None or "uuid" not in fields
            if (
                open_unit is not None
                and is_next
                and response_id
                and open_unit.response_id == response_id
            ):
                open_unit.records.append(record)
                return
            self._close(thread)
            unit = _Unit("assistant", record)
            self._open[thread] = unit
            self._units.append(unit)
        elif kind == "user" and isinstance(message.get("content"), list | str):
            if not _has_result(message.get("content")):
                self._close(thread)
            self._units.append(_Unit("user", record))
        else:
            self._units.append(_Unit("meta" if kind in META_TYPES else "unknown", record))

    def _is_repeated(self, fields: Wire) -> bool:
        """Return whether a record is a copy; a uuid is no proof, some programs repeat one."""
        uuid = maybe_text(fields.get("uuid"))
        if uuid is None:
            return False
        checksum = hash((uuid, _write(fields.get("message"))))
        is_repeated = checksum in self._checksums
        self._checksums.add(checksum)
        return is_repeated

    def _close(self, thread: str) -> None:
        unit = self._open.pop(thread, None)
        if unit is not None:
            unit.is_open = False

    def _note(self, fields: Wire) -> None:
        draft = self._draft
        draft.cwd = draft.cwd or maybe_text(fields.get("cwd")) or ""
        draft.version = maybe_text(fields.get("version")) or draft.version
        if fields.get("type") in ("custom-title", "ai-title", "summary"):
            title = fields.get("customTitle") or fields.get("aiTitle") or fields.get("summary")
            draft.title = maybe_text(title) or draft.title

    def _emit(self) -> None:
        while self._units and not self._units[0].is_open:
            unit = self._units.popleft()
            first = unit.records[0]
            self._draft.time(_time_of(first.fields))
            match unit.kind:
                case "assistant":
                    self._emit_unit(unit, [self._assistant(unit)])
                case "user":
                    self._emit_unit(unit, self._user(first))
                case "duplicate":
                    self._draft.add_record(
                        first, reason="a second record with the same uuid; stored unchanged"
                    )
                case "meta":
                    self._emit_meta(first)
                case _:
                    self._draft.add_unknown_record(first)
                    self._follow(first)

    def _emit_meta(self, record: ForeignRecord) -> None:
        self._draft.add_record(record)
        self._follow(record)

    def _follow(self, record: ForeignRecord) -> None:
        """Let records after one that is not a message follow the message before it."""
        uuid = maybe_text(record.fields.get("uuid"))
        parent = record.fields.get("parentUuid") or record.fields.get("logicalParentUuid")
        before = self._message_ids.get(str(parent))
        if uuid is not None and before is not None:
            self._message_ids[uuid] = before

    def _emit_unit(self, unit: _Unit, entries: Sequence[KnownEntry | Message]) -> None:
        if not self._draft.add_unit(entries, unit.records, self._file_format.store_unit):
            for record in unit.records:
                self._follow(record)
            return
        messages = [entry for entry in entries if isinstance(entry, Message)]
        last = messages[-1].id if messages else self._previous
        if last is None:
            return
        for record in unit.records:
            uuid = maybe_text(record.fields.get("uuid"))
            if uuid is not None:
                self._message_ids[uuid] = last
        self._previous = last
        if self._is_agent or unit.records[0].fields.get("isSidechain") is not True:
            self._main_tip = last

    def _parents(self, record: ForeignRecord, *, is_result: bool) -> tuple[str, ...]:
        """Return the parents of a message; empty if it follows the message before it."""
        fields = record.fields
        parent = self._message_ids.get(str(fields.get("parentUuid")))
        if parent is None:
            # A root in the middle of the file: a sub-agent, or the start after a summary.
            parent = self._main_tip
        else:
            # Results of parallel calls are siblings in the file and a sequence here.
            response = self._response_of_result.get(parent, parent if is_result else "")
            parent = self._last_results.get(response or parent, parent)
        return () if parent is None or parent == self._previous else (parent,)

    def _assistant(self, unit: _Unit) -> KnownEntry | Message:
        first, last = unit.records[0], unit.records[-1]
        wire = maybe_object(last.fields.get("message"))
        if first.fields.get("isApiErrorMessage") is True:
            return self._error(first)
        content: list[ContentBlock] = []
        inexact: Wire = {}
        shape: list[int] = []
        for record in unit.records:
            parts = _parts(maybe_object(record.fields.get("message")).get("content"))
            shape.append(len(parts))
            for part in parts:
                block = decode_non_result(part)
                if not is_exact(block, part):
                    inexact[str(len(content))] = part
                if isinstance(block, ToolUseBlock):
                    tool_use_id = self._draft.open_call(block.id, block.name, record.at)
                    block = msgspec.structs.replace(block, id=tool_use_id)
                content.append(block)
        name = maybe_text(wire.get("model")) or ""
        model = None if name in _NOT_A_MODEL else f"{PROTOCOL}:{name}"
        moment = self._draft.time(_time_of(first.fields))
        usage = decode_usage(wire.get("usage"), _CONTEXT)
        usage = self._draft.usage_once(unit.response_id, None if model is None else usage)
        ids = {
            block.id: self._draft.wire_ids[block.id]
            for block in content
            if isinstance(block, ToolUseBlock)
        }
        original_form: Wire = {"ids": ids, "blocks": inexact}
        if inexact:
            original_form["digest"] = content_digest(Role.ASSISTANT, content or [TextBlock("")])
        return self._draft.message(
            Role.ASSISTANT,
            content,
            created_at=moment,
            parents=self._parents(first, is_result=False),
            foreign={"blocks": shape},
            model=model,
            provider=None if model is None else PROTOCOL,
            **form_metadata(PROTOCOL, original_form),
            usage=priced(usage, model, moment),
            stop_reason=decode_stop_reason(maybe_text(wire.get("stop_reason"))),
            response_id=unit.response_id,
        )

    def _error(self, record: ForeignRecord) -> ErrorEntry:
        parts = _parts(maybe_object(record.fields.get("message")).get("content"))
        texts = [maybe_text(maybe_object(part).get("text")) or "" for part in parts]
        return ErrorEntry(
            id=self._draft.next_id(),
            session_id=self._draft.session_id,
            created_at=self._draft.time(_time_of(record.fields)),
            text="\n".join(texts),
            kind=maybe_text(record.fields.get("error")),
            provider=PROTOCOL,
        )

    def _user(self, record: ForeignRecord) -> list[KnownEntry | Message]:
        fields = record.fields
        content = maybe_object(fields.get("message")).get("content")
        parts = _parts(content)
        if fields.get("isCompactSummary") is True:
            return [self._summary(record, parts)]
        entries: list[KnownEntry | Message] = []
        texts: list[ContentBlock] = []
        ui = fields.get("toolUseResult", msgspec.UNSET)
        foreign: Wire = {"parts": True} if isinstance(content, list) else {}
        for index, part in enumerate(parts):
            block = decode_block(part)
            if isinstance(block, ToolResultBlock):
                if texts:
                    entries.append(self._user_message(record, texts, foreign))
                    texts, foreign = [], {}
                entries.append(self._result(record, index, part, block, ui))
                ui = msgspec.UNSET
            else:
                texts.append(block)
        if texts or not entries:
            entries.append(self._user_message(record, texts, foreign))
        return entries

    def _user_message(
        self, record: ForeignRecord, blocks: Sequence[ContentBlock], foreign: Wire
    ) -> Message:
        message = self._draft.message(
            Role.USER,
            blocks,
            created_at=_time_of(record.fields),
            parents=self._parents(record, is_result=False),
            foreign=foreign,
        )
        self._previous = message.id
        return message

    def _result(
        self, record: ForeignRecord, index: int, part: Wire, block: ToolResultBlock, ui: Any
    ) -> Message:
        moment = _time_of(record.fields)
        tool_use_id = self._draft.match_result(block.tool_use_id)
        parents = self._parents(record, is_result=True)
        if tool_use_id is None:
            message = self._draft.orphan_result(
                block.content,
                record.at,
                f"$.message.content[{index}]",
                created_at=moment,
                parents=parents,
            )
            self._previous = message.id
            return message
        status = OutcomeStatus.ERROR if block.is_error else OutcomeStatus.SUCCESS
        name = self._draft.tool_name(tool_use_id)
        response = self._message_ids.get(str(record.fields.get("parentUuid")), "")
        message = self._draft.message(
            Role.TOOL,
            (msgspec.structs.replace(block, tool_use_id=tool_use_id),),
            created_at=moment,
            parents=parents,
            foreign={"list": True} if isinstance(part.get("content"), list) else {},
            parent_tool_use_id=tool_use_id,
            outcome=Outcome(status=status, tool_name=name, ui=ui),
        )
        response = self._response_of_result.get(response, response)
        self._response_of_result[message.id] = response
        self._last_results[response] = message.id
        self._previous = message.id
        return message

    def _summary(self, record: ForeignRecord, parts: Sequence[Any]) -> CompactionEntry:
        texts = [maybe_text(maybe_object(part).get("text")) or "" for part in parts]
        return CompactionEntry(
            id=self._draft.next_id(),
            session_id=self._draft.session_id,
            created_at=self._draft.time(_time_of(record.fields)),
            summary="\n".join(texts),
            head_id=self._main_tip,
        )


def _session_of_agent(path: Path | None) -> str | None:
    """Return the session that a file is a sub-agent of: `<session>/subagents/…/agent-<id>.jsonl`.

    The files name it as well, but some versions write the name of the sub-agent there.
    """
    parts = () if path is None else path.parts
    return parts[parts.index("subagents") - 1] if "subagents" in parts[1:] else None


def _has_result(content: Any) -> bool:
    return any(maybe_object(part).get("type") == "tool_result" for part in maybe_list(content))


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {"type": "text", "text": part} if isinstance(part, str) else part
        for part in cast("list[Any]", content)
    ]


def _time_of(fields: Wire) -> datetime | None:
    text = maybe_text(fields.get("timestamp"))
    return None if text is None else parse_time(text)


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
