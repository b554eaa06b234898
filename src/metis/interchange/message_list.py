"""Formats that are read only, as a list of messages.

Such a format turns its file into `ForeignMessage` values; this module turns those into a session:
ids of calls, a message for each result, branches, and a loss for what cannot be represented.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from metis.canonical.blocks import (
    ContentBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import ForeignDocumentError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Outcome, OutcomeStatus, Usage
from metis.interchange.foreign_content import Call, Part, Result, to_text
from metis.interchange.session_draft import ForeignSession, SessionDraft, priced
from metis.interchange.session_format import SessionFormat
from metis.interchange.source import ForeignRecord, Source, parse_record
from metis.store.entries import CompactionEntry
from metis.streaming.arguments import parse_arguments
from metis.wire.json_access import maybe_text

MAX_DOCUMENT_BYTES = 1024**3
"""The largest export that is read as one document."""


class ForeignMessage(Struct, kw_only=True):
    """One message of another program."""

    role: Role
    parts: Sequence[Part]
    at: int = 0
    """Its position in the file, for people."""
    key: str = ""
    """What identifies it in its session."""
    parent: str | None = None
    """The key of the message that it follows; None is the one before it."""
    time: datetime | None = None
    model: str | None = None
    """`provider:name`."""
    usage: Usage | None = None
    response_id: str | None = None


class ForeignSummary(Struct, kw_only=True):
    """A text that replaces the messages before it, for the model."""

    text: str
    at: int = 0
    key: str
    """What identifies it in its session."""
    time: datetime | None = None
    tokens_before: int | None = None


class ForeignConversation(Struct, kw_only=True):
    """A conversation of another program."""

    foreign_id: str
    messages: Iterable[ForeignMessage | ForeignSummary | ForeignRecord]
    """Messages, summaries, and records that are neither, which are stored as they are."""
    title: str = ""
    cwd: str = ""
    version: str = ""
    time: datetime | None = None
    """When it started: the time of messages without one."""
    tip: str | None = None
    """The key of the message that the conversation ends with."""
    parent: tuple[str, str | None] | None = None
    """The session that this one is a sub-agent of, and the call that started it, by their ids."""
    unreported_types: frozenset[str] = frozenset()
    """The types of records that are stored without a report: they are not for the model."""
    losses: Sequence[tuple[str, str]] = ()
    """Facts that the file never contains, such as token counts: the kind, and a text."""


class MessageListFormat(SessionFormat):
    """A format whose files are only read."""

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the sessions of a file."""
        for conversation in self.conversations(source):
            yield make_session(self, conversation)

    @abstractmethod
    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversations of a file."""

    def document(self, source: Source) -> Any:
        """Return the file as one JSON value.

        Raises:
            ForeignDocumentError: it is not JSON, or nested too deeply.
        """
        record = parse_record(1, source.read(MAX_DOCUMENT_BYTES))
        if record.value is None:
            raise ForeignDocumentError(record.fault or "null", format=self.name, line=1)
        return record.value

    def items(self, source: Source) -> Iterator[tuple[int, Any]]:
        """Yield the items of a file that is a list, or the one value that it is, one at a time."""
        data = source.read(MAX_DOCUMENT_BYTES)
        try:
            # Kept as bytes: an export of years would take ten times its size as Python values.
            raws = msgspec.json.decode(data, type=list[Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield 1, self.document(source)
            return
        for number, raw in enumerate(raws, 1):
            record = parse_record(number, bytes(raw))
            if record.value is not None:
                yield number, record.value


def make_session(file_format: SessionFormat, conversation: ForeignConversation) -> ForeignSession:
    """Return a conversation as a session."""
    draft = SessionDraft(file_format, conversation.foreign_id)
    draft.title, draft.cwd = conversation.title, conversation.cwd
    draft.version = conversation.version
    draft.time(conversation.time)
    if conversation.parent is not None:
        draft.set_parent(*conversation.parent)
    writer = _SessionBuilder(draft)
    for item in conversation.messages:
        if isinstance(item, ForeignMessage):
            writer.add(item)
        elif isinstance(item, ForeignSummary):
            draft.add(_summary(item, draft))
        elif maybe_text(item.fields.get("type")) in conversation.unreported_types:
            draft.add_record(item)
        else:
            draft.add_unknown_record(item)
    for kind, reason in conversation.losses:
        draft.add_loss(kind, reason)
    session = draft.session()
    tip = writer.last_by_key.get(conversation.tip or "")
    if tip is not None and session.messages() and tip != session.messages()[-1].id:
        session.tip = tip
    return session


def _summary(summary: ForeignSummary, draft: SessionDraft) -> CompactionEntry:
    return CompactionEntry(
        id=draft.next_id(),
        session_id=draft.session_id,
        created_at=draft.time(summary.time),
        external={draft.file_format.system: {"at": [summary.at], "key": summary.key}},
        summary=summary.text,
        tokens_before=summary.tokens_before,
    )


class _SessionBuilder:
    """Adds the messages of another program to a draft."""

    def __init__(self, draft: SessionDraft) -> None:
        self._draft = draft
        self._last: str | None = None
        self.last_by_key: dict[str, str] = {}
        """Our id of the last message of each message of the file."""

    def add(self, message: ForeignMessage) -> None:
        """Add one message; calls with results in it become several."""
        self._draft.time(message.time)
        previous = self._last
        if message.parent is not None:
            previous = self.last_by_key.get(message.parent, previous)
        blocks: list[ContentBlock] = []
        number = 0
        for part in message.parts:
            if isinstance(part, Result):
                if blocks:
                    previous = self._add_blocks(message, blocks, previous, number)
                    blocks, number = [], number + 1
                previous = self._add_result(message, part, previous, number)
                number += 1
            elif isinstance(part, Call):
                blocks.append(self._call(part, message.at))
            else:
                blocks.append(part)
        if blocks or not number:
            previous = self._add_blocks(message, blocks, previous, number)
        if message.key and previous is not None:
            self.last_by_key[message.key] = previous

    def _add_blocks(
        self, message: ForeignMessage, blocks: list[ContentBlock], previous: str | None, number: int
    ) -> str | None:
        role, model = message.role, message.model
        is_first = number == 0
        metadata: dict[str, Any] = {}
        if role is Role.ASSISTANT:
            usage = self._draft.usage_once(message.response_id, message.usage) if is_first else None
            moment = self._draft.time(message.time)
            metadata = {
                "model": model,
                "provider": None if model is None else model.partition(":")[0],
                "usage": priced(usage, model, moment),
                "response_id": message.response_id,
            }
        return self._put(
            self._draft.message(
                role,
                blocks,
                created_at=message.time,
                parents=self._parents(previous),
                foreign=_key(message, number),
                **metadata,
            )
        )

    def _add_result(
        self, message: ForeignMessage, result: Result, previous: str | None, number: int
    ) -> str | None:
        parents, foreign = self._parents(previous), _key(message, number)
        tool_use_id = self._draft.match_result(result.foreign_id, result.name)
        if tool_use_id is None:
            return self._put(
                self._draft.orphan_result(
                    result.content,
                    message.at,
                    "$",
                    created_at=message.time,
                    parents=parents,
                    foreign=foreign,
                )
            )
        status = OutcomeStatus.ERROR if result.is_error else OutcomeStatus.SUCCESS
        name = self._draft.tool_name(tool_use_id)
        block = ToolResultBlock(tool_use_id, tuple(result.content), is_error=result.is_error)
        return self._put(
            self._draft.message(
                Role.TOOL,
                (block,),
                created_at=message.time,
                parents=parents,
                foreign=foreign,
                parent_tool_use_id=tool_use_id,
                outcome=Outcome(status=status, tool_name=name),
            )
        )

    def _call(self, call: Call, at: int) -> ToolUseBlock:
        tool_use_id = self._draft.open_call(call.foreign_id, call.name, at)
        if isinstance(call.arguments, dict):
            return ToolUseBlock(tool_use_id, call.name, cast("dict[str, Any]", call.arguments))
        text = call.arguments if isinstance(call.arguments, str) else to_text(call.arguments)
        arguments, invalid = parse_arguments(text or "{}")
        return ToolUseBlock(tool_use_id, call.name, arguments, invalid=invalid)

    def _parents(self, previous: str | None) -> tuple[str, ...]:
        # A message follows the one before it unless it says otherwise.
        return () if previous is None or previous == self._last else (previous,)

    def _put(self, message: Message) -> str | None:
        count = len(self._draft.entries)
        self._draft.add(message)
        if len(self._draft.entries) == count:
            return self._last  # it breaks a rule of the canonical form and is reported
        self._last = message.id
        return message.id


def _key(message: ForeignMessage, number: int) -> dict[str, str]:
    key = message.key or str(message.at)
    return {"key": f"{key}#{number}" if number else key}
