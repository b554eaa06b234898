"""Transcripts of coding agents that are read only: Cline and Roo, Cursor, Copilot CLI and aider."""

import re
from collections.abc import Iterator, Sequence

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.message import Role
from metis.interchange.foreign_content import (
    Call,
    Part,
    Result,
    anthropic_parts,
    list_digest,
    objects,
    opaque,
    provider_model,
    role_of,
    text_parts,
    time_of,
)
from metis.interchange.message_list import (
    ForeignConversation,
    ForeignMessage,
    ForeignSummary,
    MessageListFormat,
)
from metis.interchange.source import ForeignRecord, Source
from metis.wire.json_access import Wire, maybe_count, maybe_object, maybe_text
from metis.wire.response import new_usage

_COPILOT_MESSAGES = frozenset(
    ["system.message", "user.message", "assistant.message", "tool.execution_complete"]
)
_COPILOT_NOTES = frozenset(
    [
        *("abort", "assistant.reasoning", "assistant.turn_end", "assistant.turn_start"),
        *("assistant.usage", "hook.end", "hook.start", "session.auto_mode_resolved"),
        *("session.compaction_complete", "session.compaction_start", "session.error"),
        *("session.idle", "session.info", "session.mode_changed", "session.model_change"),
        *("session.resume", "session.shutdown", "session.start", "session.title_changed"),
        *("session.truncation", "session.usage_checkpoint", "session.warning", "skill.invoked"),
        *("subagent.completed", "subagent.failed", "subagent.selected", "subagent.started"),
        *("system.notification", "tool.execution_partial_result", "tool.execution_progress"),
        *("tool.execution_start", "tool.user_requested", "user.abort"),
    ]
)
"""Events that are not part of the conversation."""


class Cline(MessageListFormat):
    """`api_conversation_history.json` of Cline, Roo and Kilo: messages as Anthropic has them."""

    name = "cline"
    system = "cline"

    def fits(self, source: Source) -> bool:
        """Return whether the file is named like a task history, or its messages have a `ts`."""
        if source.path is not None and source.path.name == "api_conversation_history.json":
            return True
        messages = objects(source.sample_document())
        return bool(messages) and all(
            message.get("role") in ("user", "assistant")
            and isinstance(message.get("content"), list | str)
            and isinstance(message.get("ts"), int)
            for message in messages
        )

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversation of a task."""
        messages = objects(self.document(source))
        is_task = source.path is not None and source.path.name == "api_conversation_history.json"
        # The directory of a task has its id as its name.
        task = source.path.parent.name if is_task and source.path is not None else ""
        yield ForeignConversation(
            foreign_id=task or source.identity or list_digest(messages),
            messages=[_anthropic_message(message, at) for at, message in enumerate(messages, 1)],
            losses=[("usage", "the task's history has no token counts, so costs are unknown")],
        )


def _anthropic_message(message: Wire, at: int) -> ForeignMessage:
    return ForeignMessage(
        role=role_of(message.get("role"), Role.USER) or Role.USER,
        parts=anthropic_parts(message.get("content"), "anthropic"),
        at=at,
        key=str(at),
        time=time_of(message.get("ts")),
        model=provider_model(maybe_object(message.get("modelInfo")).get("modelId")),
    )


class Cursor(MessageListFormat):
    """Transcripts of Cursor's agent: no ids, no times, and often no results."""

    name = "cursor"
    system = "cursor"

    def fits(self, source: Source) -> bool:
        """Return whether the lines have a role beside a message."""
        records = [record for record in source.sample_records(5) if "role" in record]
        return bool(records) and all(
            isinstance(record.get("message"), dict) and "type" not in record for record in records
        )

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversation of a transcript."""
        messages: list[ForeignMessage | ForeignRecord] = []
        losses = [("transcript", "Cursor writes neither models, times nor tokens, and few results")]
        for record in source.records():
            fields = record.fields
            message = maybe_object(fields.get("message"))
            role = role_of(fields.get("role"))
            if role is None or not message:
                messages.append(record)
                continue
            messages.append(
                ForeignMessage(
                    role=role,
                    parts=anthropic_parts(message.get("content"), "cursor") or [TextBlock("")],
                    at=record.at,
                    key=str(record.at),
                    model=provider_model(fields.get("model"), "cursor"),
                )
            )
        name = "" if source.path is None else source.path.stem
        # `<session>/<session>.jsonl`, and `<session>/subagents/<id>.jsonl` for its sub-agents.
        is_agent = source.path is not None and source.path.parent.name == "subagents"
        parent = source.path.parent.parent.name if is_agent and source.path is not None else ""
        yield ForeignConversation(
            foreign_id=name or source.content_digest(),
            messages=messages,
            parent=(parent, None) if parent else None,
            losses=losses,
        )


class CopilotCli(MessageListFormat):
    """`events.jsonl` of a Copilot CLI session."""

    name = "copilot-cli"
    system = "copilot-cli"

    def fits(self, source: Source) -> bool:
        """Return whether the first lines are events with data."""
        records = source.sample_records(5)
        return any(
            str(record.get("type")).startswith(("session.start", "user.message", "assistant."))
            and isinstance(record.get("data"), dict)
            for record in records
        )

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversation of a session."""
        reader = _CopilotReader()
        for record in source.records():
            reader.add(record)
        yield ForeignConversation(
            foreign_id=reader.session_id or source.identity or source.content_digest(),
            cwd=reader.cwd,
            version=reader.version,
            messages=reader.messages,
            tip=reader.main_tip,
            unreported_types=_COPILOT_NOTES,
        )


class _CopilotReader:
    """Reads the events of one session."""

    def __init__(self) -> None:
        self.session_id = self.cwd = self.version = self.main_tip = ""
        self.messages: list[ForeignMessage | ForeignSummary | ForeignRecord] = []
        self._model: str | None = None
        self._reasoning: list[Part] = []
        # The last message of the conversation (None) and of each sub-agent, by the id of its call.
        self._last_keys: dict[str | None, str] = {}

    def add(self, record: ForeignRecord) -> None:
        fields, data = record.fields, maybe_object(record.fields.get("data"))
        match fields.get("type"):
            case "session.start":
                context = maybe_object(data.get("context"))
                self.session_id = maybe_text(data.get("sessionId")) or self.session_id
                self.cwd = maybe_text(context.get("cwd")) or self.cwd
                self.version = maybe_text(data.get("copilotVersion")) or self.version
                self._model = provider_model(data.get("selectedModel")) or self._model
            case "session.model_change":
                self._model = provider_model(data.get("newModel")) or self._model
            case "system.message":
                self._put(record, Role.SYSTEM, text_parts(data.get("content"), "copilot-cli"))
            case "user.message":
                parts: list[Part] = list(text_parts(data.get("content"), "copilot-cli"))
                files = objects(data.get("attachments"))
                parts += [opaque(file, "copilot-cli") for file in files]
                self._put(record, Role.USER, parts)
            case "assistant.message":
                self._put_response(record, data)
            case "tool.execution_complete":
                result = maybe_object(data.get("result"))
                content = text_parts(result.get("content") or data.get("error"), "copilot-cli")
                name, failed = maybe_text(data.get("toolName")) or "", data.get("success") is False
                part = Result(maybe_text(data.get("toolCallId")), name, content, failed)
                self._put(record, Role.USER, [part])
            case "session.compaction_complete" if maybe_text(data.get("summaryContent")):
                self.messages.append(
                    ForeignSummary(
                        text=str(data["summaryContent"]),
                        at=record.at,
                        key=f"{fields.get('id')}-{record.at}",
                        time=time_of(fields.get("timestamp")),
                        tokens_before=maybe_count(data.get("preCompactionTokens")),
                    )
                )
            case "assistant.reasoning" if maybe_text(data.get("content")):
                # The response that it belongs to follows, often with the same text.
                self._reasoning.append(ThinkingBlock(str(data["content"])))
            case _:
                pass
        if maybe_text(fields.get("type")) not in _COPILOT_MESSAGES:
            self.messages.append(record)

    def _put_response(self, record: ForeignRecord, data: Wire) -> None:
        parts: list[Part] = []
        thinking, seal = (
            maybe_text(data.get("reasoningText")),
            maybe_text(data.get("reasoningOpaque")),
        )
        if thinking or seal:
            issuer = "copilot" if seal else None
            parts.append(ThinkingBlock(thinking or "", signature=seal, issuer=issuer))
        parts += [part for part in self._reasoning if getattr(part, "text", "") != thinking]
        self._reasoning = []
        parts += text_parts(data.get("content"), "copilot-cli")
        for call in objects(data.get("toolRequests")):
            name = maybe_text(call.get("name")) or "tool"
            parts.append(Call(maybe_text(call.get("toolCallId")), name, call.get("arguments")))
        self._put(record, Role.ASSISTANT, parts, data)

    def _put(
        self, record: ForeignRecord, role: Role, parts: Sequence[Part], data: Wire | None = None
    ) -> None:
        output = maybe_count((data or {}).get("outputTokens")) or 0
        fields = maybe_object(record.fields.get("data"))
        key = f"{record.fields.get('id')}-{record.at}"
        # The messages of a sub-agent are a branch that begins at the message with its call.
        agent = maybe_text(fields.get("parentToolCallId"))
        parent = self._last_keys.get(agent, self._last_keys.get(None))
        self._last_keys[agent] = self.main_tip = key
        if agent is not None:
            self.main_tip = self._last_keys.get(None, key)
        self.messages.append(
            ForeignMessage(
                role=role,
                parts=parts or [TextBlock("")],
                at=record.at,
                key=key,
                parent=parent,
                time=time_of(record.fields.get("timestamp")),
                model=provider_model((data or {}).get("model")) or self._model
                if role is Role.ASSISTANT
                else None,
                usage=new_usage(latency_ms=0, output_tokens=output) if output else None,
                response_id=maybe_text((data or {}).get("messageId")),
            )
        )


class Aider(MessageListFormat):
    """`.aider.chat.history.md`: prompts are headings, output of aider itself is quoted."""

    name = "aider"
    system = "aider"

    _STARTED = re.compile(r"# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")

    def fits(self, source: Source) -> bool:
        """Return whether the file has the heading that starts a chat."""
        is_named = source.path is not None and source.path.name.startswith(".aider.chat")
        return is_named or b"# aider chat started at " in source.sample()[:4096]

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the chats of a history, one for each start of aider."""
        text = source.read().decode("utf-8", "replace")
        started, lines = "", list[tuple[int, str]]()
        number = 0
        for at, line in enumerate(text.splitlines(), 1):
            start = self._STARTED.match(line)
            if start is None:
                lines.append((at, line))
                continue
            if _has_text(lines):
                number += 1
                yield self._conversation(source, number, started, lines)
            started, lines = start[1], []
        if _has_text(lines):
            yield self._conversation(source, number + 1, started, lines)

    def _conversation(
        self, source: Source, number: int, started: str, lines: Sequence[tuple[int, str]]
    ) -> ForeignConversation:
        cwd = "" if source.path is None else str(source.path.absolute().parent)
        return ForeignConversation(
            foreign_id=f"{source.identity}#{started or number}",
            cwd=cwd,
            messages=list(_aider_messages(lines, started)),
            losses=[("transcript", "aider writes neither models, tokens nor ids")],
        )


def _has_text(lines: Sequence[tuple[int, str]]) -> bool:
    return any(line.strip() for _, line in lines)


def _aider_messages(lines: Sequence[tuple[int, str]], started: str) -> Iterator[ForeignMessage]:
    """Yield prompts and responses; the output of aider itself becomes developer messages."""
    time = time_of(started.replace(" ", "T") + "+00:00") if started else None
    role, start, text = Role.ASSISTANT, 0, list[str]()
    for at, line in [*lines, (0, "#### ")]:
        kind, content = _aider_line(line, role)
        if kind is not role or at == 0:
            body = "\n".join(text).strip()
            if body:
                yield ForeignMessage(
                    role=role, parts=[TextBlock(body)], at=start, key=str(start), time=time
                )
            role, start, text = kind, at, []
        text.append(content)


def _aider_line(line: str, current: Role) -> tuple[Role, str]:
    if line.startswith("#### "):
        return Role.USER, line[5:]
    if line.startswith("> "):
        return Role.DEVELOPER, line[2:]
    if not line.strip():
        return current, ""  # an empty line belongs to whatever comes before it
    return Role.ASSISTANT, line
