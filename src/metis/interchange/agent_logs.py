"""Logs of coding agents that are read only: Qwen Code and Kimi Code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.message import Role
from metis.interchange.foreign_content import (
    Call,
    Part,
    Result,
    media_block,
    objects,
    opaque,
    provider_model,
    role_of,
    text_parts,
    time_of,
    to_text,
    usage_of,
)
from metis.interchange.message_list import (
    ForeignConversation,
    ForeignMessage,
    ForeignSummary,
    MessageListFormat,
)
from metis.interchange.source import ForeignRecord, Source
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

_QWEN_USAGE = {
    "input": "promptTokenCount",
    "output": "outputTokenCount",
    "cached": "cachedContentTokenCount",
    "reasoning": "thoughtsTokenCount",
}
# Gemini counts thinking tokens apart from the other output tokens.
_GEMINI_OUTPUTS = ("candidatesTokenCount", "thoughtsTokenCount")
_MAX_RECORDS_PER_LINE = 1000


class QwenCode(MessageListFormat):
    """`chats/<session>.jsonl` of Qwen Code: a tree of records with contents of Gemini."""

    name = "qwen-code"
    system = "qwen-code"

    def fits(self, source: Source) -> bool:
        """Return whether the records form a tree and contain parts of the Gemini protocol."""
        records = source.sample_records(20)
        if not records and source.sample().startswith(b'{"uuid":'):
            records = [
                record.fields for record in _split_records(ForeignRecord(1, None, source.sample()))
            ]
        return any(
            {"uuid", "parentUuid", "sessionId"} <= record.keys()
            and isinstance(maybe_object(record.get("message")).get("parts"), list)
            for record in records
        )

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversation of a file."""
        reader = _QwenReader()
        for line in source.records():
            for record in _split_records(line):
                reader.add(record)
        stem = "" if source.path is None else source.path.stem
        yield ForeignConversation(
            foreign_id=reader.session_id or stem or source.content_digest(),
            title=reader.title,
            cwd=reader.cwd,
            version=reader.version,
            messages=reader.messages,
            tip=reader.tip,
            unreported_types=frozenset({"system"}),
        )


def _split_records(record: ForeignRecord) -> Iterator[ForeignRecord]:
    """Yield the records of a line; a crash of Qwen Code can leave several in one."""
    text = record.raw.decode("utf-8", "replace")
    if record.value is not None or not text.startswith("{"):
        yield record
        return
    decoder = json.JSONDecoder()
    start = number = 0
    while start < len(text) and number < _MAX_RECORDS_PER_LINE:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        yield ForeignRecord(record.at, value, text[start:end].encode())
        start, number = end, number + 1
    if start < len(text):
        remaining = text[start:].encode()
        yield record._replace(raw=remaining) if start else record


class _QwenReader:
    """Reads the records of one session."""

    def __init__(self) -> None:
        self.session_id = self.title = self.cwd = self.version = ""
        self.messages: list[ForeignMessage | ForeignRecord] = []
        self.tip: str | None = None
        self._by_uuid: dict[str, ForeignMessage] = {}
        # The message that a record is or follows, by the uuid of the record.
        self._message_keys: dict[str, str] = {}

    def add(self, record: ForeignRecord) -> None:
        fields = record.fields
        self.session_id = self.session_id or maybe_text(fields.get("sessionId")) or ""
        self.cwd = maybe_text(fields.get("cwd")) or self.cwd
        self.version = maybe_text(fields.get("version")) or self.version
        payload = maybe_object(fields.get("systemPayload"))
        self.title = maybe_text(payload.get("customTitle")) or self.title
        uuid = maybe_text(fields.get("uuid")) or str(record.at)
        parent = self._message_keys.get(str(fields.get("parentUuid")))
        content = cast("object", maybe_object(fields.get("message")).get("parts"))
        kind = fields.get("type")
        if kind not in ("user", "assistant", "tool_result") or not isinstance(content, list):
            self.messages.append(record)
            if parent is not None:
                self._message_keys[uuid] = parent
            if parent is not None and fields.get("subtype") == "rewind":
                self.tip = parent
            return
        parts = gemini_parts(cast("object", content), "qwen-code")
        model = provider_model(fields.get("model"), "qwen")
        counts = maybe_object(fields.get("usageMetadata"))
        written = (maybe_count(counts.get(name)) or 0 for name in _GEMINI_OUTPUTS)
        usage = usage_of({**counts, "outputTokenCount": sum(written)}, _QWEN_USAGE)
        earlier = self._by_uuid.get(uuid)
        if earlier is not None:
            # A response is written in pieces under one uuid.
            earlier.parts = [*earlier.parts, *parts]
            earlier.model, earlier.usage = model or earlier.model, usage or earlier.usage
            return
        message = ForeignMessage(
            role=Role.ASSISTANT if kind == "assistant" else Role.USER,
            parts=parts or [opaque(fields["message"], "qwen-code")],
            at=record.at,
            key=uuid,
            parent=parent,
            time=time_of(fields.get("timestamp")),
            model=model if kind == "assistant" else None,
            usage=usage if kind == "assistant" else None,
        )
        self._by_uuid[uuid] = message
        self._message_keys[uuid] = self.tip = uuid
        self.messages.append(message)


def gemini_parts(parts: object, issuer: str) -> list[Part]:
    """Return the parts of a content of the Gemini protocol."""
    blocks: list[Part] = []
    for part in objects(parts):
        text, call = maybe_text(part.get("text")), maybe_object(part.get("functionCall"))
        answer, data = (
            maybe_object(part.get("functionResponse")),
            maybe_object(part.get("inlineData")),
        )
        if text is not None and part.get("thought") is True:
            blocks.append(ThinkingBlock(text, issuer=issuer))
        elif text is not None:
            blocks.append(TextBlock(text))
        elif call:
            name = maybe_text(call.get("name")) or "tool"
            blocks.append(Call(maybe_text(call.get("id")), name, call.get("args") or {}))
        elif answer:
            response = maybe_object(answer.get("response"))
            output = response.get("error", response.get("output", answer.get("response")))
            content = [TextBlock(to_text(output))]
            name = maybe_text(answer.get("name")) or ""
            blocks.append(Result(maybe_text(answer.get("id")), name, content, "error" in response))
        else:
            media = {"source": {"type": "base64", "media_type": data.get("mimeType"), **data}}
            blocks.append((media_block(media) if data else None) or opaque(part, issuer))
    return blocks


_KIMI_NOTES = frozenset(
    [
        *("config.update", "context.apply_compaction", "context.append_loop_event"),
        *("full_compaction.begin", "full_compaction.complete", "llm.request"),
        *("llm.tools_snapshot", "metadata", "permission.set_mode", "plan_mode.enter"),
        *("plan_mode.exit", "profile.bind", "turn.cancel", "turn.ended"),
        *("permission.record_approval_result", "plugin.session_start", "runtime.set_binding"),
        *("token_counting.measured", "token_counting.turn_recorded", "tools.set_active_tools"),
        *("turn.prompt", "usage.record"),
    ]
)


class Kimi(MessageListFormat):
    """`sessions/<folder>/<session>/agents/<agent>/wire.jsonl` of Kimi Code."""

    name = "kimi"
    system = "kimi"

    def fits(self, source: Source) -> bool:
        """Return whether the first lines are the metadata of a log, or changes of a context."""
        records = source.sample_records(10)
        return any(
            (record.get("type") == "metadata" and "protocol_version" in record)
            or str(record.get("type")).startswith("context.append_")
            for record in records
        )

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversation of a log."""
        reader = _KimiReader()
        for record in source.records():
            reader.add(record)
        reader.end_step({}, None)
        session, agent = _kimi_ids(source.path)
        is_agent = bool(session) and agent != "main"
        yield ForeignConversation(
            foreign_id=(f"{session}/{agent}" if is_agent else session)
            or source.identity
            or source.content_digest(),
            cwd=reader.cwd,
            messages=reader.messages,
            parent=(session, None) if is_agent else None,
            unreported_types=_KIMI_NOTES,
        )


def _kimi_ids(path: Path | None) -> tuple[str, str]:
    """Return the session and the agent of a log, from the directories that it is in."""
    if path is None or path.name != "wire.jsonl" or path.parent.parent.name != "agents":
        return "", ""
    return path.parent.parent.parent.name, path.parent.name


class _KimiReader:
    """Reads the records of one agent; the events of a step are one response."""

    def __init__(self) -> None:
        self.cwd = ""
        self.messages: list[ForeignMessage | ForeignSummary | ForeignRecord] = []
        self._model: str | None = None
        self._step = ""
        self._parts: list[Part] = []
        self._results: list[tuple[int, Result]] = []
        self._at = 0
        self._time: object = None

    def add(self, record: ForeignRecord) -> None:
        fields, event = record.fields, maybe_object(record.fields.get("event"))
        message = maybe_object(fields.get("message"))
        match fields.get("type"), event.get("type"):
            case "context.append_message", _ if role_of(message.get("role")):
                self.end_step({}, None)
                self._put_message(record, message)
                return
            case "context.append_loop_event", "step.begin":
                self.end_step({}, None)
                self._step, self._at = maybe_text(event.get("uuid")) or "", record.at
                self._time = fields.get("time")
            case "context.append_loop_event", "content.part" if self._step:
                self._parts += _kimi_parts([event.get("part")])
            case "context.append_loop_event", "tool.call" if self._step:
                name = maybe_text(event.get("name")) or "tool"
                call_id = maybe_text(event.get("toolCallId"))
                self._parts.append(Call(call_id, name, event.get("args") or {}))
            case "context.append_loop_event", "tool.result":
                self._put_result(record, event)
            case "context.append_loop_event", "step.end":
                self.end_step(event, fields.get("time"))
            case "context.apply_compaction", _ if maybe_text(fields.get("summary")):
                self.end_step({}, None)
                self.messages.append(
                    ForeignSummary(
                        text=maybe_text(fields.get("contextSummary")) or str(fields["summary"]),
                        at=record.at,
                        key=f"line-{record.at}",
                        time=time_of(fields.get("time")),
                        tokens_before=maybe_count(fields.get("tokensBefore")),
                    )
                )
            case "config.update", _:
                self.cwd = maybe_text(fields.get("cwd")) or self.cwd
                self._model = provider_model(fields.get("modelAlias"), "kimi") or self._model
            case "llm.request", _:
                self._model = provider_model(fields.get("model"), "kimi") or self._model
            case _:
                pass
        self.messages.append(record)

    def _put_message(self, record: ForeignRecord, message: Wire) -> None:
        parts = _kimi_parts(message.get("content"))
        for call in objects(message.get("toolCalls")):
            function = maybe_object(call.get("function")) or call
            name = maybe_text(function.get("name")) or "tool"
            parts.append(Call(maybe_text(call.get("id")), name, function.get("arguments", {})))
        self.messages.append(
            ForeignMessage(
                role=role_of(message.get("role")) or Role.USER,
                parts=parts or [TextBlock("")],
                at=record.at,
                key=f"line-{record.at}",
                time=time_of(record.fields.get("time")),
            )
        )

    def _put_result(self, record: ForeignRecord, event: Wire) -> None:
        result = maybe_object(event.get("result"))
        failed = result.get("isError") is True or event.get("isError") is True
        output = result.get("output", event.get("result"))
        value = maybe_list(output) if isinstance(output, list) else to_text(output)
        content = text_parts(cast("object", value), "kimi")
        call_id = maybe_text(event.get("toolCallId")) or maybe_text(event.get("parentUuid"))
        self._results.append((record.at, Result(call_id, "", content, failed)))

    def end_step(self, event: Wire, time: object) -> None:
        """Add the response of a step and the results of its calls."""
        counts = maybe_object(event.get("usage"))
        if self._parts:
            usage = new_usage(
                latency_ms=0,
                input_tokens=maybe_count(counts.get("inputOther")) or 0,
                output_tokens=maybe_count(counts.get("output")) or 0,
                cached_input_tokens=maybe_count(counts.get("inputCacheRead")) or 0,
                cache_creation_input_tokens=maybe_count(counts.get("inputCacheCreation")) or 0,
            )
            self.messages.append(
                ForeignMessage(
                    role=Role.ASSISTANT,
                    parts=self._parts,
                    at=self._at,
                    key=self._step,
                    time=time_of(time if time is not None else self._time),
                    model=self._model,
                    usage=usage if counts else None,
                    response_id=maybe_text(event.get("messageId")),
                )
            )
        for at, result in self._results:
            self.messages.append(
                ForeignMessage(role=Role.USER, parts=[result], at=at, key=f"line-{at}")
            )
        self._step, self._parts, self._results = "", [], []


def _kimi_parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [TextBlock(content)]
    parts: list[Part] = []
    for part in maybe_list(content):
        fields = maybe_object(part)
        thought = maybe_text(fields.get("think"))
        if fields.get("type") == "think" and thought is not None:
            seal = maybe_text(fields.get("encrypted"))
            parts.append(ThinkingBlock(thought, signature=seal, issuer="kimi"))
        else:
            parts += text_parts([part], "kimi")
    return parts
