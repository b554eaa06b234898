"""The records of a Codex rollout, from our entries."""

import re
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

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
from metis.canonical.metadata import Usage
from metis.interchange.claude_code_records import js_time, new_uuid
from metis.interchange.session_draft import foreign_data
from metis.interchange.session_format import RecordFormat, RecordWriter
from metis.interchange.source import ForeignRecord, Source
from metis.projection.loss import Change
from metis.store.entries import CompactionEntry, KnownEntry, MessageEntry, RewindEntry
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.openai_responses.blocks import encode_parts
from metis.wire.openai_responses.items import encode_items
from metis.wire.openai_responses.tool_calls import CallIndex
from metis.wire.original_form import original_form_of

PROTOCOL = "openai_responses"
# The newest version whose records these are; Codex reads older ones.
CLI_VERSION = "0.60.0"
_TOOL_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME, _MAX_CALL_ID = 64, 64
_read = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


class CodexRecords(RecordFormat, ABC):
    """Writes the records of Codex."""

    name = "codex"
    system = "codex"

    def records(self, source: Source) -> Iterator[ForeignRecord]:
        """Yield the lines of a rollout."""
        return source.records()

    def with_foreign_id(self, record: Wire, foreign_id: str) -> Wire:
        """Return the first record with another id; the others do not name the session."""
        payload = maybe_object(record.get("payload"))
        if record.get("type") != "session_meta" or not payload:
            return record
        ids = {key: foreign_id for key in ("id", "session_id") if key in payload}
        return {**record, "payload": {**payload, **ids}}

    def note_record(self, record: Wire, writer: RecordWriter) -> None:
        """Note the id of the session."""
        payload = maybe_object(record.get("payload"))
        if record.get("type") == "session_meta" and not writer.foreign_id:
            writer.foreign_id = maybe_text(payload.get("id")) or ""

    def encode_unit(self, entries: Sequence[KnownEntry], writer: RecordWriter) -> list[Wire]:
        """Return the records of a unit without times."""
        entry = entries[0]
        if isinstance(entry, CompactionEntry):
            return [{"type": "compacted", "payload": {"message": entry.summary}}]
        if isinstance(entry, RewindEntry):
            return [{"type": "event_msg", "payload": {"type": "thread_rolled_back"}}]
        if not isinstance(entry, MessageEntry):
            return []
        event = foreign_data(entry, self.system).get("event")
        if event:
            text = "".join(b.text for b in entry.message.content if isinstance(b, TextBlock))
            prompt: Wire = {"type": "user_message", "message": text}
            payload = {"type": event} if isinstance(event, str) else prompt
            return [{"type": "event_msg", "payload": payload}]
        items = [_plain(item) for item in _items(entry.message, writer)]
        if foreign_data(entry, self.system).get("bare"):
            return items
        return [{"type": "response_item", "payload": item} for item in items]

    # New records

    def first_records(self, writer: RecordWriter) -> list[Wire]:
        """Return the record that names the session.

        It names no provider: Codex refuses to resume a session with another one than its own.
        """
        options = writer.options
        writer.foreign_id = (
            options.foreign_id
            or writer.foreign_id
            or new_uuid(options.cwd, options.now.isoformat())
        )
        moment = js_time(options.now)
        payload: Wire = {
            "id": writer.foreign_id,
            "timestamp": moment,
            "cwd": options.cwd,
            "originator": "codex_cli_rs",
            "cli_version": CLI_VERSION,
            "instructions": None,
            "source": "cli",
        }
        return [{"timestamp": moment, "type": "session_meta", "payload": payload}]

    def new_records(self, entry: KnownEntry, writer: RecordWriter) -> list[Wire]:
        """Return complete records for an entry of another program or of metis."""
        moment = js_time(entry.created_at)
        if isinstance(entry, CompactionEntry):
            return self._new_summary(entry, moment, writer)
        if not isinstance(entry, MessageEntry):
            return []
        message = entry.message
        if message.role is Role.SYSTEM:
            writer.add_loss(entry, "system", "Codex uses its own system prompt")
            return []
        if message.role is Role.TOOL:
            items = [self._new_result(entry, writer)]
        elif message.role is Role.ASSISTANT:
            items = list(self._new_items(entry, writer))
        else:
            items = list(self._new_input(entry, writer))
        records = [_record("response_item", moment, item) for item in items if item]
        if not records:
            writer.add_loss(entry, "message", "Codex can represent none of its blocks")
            return []
        return [*records, *_events(message, moment, writer)]

    def _new_input(self, entry: MessageEntry, writer: RecordWriter) -> Iterator[Wire]:
        message = entry.message
        parts: list[Any] = []
        for index, block in enumerate(message.content):
            part = _input_part(block)
            if part is None:
                reason = "Codex has no part for it"
                writer.add_loss(entry, block.type, reason, path=f"$.content[{index}]")
            else:
                parts.append(part)
        if parts:
            role = "developer" if message.role is Role.DEVELOPER else "user"
            yield {"type": "message", "role": role, "content": parts}

    def _new_items(self, entry: MessageEntry, writer: RecordWriter) -> Iterator[Wire]:
        for index, block in enumerate(entry.message.content):
            path = f"$.content[{index}]"
            match block:
                case TextBlock() if block.text:
                    part = {"type": "output_text", "text": block.text}
                    if block.citations:
                        writer.add_loss(
                            entry, "text", "without its citations", path=path, change=Change.ALTERED
                        )
                    yield {"type": "message", "role": "assistant", "content": [part]}
                case TextBlock():
                    pass  # OpenAI refuses an empty text
                case ToolUseBlock():
                    yield self._new_call(entry, block, path, writer)
                case ThinkingBlock() | RedactedThinkingBlock():
                    item = _reasoning(entry.message, block)
                    if item is None:
                        issuer = block.issuer or "another model"
                        reason = f"thinking of {issuer}, which only its issuer can read"
                        writer.add_loss(entry, block.type, reason, path=path)
                    else:
                        yield item
                case OpaqueBlock() if block.issuer == "openai":
                    yield block.data
                case _:
                    writer.add_loss(entry, block.type, "Codex has no item for it", path=path)

    def _new_call(
        self, entry: MessageEntry, block: ToolUseBlock, path: str, writer: RecordWriter
    ) -> Wire:
        name = _TOOL_NAME.sub("_", block.name)[:_MAX_NAME]
        if name != block.name:
            reason = f"the name {block.name!r} is written as {name!r}, which OpenAI accepts"
            writer.add_loss(entry, "tool_use", reason, path=path, change=Change.ALTERED)
        arguments = _write(block.input).decode() if block.invalid is None else block.invalid.raw
        call_id = self._call_id(block.id, writer)
        return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}

    def _call_id(self, tool_use_id: str, writer: RecordWriter) -> str:
        # OpenAI refuses longer ids.
        return writer.wire_id(tool_use_id)[-_MAX_CALL_ID:]

    def _new_result(self, entry: MessageEntry, writer: RecordWriter) -> Wire:
        block = entry.message.content[0]
        if not isinstance(block, ToolResultBlock):
            return {}
        parts: list[Any] = []
        for index, inner in enumerate(block.content):
            part = _input_part(inner)
            if part is None:
                path = f"$.content[0].content[{index}]"
                writer.add_loss(entry, inner.type, "Codex has no part for it", path=path)
            else:
                parts.append(part)
        if block.is_error:
            reason = "Codex does not mark a result as failed"
            path = "$.content[0].is_error"
            writer.add_loss(entry, "tool_result", reason, path=path, change=Change.ALTERED)
        is_text = all(part["type"] == "input_text" for part in parts)
        output: Any = "".join(part["text"] for part in parts) if is_text else parts
        if is_text and len(parts) > 1:
            reason = f"{len(parts)} texts are written as one"
            writer.add_loss(
                entry, "tool_result", reason, path="$.content[0]", change=Change.ALTERED
            )
        call_id = self._call_id(block.tool_use_id, writer)
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    def _new_summary(self, entry: CompactionEntry, moment: str, writer: RecordWriter) -> list[Wire]:
        if entry.first_kept_id is not None:
            reason = "messages that stay beside a summary are before it, and not sent again"
            writer.add_loss(entry, "compaction", reason, change=Change.ALTERED)
        part = {"type": "input_text", "text": entry.summary}
        history = [{"type": "message", "role": "user", "content": [part]}]
        payload = {"message": entry.summary, "replacement_history": history}
        return [_record("compacted", moment, payload)]


def item_of(fields: Wire) -> Wire | None:
    """Return the model item of a record, with or without an envelope; None if it has none."""
    payload = fields.get("payload")
    if isinstance(payload, dict):
        return maybe_object(payload) if fields.get("type") == "response_item" else None
    kind = fields.get("type")
    is_message = kind in (None, "message") and isinstance(fields.get("role"), str)
    is_item = isinstance(kind, str) and (
        kind in ("reasoning", "function_call", "local_shell_call", "custom_tool_call")
        or kind.endswith(("_output", "_result", "tool_call", "web_search_call"))
    )
    has_text = "content" in fields or "message" in fields
    return fields if is_item or (is_message and has_text) else None


def normal_item(item: Wire) -> Wire:
    """Return an item of an early version in the form of the Responses protocol."""
    kind = item.get("type")
    if kind in ("tool_call", "tool_result", "function_result") or (
        kind == "function_call" and "call_id" not in item
    ):
        function = item.get("function")
        named = maybe_text(maybe_object(function).get("name")) or maybe_text(function)
        name = maybe_text(item.get("name")) or named or "tool"
        call_id = maybe_text(item.get("call_id")) or maybe_text(item.get("id")) or name
        if kind in ("tool_call", "function_call"):
            arguments = item.get("arguments", item.get("input", {}))
            text = arguments if isinstance(arguments, str) else _write(arguments).decode()
            return {"type": "function_call", "name": name, "arguments": text, "call_id": call_id}
        result = next((item[key] for key in ("result", "output", "content") if key in item), "")
        text = result if isinstance(result, str) else _write(result).decode()
        return {"type": "function_call_output", "call_id": call_id, "output": text}
    if isinstance(item.get("output"), dict):
        # Some versions wrote the text of an output and its exit code as an object.
        output = maybe_object(item["output"])
        text = maybe_text(output.get("output")) or maybe_text(output.get("content"))
        return {**item, "output": _write(output).decode() if text is None else text}
    if kind == "message" and item.get("role") == "assistant":
        # An empty part of an unknown type would make the whole item opaque.
        parts = [part for part in maybe_list(item.get("content")) if not _is_empty_part(part)]
        item = {**item, "content": parts} if isinstance(item.get("content"), list) else item
    if kind is None and "role" in item:
        content = item.get("content", item.get("message", ""))
        return {"type": "message", "role": item["role"], "content": content}
    return {key: value for key, value in item.items() if key not in ("timestamp", "created_at")}


def _is_empty_part(part: Any) -> bool:
    fields = maybe_object(part)
    named = {key for key, value in fields.items() if value is not None} - {"type", "detail"}
    return bool(fields) and not named


def _items(message: Message, writer: RecordWriter) -> Iterator[Any]:
    original_form = original_form_of(message, PROTOCOL)
    calls: CallIndex = writer.state.setdefault("calls", CallIndex())
    calls.add({"ids": writer.wire_ids})
    calls.add(original_form)
    if message.role is Role.ASSISTANT:
        yield from encode_items(message.content, original_form, calls)
    elif message.role is Role.TOOL and isinstance(message.content[0], ToolResultBlock):
        yield calls.encode_result(message.content[0], original_form)
    else:
        role = "developer" if message.role is Role.DEVELOPER else "user"
        originals: Mapping[str, Any] = maybe_object(original_form.get("blocks"))
        content: Any = encode_parts(message.content, originals)
        first = message.content[0]
        if maybe_object((message.metadata.external or {}).get("codex")).get("text") and isinstance(
            first, TextBlock
        ):
            content = first.text
        yield {"type": "message", "role": role, "content": content}


def _plain(item: Any) -> Wire:
    return maybe_object(_read(item if isinstance(item, Raw) else _write(item)))


def _record(kind: str, moment: str, payload: Wire) -> Wire:
    return {"timestamp": moment, "type": kind, "payload": payload}


def _input_part(block: ContentBlock) -> Wire | None:
    for part in encode_parts([block], {}):
        plain = _plain(part)
        return plain if plain.get("type") in ("input_text", "input_image") else None
    return None


def _reasoning(message: Message, block: ThinkingBlock | RedactedThinkingBlock) -> Wire | None:
    """Return the item of sealed thinking of OpenAI; None for that of others."""
    sealed = block.signature if isinstance(block, ThinkingBlock) else block.data
    if block.issuer != "openai" or not sealed:
        return None
    original_form = original_form_of(message, PROTOCOL)
    for item in encode_items(
        [block], {"thoughts": original_form.get("thoughts") or {}}, CallIndex()
    ):
        return _plain(item)
    return None


def _events(message: Message, moment: str, writer: RecordWriter) -> Iterator[Wire]:
    """Yield the events that show a message on the screen, and the usage of a response."""
    text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    if text and message.role in (Role.USER, Role.ASSISTANT):
        kind = "user_message" if message.role is Role.USER else "agent_message"
        event: Wire = {"type": kind, "message": text}
        if message.role is Role.USER:
            event |= {"images": [], "local_images": [], "text_elements": []}
        yield _record("event_msg", moment, event)
    usage = message.metadata.usage
    if usage is not None and message.role is Role.ASSISTANT:
        counts = _counts(usage)
        total: dict[str, int] = writer.state.setdefault("total", dict.fromkeys(counts, 0))
        for name, count in counts.items():
            total[name] += count
        info = {"total_token_usage": dict(total), "last_token_usage": counts}
        payload = {"type": "token_count", "info": info, "rate_limits": None}
        yield _record("event_msg", moment, payload)


def _counts(usage: Usage) -> dict[str, int]:
    cached = usage.cached_input_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "cached_input_tokens": cached,
        "output_tokens": usage.output_tokens,
        "reasoning_output_tokens": usage.reasoning_output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
