"""Sessions of gemini-cli: JSON lines since 2026, one JSON document before.

A response holds parts of the Gemini protocol, so the codec of that protocol reads and writes them;
older versions store a text, and calls with their results beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Outcome, OutcomeStatus
from metis.interchange.claude_code_records import js_time, new_uuid
from metis.interchange.gemini_cli_records import (
    CurrentMessages,
    content_of,
    is_message,
    is_one_document,
    is_prompt,
    is_saved_chat,
    parent_session,
    read_usage,
    record_units,
    time_of,
    token_counts,
)
from metis.interchange.session_draft import ForeignSession, SessionDraft, foreign_data, priced
from metis.interchange.session_format import (
    RecordFormat,
    RecordWriter,
    joined_document,
    write_json,
)
from metis.interchange.source import ForeignRecord, Source, parse_record
from metis.projection.loss import Change
from metis.store.entries import CompactionEntry, KnownEntry, MessageEntry, RewindEntry
from metis.wire.gemini.parts import PartDecoder, PartEncoder
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

PROVIDER = "gemini"
# The first record of a chat that is a list of contents and nothing else.
_BARE_CHAT: Wire = {"": "list"}
_NOTES = frozenset({"info", "error", "warning"})
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


class GeminiCli(RecordFormat):
    """`tmp/<project>/chats/session-*.jsonl` of gemini-cli, and the `.json` files before them."""

    name = "gemini-cli"
    system = "gemini-cli"

    def fits(self, source: Source) -> bool:
        """Return whether it begins with the metadata of a session, or is a saved chat."""
        sample = source.sample_document()
        chat: Any = maybe_object(sample).get("history", sample)
        if isinstance(chat, list) and is_saved_chat(chat):
            return True
        first = next(iter(source.sample_records(1)), None)
        if first is None or "messages" in first:
            first = maybe_object(source.sample_document())
        has_marks = "projectHash" in first and "sessionId" in first
        document = b'"projectHash"' in source.sample()[:2000] and b'"messages"' in source.sample()
        return has_marks or document

    def with_foreign_id(self, record: Wire, foreign_id: str) -> Wire:
        """Return the metadata with another id."""
        changes = maybe_object(record.get("$set"))
        if "sessionId" in changes:  # gemini-cli repeats the id whenever it resumes a session
            return {**record, "$set": {**changes, "sessionId": foreign_id}}
        return {**record, "sessionId": foreign_id} if "sessionId" in record else record

    def note_record(self, record: Wire, writer: RecordWriter) -> None:
        """Note the id of the session."""
        if "sessionId" in record and not writer.foreign_id:
            writer.foreign_id = maybe_text(record.get("sessionId")) or ""

    def record_key(self, record: ForeignRecord) -> str:
        """Return the id of a message."""
        return maybe_text(record.fields.get("id")) or super().record_key(record)

    def records(self, source: Source) -> Iterator[ForeignRecord]:
        """Yield the lines of a file; those of a document are its messages."""
        value = parse_record(0, source.read()).value if is_one_document(source) else None
        document: Wire = _BARE_CHAT | {"history": value} if isinstance(value, list) else {}
        document = document or maybe_object(value)
        name = "messages" if "messages" in document else "history"
        if name not in document:
            yield from source.records()
            return
        head: Wire = {name: [], **{k: v for k, v in document.items() if k != name}}
        yield ForeignRecord(0, head, write_json(head))
        for number, value in enumerate(maybe_list(document.get(name)), 1):
            yield ForeignRecord(number, value, write_json(value))

    def join(self, records: Iterable[bytes]) -> bytes:
        """Return the file: one record per line, or the document."""
        lines = list(records)
        document = joined_document(lines, "messages", "history")
        if document is None:
            return super().join(lines)
        is_bare = _BARE_CHAT.items() <= document.items()
        return write_json(document["history"] if is_bare else document)

    # Reading

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the session of a file."""
        draft: SessionDraft | None = None
        current = CurrentMessages()
        for unit in record_units(self.records(source)):
            record = unit[-1]
            fields = record.fields
            draft = draft or self._start(source, fields)
            draft.time(time_of(fields))
            kind = maybe_text(fields.get("type"))
            messages = maybe_object(fields.get("$set")).get("messages")
            target = maybe_text(fields.get("$rewindTo"))
            if target is not None:
                # gemini-cli removes the target as well, and all messages if there is no target.
                end = current.index_of(target)
                self._replace(end or 0, (), unit, current, draft)
            elif isinstance(messages, list):
                items = [ForeignRecord(record.at, item, b"") for item in maybe_list(messages)]
                end = current.equal_count(items)
                self._replace(end, items[end:], unit, current, draft)
            elif is_message(fields):
                self._read_message(unit, current, draft)
            elif kind in _NOTES or {"sessionId", "$set", "history"} & fields.keys():
                for part in unit:
                    draft.add_record(part)
                if kind in _NOTES:
                    current.add(record, ())
            else:
                for part in unit:
                    draft.add_unknown_record(part)
        yield (draft or SessionDraft(self, source.identity)).session()

    def _start(self, source: Source, fields: Wire) -> SessionDraft:
        foreign_id = maybe_text(fields.get("sessionId")) or source.identity
        draft = SessionDraft(self, foreign_id or source.content_digest())
        draft.time(time_of(fields))
        if parent := parent_session(source.path, fields):
            draft.set_parent(parent)
        return draft

    def _read_message(
        self, unit: Sequence[ForeignRecord], current: CurrentMessages, draft: SessionDraft
    ) -> None:
        record = unit[-1]
        index = current.index_of(maybe_text(record.fields.get("id")))
        if index is None:
            messages = self._messages(record, draft)
            if draft.add_unit(messages, unit, self.store_unit):
                current.add(record, messages)
        elif current.is_last_message(index):
            # The response grows while its calls run; records of other kinds come between.
            self._replace(index, (record,), unit, current, draft)
        else:
            for part in unit:
                draft.add_record(
                    part, reason="a change of a message that others follow; not applied"
                )

    def _replace(
        self,
        end: int,
        items: Sequence[ForeignRecord],
        unit: Sequence[ForeignRecord],
        current: CurrentMessages,
        draft: SessionDraft,
    ) -> None:
        """Go back to the first messages, `end` of them, and add others after those."""
        rewind = RewindEntry(
            id=draft.next_id(),
            session_id=draft.session_id,
            created_at=draft.time(None),
            to_id=current.last_message(end),
        )
        added = [
            (item, self._messages(item, draft) if is_message(item.fields) else []) for item in items
        ]
        entries = [message for _, messages in added for message in messages]
        if draft.add_unit([rewind, *entries], unit, self.store_unit):
            current.cut(end)
            for item, messages in added:
                current.add(item, messages)

    def _messages(self, record: ForeignRecord, draft: SessionDraft) -> list[Message]:
        is_user = is_prompt(record.fields)
        return self._user(record, draft) if is_user else self._response(record, draft)

    def _user(self, record: ForeignRecord, draft: SessionDraft) -> list[Message]:
        content = content_of(record.fields)
        blocks = _decoded(content, _DraftCalls(draft, record.at), is_model=False)
        foreign: Wire = {"text": True} if isinstance(content, str) else {}
        messages: list[Message] = []
        others: list[ContentBlock] = []
        for block in blocks:
            if isinstance(block, ToolResultBlock):
                if others:
                    messages.append(draft.message(Role.USER, others, foreign=foreign))
                    others = []
                messages.append(_result(block, record.at, draft))
            else:
                others.append(block)
        if others or not messages:
            messages.append(draft.message(Role.USER, others, foreign=foreign))
        return messages

    def _response(self, record: ForeignRecord, draft: SessionDraft) -> list[Message]:
        fields = record.fields
        content = content_of(fields)
        calls = _DraftCalls(draft, record.at)
        thoughts = [
            "\n".join(text for text in (thought.get("subject"), thought.get("description")) if text)
            for thought in map(maybe_object, maybe_list(fields.get("thoughts")))
        ]
        blocks: list[ContentBlock] = [ThinkingBlock(text, issuer=PROVIDER) for text in thoughts]
        blocks += [b for b in _decoded(content, calls, is_model=True) if b != TextBlock("")]
        results: list[Message] = []
        answers: list[tuple[str, Wire]] = []
        for call in map(maybe_object, maybe_list(fields.get("toolCalls"))):
            name = maybe_text(call.get("name")) or "tool"
            foreign_id = maybe_text(call.get("id"))
            if foreign_id is None or foreign_id not in calls.opened:
                tool_use_id = draft.open_call(foreign_id, name, record.at)
                blocks.append(ToolUseBlock(tool_use_id, name, maybe_object(call.get("args"))))
            answers.append((name, call))
        name = maybe_text(fields.get("model"))
        model = f"{PROVIDER}:{name}" if name else None
        moment = draft.time(None)
        foreign: Wire = {"text": isinstance(content, str), "thoughts": len(thoughts)}
        message = draft.message(
            Role.ASSISTANT,
            blocks,
            foreign=foreign,
            model=model,
            provider=PROVIDER if model else None,
            # gemini-cli writes the record of a response several times; its usage counts once.
            usage=draft.usage_once(
                maybe_text(fields.get("id")),
                priced(read_usage(maybe_object(fields.get("tokens"))), model, moment),
            ),
        )
        for name, call in answers:
            result = _legacy_result(name, call, record.at, draft)
            if result is not None:
                results.append(result)
        return [message, *results]

    # Writing

    def encode_unit(self, entries: Sequence[KnownEntry], writer: RecordWriter) -> list[Wire]:
        """Return the record of a unit as often as the unit has records."""
        if isinstance(entries[0], RewindEntry):
            # A record that changes the list of messages is written as it was read.
            return [{} for _ in writer.shape(entries)]
        messages = [entry for entry in entries if isinstance(entry, MessageEntry)]
        if not messages:
            return []
        first = messages[0]
        data = foreign_data(first, self.system)
        is_model = first.message.role is Role.ASSISTANT
        blocks = first.message.content[int(data.get("thoughts") or 0) :]
        if not is_model:
            blocks = tuple(block for entry in messages for block in entry.message.content)
        parts = _encoded(blocks, messages, writer)
        content: Any = parts
        if data.get("text"):
            content = "".join(maybe_text(maybe_object(part).get("text")) or "" for part in parts)
        record: Wire = {"type": "gemini" if is_model else "user", "content": content}
        return [record for _ in writer.shape(entries)]

    def first_records(self, writer: RecordWriter) -> list[Wire]:
        """Return the metadata of a session."""
        options = writer.options
        moment = js_time(options.now)
        writer.foreign_id = options.foreign_id or writer.foreign_id or new_uuid(moment)
        project = new_uuid(options.cwd).replace("-", "")
        times = {"startTime": moment, "lastUpdated": moment}
        return [{"sessionId": writer.foreign_id, "projectHash": project, **times, "kind": "main"}]

    def new_records(self, entry: KnownEntry, writer: RecordWriter) -> list[Wire]:
        """Return the record of an entry; Gemini requires one record for parallel results."""
        head: Wire = {"id": new_uuid(entry.session_id, entry.id)}
        head["timestamp"] = js_time(entry.created_at)
        if isinstance(entry, CompactionEntry):
            reason = "the summary is written as a message; what it replaces is sent as well"
            writer.add_loss(entry, "compaction", reason, change=Change.ALTERED)
            return [{**head, "type": "user", "content": [{"text": entry.summary}]}]
        if not isinstance(entry, MessageEntry):
            return []
        message = entry.message
        if message.role is Role.SYSTEM:
            writer.add_loss(entry, "system", "gemini-cli uses its own system prompt")
            return []
        blocks = tuple(_writable(entry, writer))
        parts = _encoded(blocks, [entry], writer)
        if not parts:
            writer.add_loss(entry, "message", "gemini-cli can represent none of its blocks")
            return []
        if message.role is Role.DEVELOPER:
            reason = "written as a user message"
            writer.add_loss(entry, "developer", reason, change=Change.ALTERED)
        if message.role is Role.TOOL and writer.extend_last("functionResponse", parts):
            return []
        is_model = message.role is Role.ASSISTANT
        record: Wire = {**head, "type": "gemini" if is_model else "user", "content": parts}
        if is_model:
            name = (message.metadata.model or "").partition(":")[2]
            record |= {
                "thoughts": [],
                "tokens": token_counts(message.metadata.usage),
                "model": name,
            }
        return [record]


class _DraftCalls:
    """The ids of calls for the part decoder, from a draft."""

    def __init__(self, draft: SessionDraft, at: int) -> None:
        self._draft = draft
        self._at = at
        self.opened: set[str] = set()

    def id_of_call(self, name: str, wire_id: str | None) -> str:
        if wire_id:
            self.opened.add(wire_id)
        return self._draft.open_call(wire_id or None, name, self._at)

    def id_of_result(self, name: str, wire_id: str | None) -> str:
        return self._draft.match_result(wire_id or None, name) or ""


def _decoded(content: Any, calls: _DraftCalls, *, is_model: bool) -> list[ContentBlock]:
    if isinstance(content, str):
        return [TextBlock(content)]
    parts: list[Any] = _as_list(content)
    plain: list[Any] = [{"text": part} if isinstance(part, str) else part for part in parts]
    blocks: list[ContentBlock] = []
    PartDecoder(PROVIDER, calls, is_model=is_model).decode(plain, blocks)
    return blocks


def _encoded(
    blocks: Sequence[ContentBlock], entries: Sequence[MessageEntry], writer: RecordWriter
) -> list[Any]:
    names: dict[str, str] = writer.state.setdefault("tools", {})
    for entry in entries:
        outcome = entry.message.metadata.outcome
        call = entry.message.metadata.parent_tool_use_id
        if call is not None and outcome is not None and outcome.tool_name:
            names[call] = outcome.tool_name
    names |= {block.id: block.name for block in blocks if isinstance(block, ToolUseBlock)}
    parts = PartEncoder(writer.wire_id, names).encode(tuple(blocks))
    return [_read(_write(part)) for part in parts]


def _writable(entry: MessageEntry, writer: RecordWriter) -> Iterator[ContentBlock]:
    for index, block in enumerate(entry.message.content):
        path = f"$.content[{index}]"
        is_thinking = isinstance(block, ThinkingBlock | RedactedThinkingBlock)
        if is_thinking and (block.issuer != PROVIDER or getattr(block, "signature", None) is None):
            reason = f"thinking of {block.issuer or 'another model'} cannot be sent to Gemini"
            writer.add_loss(entry, block.type, reason, path=path)
        elif isinstance(block, OpaqueBlock) and block.issuer != PROVIDER:
            writer.add_loss(entry, block.type, "gemini-cli has no part for it", path=path)
        elif block != TextBlock(""):
            yield block


def _result(block: ToolResultBlock, at: int, draft: SessionDraft) -> Message:
    if not block.tool_use_id:
        return draft.orphan_result(block.content, at, "$.content")
    status = OutcomeStatus.ERROR if block.is_error else OutcomeStatus.SUCCESS
    name = draft.tool_name(block.tool_use_id)
    return draft.message(
        Role.TOOL,
        (block,),
        parent_tool_use_id=block.tool_use_id,
        outcome=Outcome(status=status, tool_name=name),
    )


def _legacy_result(name: str, call: Wire, at: int, draft: SessionDraft) -> Message | None:
    """Return the result of a call that is stored beside it; None if there is none."""
    result = call.get("result")
    parts: list[Any] = _as_list(result)
    answers: list[Any] = [part for part in parts if "functionResponse" in maybe_object(part)]
    foreign_id = maybe_text(call.get("id"))
    content: tuple[ContentBlock, ...]
    if answers:
        calls = _DraftCalls(draft, at)
        blocks: list[ContentBlock] = []
        PartDecoder(PROVIDER, calls, is_model=False).decode(answers[:1], blocks)
        first = blocks[0]
        if isinstance(first, ToolResultBlock) and first.tool_use_id:
            is_error = first.is_error or call.get("status") == "error"
            return _result(replace(first, is_error=is_error), at, draft)
    text = maybe_text(call.get("resultDisplay")) or maybe_text(result)
    if text is None:
        return None
    content = (TextBlock(text),)
    tool_use_id = draft.match_result(foreign_id, name)
    if tool_use_id is None:
        return None
    return _result(ToolResultBlock(tool_use_id, content, call.get("status") == "error"), at, draft)


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, dict) else maybe_list(value)
