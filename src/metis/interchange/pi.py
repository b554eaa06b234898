"""Sessions of pi: JSON lines, a header and entries; since version 3 a tree by `parentId`."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, Outcome, OutcomeStatus, StopReason, Usage
from metis.interchange.claude_code_records import js_time, new_uuid
from metis.interchange.conversion import parse_time
from metis.interchange.session_draft import ForeignSession, SessionDraft, foreign_data, priced
from metis.interchange.session_format import RecordFormat, RecordWriter
from metis.interchange.source import ForeignRecord, Source
from metis.projection.loss import Change
from metis.store.entries import CompactionEntry, KnownEntry, MessageEntry
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

_META_TYPES = frozenset(
    {"session", "model_change", "thinking_level_change", "branch_summary", "custom", "label"}
    | {"session_info", "custom_message"}
)
_ROLES = frozenset({"user", "assistant", "toolResult"})
_STOP_REASONS = {
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "toolUse": StopReason.TOOL_USE,
    "error": StopReason.ERROR,
    "aborted": StopReason.CANCELLED,
}
_STOP_NAMES = {reason: name for name, reason in _STOP_REASONS.items()}
_STATUS = {"error": MessageStatus.ERROR, "aborted": MessageStatus.CANCELLED}
# pi requires the name of a protocol in every response.
_APIS = {"anthropic": "anthropic-messages", "gemini": "google-generative-ai"}
_OPENAI_API = "openai-responses"


class Pi(RecordFormat):
    """`agent/sessions/<directory>/<time>_<session>.jsonl` of pi."""

    name = "pi"
    system = "pi"

    def fits(self, source: Source) -> bool:
        """Return whether the first line is the header of a session of pi."""
        first = maybe_object(next(iter(source.sample_records(1)), None))
        is_header = first.get("type") == "session" and isinstance(first.get("id"), str)
        return is_header and "timestamp" in first and "session" not in first

    def record_key(self, record: ForeignRecord) -> str:
        """Return the id of an entry; those of version 1 have none."""
        return maybe_text(record.fields.get("id")) or super().record_key(record)

    def with_foreign_id(self, record: Wire, foreign_id: str) -> Wire:
        """Return the header with another id."""
        return {**record, "id": foreign_id} if record.get("type") == "session" else record

    def note_record(self, record: Wire, writer: RecordWriter) -> None:
        """Note the entry that the next one follows."""
        if record.get("type") == "session":
            writer.foreign_id = writer.foreign_id or maybe_text(record.get("id")) or ""
        elif maybe_text(record.get("id")) is not None:
            writer.state["id"] = record["id"]

    # Reading

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the session of a file."""
        draft: SessionDraft | None = None
        message_ids: dict[str, str] = {}
        previous: str | None = None
        for record in source.records():
            fields = record.fields
            if draft is None:
                foreign_id = maybe_text(fields.get("id")) or source.identity
                draft = SessionDraft(self, foreign_id or source.content_digest())
                draft.cwd = maybe_text(fields.get("cwd")) or ""
            draft.time(_time_of(fields))
            parent = message_ids.get(str(fields.get("parentId")))
            entry = self._entry(record, draft, message_ids)
            last = parent
            if entry is None:
                kind = maybe_text(fields.get("type"))
                if kind in _META_TYPES or (kind == "message" and record.value is not None):
                    draft.add_record(record)
                else:
                    draft.add_unknown_record(record)
            else:
                if isinstance(entry, Message):
                    if parent is not None and parent != previous:
                        entry = _with_parent(entry, parent)
                    last = entry.id
                if draft.add_unit([entry], [record], self.store_unit) and isinstance(
                    entry, Message
                ):
                    previous = entry.id
            if isinstance(fields.get("id"), str) and last is not None:
                message_ids[fields["id"]] = last
        yield (draft or SessionDraft(self, source.identity)).session()

    def _entry(
        self, record: ForeignRecord, draft: SessionDraft, message_ids: dict[str, str]
    ) -> Message | KnownEntry | None:
        fields = record.fields
        if fields.get("type") == "compaction" and isinstance(fields.get("summary"), str):
            return CompactionEntry(
                id=draft.next_id(),
                session_id=draft.session_id,
                created_at=draft.time(None),
                summary=fields["summary"],
                first_kept_id=message_ids.get(str(fields.get("firstKeptEntryId"))),
                tokens_before=maybe_count(fields.get("tokensBefore")),
            )
        wire = maybe_object(fields.get("message"))
        if fields.get("type") != "message" or maybe_text(wire.get("role")) not in _ROLES:
            return None
        content = wire.get("content")
        foreign: Wire = {"text": True} if isinstance(content, str) else {}
        blocks = [_text(content)] if isinstance(content, str) else _blocks(wire, record.at, draft)
        if wire["role"] == "toolResult":
            return self._result(record, wire, blocks, draft)
        if wire["role"] == "user":
            return draft.message(Role.USER, blocks, foreign=foreign)
        provider, name = maybe_text(wire.get("provider")), maybe_text(wire.get("model"))
        model = f"{provider}:{name}" if provider and name else None
        stop = maybe_text(wire.get("stopReason")) or ""
        moment = draft.time(None)
        response_id = maybe_text(wire.get("responseId"))
        usage = draft.usage_once(response_id, _usage(maybe_object(wire.get("usage"))))
        return draft.message(
            Role.ASSISTANT,
            blocks,
            foreign=foreign,
            model=model,
            provider=provider if model else None,
            usage=priced(usage, model, moment),
            stop_reason=_STOP_REASONS.get(stop),
            status=_STATUS.get(stop, MessageStatus.COMPLETE),
            response_id=response_id,
        )

    def _result(
        self,
        record: ForeignRecord,
        wire: Wire,
        blocks: Sequence[ContentBlock],
        draft: SessionDraft,
    ) -> Message:
        name = maybe_text(wire.get("toolName")) or ""
        tool_use_id = draft.match_result(maybe_text(wire.get("toolCallId")), name)
        if tool_use_id is None:
            return draft.orphan_result(blocks, record.at, "$.message")
        is_error = wire.get("isError") is True
        status = OutcomeStatus.ERROR if is_error else OutcomeStatus.SUCCESS
        return draft.message(
            Role.TOOL,
            (ToolResultBlock(tool_use_id, tuple(blocks), is_error),),
            parent_tool_use_id=tool_use_id,
            outcome=Outcome(status=status, tool_name=name),
        )

    # Writing

    def encode_unit(self, entries: Sequence[KnownEntry], writer: RecordWriter) -> list[Wire]:
        """Return the record of an entry without its place in the tree."""
        entry = entries[0]
        if isinstance(entry, CompactionEntry):
            return [{"type": "compaction", "summary": entry.summary}]
        if not isinstance(entry, MessageEntry):
            return []
        is_text = foreign_data(entry, self.system).get("text") is True
        return [{"type": "message", "message": _message(entry, writer, is_text=is_text)}]

    def first_records(self, writer: RecordWriter) -> list[Wire]:
        """Return the header."""
        options = writer.options
        moment = js_time(options.now)
        writer.foreign_id = options.foreign_id or writer.foreign_id or new_uuid(moment)
        header = {"type": "session", "version": 3, "id": writer.foreign_id}
        return [{**header, "timestamp": moment, "cwd": options.cwd}]

    def new_records(self, entry: KnownEntry, writer: RecordWriter) -> list[Wire]:
        """Return the record of an entry of another program or of metis."""
        head: Wire = {"id": new_uuid(entry.session_id, entry.id)[:8]}
        head |= {"parentId": writer.state.get("id"), "timestamp": js_time(entry.created_at)}
        if isinstance(entry, CompactionEntry):
            fields = {"summary": entry.summary, "firstKeptEntryId": head["id"]}
            tokens_before = entry.tokens_before or 0
            return [{"type": "compaction", **head, **fields, "tokensBefore": tokens_before}]
        if not isinstance(entry, MessageEntry):
            return []
        message = entry.message
        if message.role is Role.SYSTEM:
            writer.add_loss(entry, "system", "pi uses its own system prompt")
            return []
        if message.role is Role.DEVELOPER:
            reason = "written as a user message"
            writer.add_loss(entry, "developer", reason, change=Change.ALTERED)
        wire = _message(entry, writer, report=True)
        if not wire["content"] and message.role is not Role.TOOL:
            writer.add_loss(entry, "message", "pi can represent none of its blocks")
            return []
        wire["timestamp"] = int(message.created_at.timestamp() * 1000)
        if message.role is Role.ASSISTANT:
            provider, _, name = (message.metadata.model or "unknown:unknown").partition(":")
            wire |= {"api": _APIS.get(provider, _OPENAI_API), "provider": provider, "model": name}
            wire["usage"] = _wire_usage(message.metadata.usage)
            stop = message.metadata.stop_reason
            wire["stopReason"] = _STOP_NAMES.get(stop, "stop") if stop is not None else "stop"
        return [{"type": "message", **head, "message": wire}]


def _message(
    entry: MessageEntry, writer: RecordWriter, *, is_text: bool = False, report: bool = False
) -> Wire:
    message = entry.message
    first = message.content[0] if message.content else None
    if isinstance(first, ToolResultBlock) and message.role is Role.TOOL:
        outcome = message.metadata.outcome
        return {
            "role": "toolResult",
            "toolCallId": writer.wire_id(first.tool_use_id),
            "toolName": "" if outcome is None else outcome.tool_name or "",
            "content": _parts(entry, first.content, writer, report=report),
            "isError": first.is_error,
        }
    role = "assistant" if message.role is Role.ASSISTANT else "user"
    if is_text and isinstance(first, TextBlock):
        return {"role": role, "content": first.text}
    return {"role": role, "content": _parts(entry, message.content, writer, report=report)}


def _parts(
    entry: MessageEntry, blocks: Sequence[ContentBlock], writer: RecordWriter, *, report: bool
) -> list[Wire]:
    parts: list[Wire] = []
    for index, block in enumerate(blocks):
        path = f"$.content[{index}]"
        match block:
            case TextBlock():
                if block.text:
                    parts.append({"type": "text", "text": block.text})
            case ThinkingBlock() if not report or block.signature is None or block.text:
                part = {"type": "thinking", "thinking": block.text}
                sealed = {} if block.signature is None else {"thinkingSignature": block.signature}
                if report and block.signature is not None and block.issuer != "anthropic":
                    sealed = {}
                    reason = f"the signature of {block.issuer} is left out"
                    writer.add_loss(entry, "thinking", reason, path=path, change=Change.ALTERED)
                parts.append({**part, **sealed})
            case RedactedThinkingBlock() if not report:
                parts.append({"type": "thinking", "thinking": "", "thinkingSignature": block.data})
            case ToolUseBlock():
                call: Wire = {"type": "toolCall", "id": writer.wire_id(block.id)}
                parts.append({**call, "name": block.name, "arguments": block.input})
            case ImageBlock() if block.source.kind == "base64":
                image = {"data": block.source.data, "mimeType": block.media_type}
                parts.append({"type": "image", **image})
            case _:
                if report:
                    writer.add_loss(entry, block.type, "pi has no part for it", path=path)
    return parts


def _blocks(wire: Wire, at: int, draft: SessionDraft) -> list[ContentBlock]:
    blocks: list[ContentBlock] = []
    for part in maybe_list(wire.get("content")):
        match maybe_object(part):
            case {"type": "text", "text": str(text)}:
                blocks.append(_text(text))
            case {"type": "thinking", "thinking": str(text), **rest}:
                blocks.append(_thinking(text, maybe_text(rest.get("thinkingSignature")), wire))
            case {"type": "toolCall", "name": str(name), "arguments": dict(), **rest}:
                call_id = draft.open_call(maybe_text(rest.get("id")), name, at)
                arguments = maybe_object(maybe_object(part)["arguments"])
                blocks.append(ToolUseBlock(call_id, name, arguments))
            case {"type": "image", "data": str(data), "mimeType": str(media_type)}:
                blocks.append(ImageBlock(ImageSource("base64", data), media_type))
            case other:
                reason = "a part of an unknown type; stored to write it back"
                draft.add_loss(str(other.get("type")), reason, at=at)
    return blocks


def _thinking(text: str, signature: str | None, wire: Wire) -> ThinkingBlock:
    """Return thinking; for OpenAI pi stores the whole item as the signature."""
    issuer = maybe_text(wire.get("provider"))
    if signature is not None and signature.startswith("{"):
        try:
            item = maybe_object(json.loads(signature))
        except ValueError:
            item = {}
        sealed = maybe_text(item.get("encrypted_content"))
        if sealed is not None:
            return ThinkingBlock(text, sealed, maybe_text(item.get("id")), issuer=issuer)
    return ThinkingBlock(text, signature, issuer=issuer)


def _text(text: str) -> TextBlock:
    return TextBlock(text)


def _with_parent(message: Message, parent: str) -> Message:
    return replace(message, metadata=replace(message.metadata, parents=(parent,)))


def _usage(wire: Wire) -> Usage | None:
    if not wire:
        return None
    return new_usage(
        latency_ms=0,
        input_tokens=maybe_count(wire.get("input")) or 0,
        output_tokens=maybe_count(wire.get("output")) or 0,
        cached_input_tokens=maybe_count(wire.get("cacheRead")) or 0,
        cache_creation_input_tokens=maybe_count(wire.get("cacheWrite")) or 0,
    )


def _wire_usage(usage: Usage | None) -> dict[str, Any]:
    counts = {
        "input": 0 if usage is None else usage.input_tokens,
        "output": 0 if usage is None else usage.output_tokens,
        "cacheRead": 0 if usage is None else usage.cached_input_tokens,
        "cacheWrite": 0 if usage is None else usage.cache_creation_input_tokens,
    }
    cost: dict[str, Any] = dict.fromkeys((*counts, "total"), 0)
    cost["total"] = 0 if usage is None else float(usage.cost_usd)
    return {**counts, "totalTokens": sum(counts.values()), "cost": cost}


def _time_of(fields: Wire) -> datetime | None:
    text = maybe_text(fields.get("timestamp"))
    return None if text is None else parse_time(text)
