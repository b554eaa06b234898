"""Sessions of gemini-cli: JSON lines since 2026, one JSON document before.

A response holds parts of the Gemini protocol, so the codec of that protocol reads and writes them;
older versions store a text, and calls with their results beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
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
from metis.canonical.metadata import Outcome, OutcomeStatus, Usage
from metis.interchange.claude_code_records import js_time, new_uuid
from metis.interchange.conversion import parse_time
from metis.interchange.session_draft import ForeignSession, SessionDraft, foreign_data, priced
from metis.interchange.session_format import RecordFormat, RecordWriter, write_json
from metis.interchange.source import ForeignRecord, Source, parse_record
from metis.projection.loss import Change
from metis.store.entries import CompactionEntry, KnownEntry, MessageEntry
from metis.wire.gemini.parts import PartDecoder, PartEncoder
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

PROVIDER = "gemini"
_NOTES = frozenset({"info", "error", "warning"})
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


class GeminiCli(RecordFormat):
    """`tmp/<project>/chats/session-*.jsonl` of gemini-cli, and the `.json` files before them."""

    name = "gemini-cli"
    system = "gemini-cli"

    def fits(self, source: Source) -> bool:
        """Return whether it begins with the metadata of a session of gemini-cli."""
        first = next(iter(source.sample_records(1)), None)
        if first is None or "messages" in first:
            first = maybe_object(source.sample_document())
        has_marks = "projectHash" in first and "sessionId" in first
        document = b'"projectHash"' in source.sample()[:2000] and b'"messages"' in source.sample()
        return has_marks or document

    def with_foreign_id(self, record: Wire, foreign_id: str) -> Wire:
        """Return the metadata with another id."""
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
        document = maybe_object(parse_record(0, source.read()).value) if _is_one(source) else {}
        if "messages" not in document:
            yield from source.records()
            return
        head: Wire = {"messages": [], **{k: v for k, v in document.items() if k != "messages"}}
        yield ForeignRecord(0, head, write_json(head))
        for number, value in enumerate(maybe_list(document.get("messages")), 1):
            yield ForeignRecord(number, value, write_json(value))

    def join(self, records: Iterable[bytes]) -> bytes:
        """Return the file: one record per line, or the document."""
        lines = list(records)
        if lines and lines[0].startswith(b'{"messages":'):
            head = _read(lines[0])
            return write_json({**head, "messages": [_read(line) for line in lines[1:]]})
        return super().join(lines)

    # Reading

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the session of a file."""
        draft: SessionDraft | None = None
        for unit in _units(self.records(source)):
            record = unit[-1]
            fields = record.fields
            if draft is None:
                foreign_id = maybe_text(fields.get("sessionId")) or source.identity
                draft = SessionDraft(self, foreign_id or source.content_digest())
            draft.time(_time_of(fields))
            kind = maybe_text(fields.get("type"))
            if kind == "user" and "content" in fields:
                draft.add_unit(self._user(record, draft), unit, self.store_unit)
            elif kind == "gemini":
                draft.add_unit(self._response(record, draft), unit, self.store_unit)
            elif kind in _NOTES or "sessionId" in fields or "$set" in fields:
                for one in unit:
                    draft.keep(one)
                if "messages" in maybe_object(fields.get("$set")):
                    reason = "an update of all messages; kept, but not applied"
                    draft.add_loss("$set", reason, at=record.at)
            else:
                for one in unit:
                    draft.keep_unknown(one)
        yield (draft or SessionDraft(self, source.identity)).session()

    def _user(self, record: ForeignRecord, draft: SessionDraft) -> list[Message]:
        content = record.fields.get("content")
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
        content = fields.get("content")
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
            usage=priced(_usage(maybe_object(fields.get("tokens"))), model, moment),
        )
        for name, call in answers:
            result = _legacy_result(name, call, record.at, draft)
            if result is not None:
                results.append(result)
        return [message, *results]

    # Writing

    def encode_unit(self, entries: Sequence[KnownEntry], writer: RecordWriter) -> list[Wire]:
        """Return the record of a unit as often as the unit has records."""
        messages = [entry for entry in entries if isinstance(entry, MessageEntry)]
        if not messages:
            return []
        first = messages[0]
        data = foreign_data(first, self.system)
        is_model = first.message.role is Role.ASSISTANT
        blocks = first.message.content[int(data.get("thoughts") or 0) :]
        if not is_model:
            blocks = tuple(block for one in messages for block in one.message.content)
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
        """Return the record of an entry; results of parallel calls share one, as Gemini asks."""
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
            writer.add_loss(entry, "system", "gemini-cli has a system prompt of its own")
            return []
        blocks = tuple(_writable(entry, writer))
        parts = _encoded(blocks, [entry], writer)
        if not parts:
            writer.add_loss(entry, "message", "nothing in it has a place in gemini-cli")
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
            record |= {"thoughts": [], "tokens": _tokens(message.metadata.usage), "model": name}
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


def _units(records: Iterable[ForeignRecord]) -> Iterator[list[ForeignRecord]]:
    """Yield records; a message that is written again, with more in it, is one with the first."""
    unit: list[ForeignRecord] = []
    for record in records:
        name = record.fields.get("id")
        if unit and name is not None and unit[-1].fields.get("id") == name:
            unit.append(record)
            continue
        if unit:
            yield unit
        unit = [record]
    if unit:
        yield unit


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


def _usage(tokens: Wire) -> Usage | None:
    if not tokens:
        return None
    total = maybe_count(tokens.get("input")) or 0
    cached = min(maybe_count(tokens.get("cached")) or 0, total)
    thoughts = maybe_count(tokens.get("thoughts")) or 0
    return new_usage(
        latency_ms=0,
        input_tokens=total - cached + (maybe_count(tokens.get("tool")) or 0),
        cached_input_tokens=cached,
        output_tokens=(maybe_count(tokens.get("output")) or 0) + thoughts,
        reasoning_output_tokens=thoughts,
    )


def _tokens(usage: Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    thoughts = usage.reasoning_output_tokens
    return {
        "input": usage.prompt_tokens,
        "output": usage.output_tokens - thoughts,
        "cached": usage.cached_input_tokens,
        "thoughts": thoughts,
        "tool": 0,
        "total": usage.prompt_tokens + usage.output_tokens,
    }


def _is_one(source: Source) -> bool:
    """Return whether the file is one document, and not a line per record."""
    sample = source.sample().lstrip()
    first = sample.partition(b"\n")[0]
    return b'"messages"' in sample and (
        parse_record(0, first).value is None or b'"messages"' in first
    )


def _time_of(fields: Wire) -> datetime | None:
    text = maybe_text(fields.get("timestamp")) or maybe_text(fields.get("startTime"))
    return None if text is None else parse_time(text)
