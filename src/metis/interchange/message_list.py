"""Formats that are read only: a list of messages in some program's own words.

Such a format turns its file into `ForeignMessage` values; this module turns those into a session:
ids of calls, results in messages of their own, branches, and a loss for what has no place.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import ForeignDocumentError, MetisError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Outcome, OutcomeStatus, Usage
from metis.interchange.conversion import is_media_type, parse_time
from metis.interchange.session_draft import ForeignSession, SessionDraft, priced
from metis.interchange.session_format import SessionFormat
from metis.interchange.source import ForeignRecord, Source, parse_record
from metis.store.entries import CompactionEntry
from metis.streaming.arguments import parse_arguments
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

MAX_DOCUMENT_BYTES = 1024**3
"""The largest export that is read as one document."""

_ROLES = {
    "user": Role.USER,
    "human": Role.USER,
    "assistant": Role.ASSISTANT,
    "ai": Role.ASSISTANT,
    "model": Role.ASSISTANT,
    "agent": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
}


class Call(Struct, frozen=True):
    """A tool call in a message of another program."""

    foreign_id: str | None
    name: str
    arguments: Any
    """An object, or text that should be one."""


class Result(Struct, frozen=True):
    """The result of a call, which stands in a message of its own here."""

    foreign_id: str | None
    name: str
    content: Sequence[ContentBlock]
    is_error: bool = False


Part = ContentBlock | Call | Result


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
    """What the file does not say at all: the kind of it, and a text."""


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


def make_session(form: SessionFormat, conversation: ForeignConversation) -> ForeignSession:
    """Return a conversation as a session."""
    draft = SessionDraft(form, conversation.foreign_id)
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
            draft.keep(item)
        else:
            draft.keep_unknown(item)
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
        external={draft.form.system: {"at": [summary.at], "key": summary.key}},
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
            return self._last  # it breaks a rule and is reported
        self._last = message.id
        return message.id


def _key(message: ForeignMessage, number: int) -> dict[str, str]:
    key = message.key or str(message.at)
    return {"key": f"{key}#{number}" if number else key}


# Parts in the words of other programs


def role_of(name: object, default: Role | None = None) -> Role | None:
    """Return the role that a program calls by a name."""
    return _ROLES.get(name, default) if isinstance(name, str) else default


def text_parts(value: object, issuer: str) -> list[ContentBlock]:
    """Return text, or a list of texts and parts, as blocks."""
    if value is None:
        return []
    if isinstance(value, str):
        return [TextBlock(value)] if value else []
    if isinstance(value, list):
        blocks = (content_block(item, issuer) for item in cast("list[Any]", value))
        return [block for block in blocks if block is not None]
    return [TextBlock(to_text(value))]


def content_block(value: object, issuer: str) -> ContentBlock | None:
    """Return a part of a message as a block: in the terms that most programs share.

    A part of an unknown kind is stored as it is; only the program that wrote it understands it.
    """
    if isinstance(value, str):
        return TextBlock(value) if value else None
    part = maybe_object(value)
    kind = part.get("type")
    text = part.get("text")
    if kind in ("text", "input_text", "output_text", "refusal", None) and isinstance(
        text or part.get("refusal") or part.get("content"), str
    ):
        return TextBlock(cast("str", text or part.get("refusal") or part.get("content")))
    if kind in ("thinking", "reasoning", "think") or (kind is None and "thinking" in part):
        words = part.get("thinking") or text or part.get("think") or part.get("content")
        if isinstance(words, str):
            signature = maybe_text(part.get("signature"))
            return ThinkingBlock(words, signature=signature, issuer=issuer if signature else None)
    if kind == "redacted_thinking" and isinstance(part.get("data"), str):
        return RedactedThinkingBlock(part["data"], issuer=issuer)
    return media_block(part) or opaque(part, issuer)


def media_block(part: Wire) -> ContentBlock | None:
    """Return an image or document of a part; None if it is none."""
    source = maybe_object(part.get("source"))
    media_type = maybe_text(source.get("media_type")) or maybe_text(part.get("mediaType")) or ""
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return _media("base64", source["data"], media_type)
    url = part.get("image_url") or source.get("url") or part.get("url")
    address = url.get("url") if isinstance(url, dict) else url  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JSON
    if not isinstance(address, str) or not address:
        return None
    if not address.startswith("data:"):
        is_image = part.get("type") in ("image", "image_url", "input_image") or (
            media_type.startswith("image/")
        )
        return _media("url", address, media_type or (ANY_IMAGE_TYPE if is_image else ""))
    head, _, data = address[5:].partition(",")
    if not head.endswith(";base64"):
        return None
    return _media("base64", data, head.removesuffix(";base64"))


def _media(kind: Any, data: str, media_type: str) -> ContentBlock | None:
    if not is_media_type(media_type):
        return None
    try:
        if media_type.startswith("image/"):
            return ImageBlock(ImageSource(kind, data), media_type)
        return DocumentBlock(MediaSource(kind, data), media_type)
    except MetisError:
        return None


def text_document(name: str, text: str) -> DocumentBlock:
    """Return the text of a file that was attached."""
    return DocumentBlock(MediaSource("text", text), "text/plain", name=name or None)


def opaque(value: object, issuer: str) -> OpaqueBlock:
    """Return a part that only the other program understands, as it is."""
    kind = maybe_text(maybe_object(value).get("type"))
    return OpaqueBlock(issuer=issuer, raw=Raw(msgspec.json.encode(value)), kind=kind)


def anthropic_parts(content: object, issuer: str) -> list[Part]:
    """Return the content of a message in the form of the Anthropic protocol."""
    if not isinstance(content, list):
        return list(text_parts(content, issuer))
    parts: list[Part] = []
    for item in cast("list[Any]", content):
        part = maybe_object(item)
        kind = str(part.get("type") or "").replace("-", "_")
        if kind in ("tool_use", "tool_call") and isinstance(part.get("name"), str):
            parts.append(Call(maybe_text(part.get("id")), part["name"], part.get("input") or {}))
        elif kind == "tool_result":
            parts.append(
                Result(
                    maybe_text(part.get("tool_use_id")),
                    maybe_text(part.get("name")) or "",
                    text_parts(part.get("content"), issuer),
                    part.get("is_error") is True,
                )
            )
        else:
            block = content_block(item, issuer)
            if block is not None:
                parts.append(block)
    return parts


def to_text(value: object) -> str:
    """Return JSON as text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def time_of(value: object) -> datetime | None:
    """Return a time: in ISO form, or as seconds or milliseconds since 1970."""
    if isinstance(value, str):
        return parse_time(value.replace("Z", "+00:00"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = value / 1000 if value > 1e11 else value  # noqa: PLR2004 - in the year 5138 it is wrong
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def usage_of(counts: Mapping[str, Any], names: Mapping[str, str]) -> Usage | None:
    """Return a usage; `names` are the names of the program by ours.

    The input of most programs includes what was read from a cache.
    """
    listed = {ours: maybe_count(counts.get(name)) or 0 for ours, name in names.items()}
    prompt, cached = listed.get("input", 0), listed.get("cached", 0)
    output = listed.get("output", 0)
    if not prompt and not output:
        return None
    return new_usage(
        latency_ms=0,
        input_tokens=max(0, prompt - cached),
        cached_input_tokens=min(cached, prompt),
        output_tokens=output,
        reasoning_output_tokens=min(listed.get("reasoning", 0), output),
    )


def provider_model(name: object, provider: str | None = None) -> str | None:
    """Return `provider:name` for a model name; the provider is guessed from the name if need be."""
    if not isinstance(name, str) or not name:
        return None
    for prefix, owner in _OWNERS.items():
        if provider is None and name.startswith(prefix):
            provider = owner
    return f"{provider or 'unknown'}:{name}"


_OWNERS = {
    "claude": "anthropic",
    "gpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "text-davinci": "openai",
    "chatgpt": "openai",
    "gemini": "gemini",
    "grok": "xai",
    "deepseek": "deepseek",
    "mistral": "mistral",
}


def list_digest(values: Sequence[object]) -> str:
    """Return an id for a list without one: that of its first message, which stays when it grows."""
    first = msgspec.json.encode(list(values[:1]), order="sorted")
    return sha256(first).hexdigest()[:32]


def objects(value: object) -> list[Wire]:
    """Return the objects of a list."""
    return [cast("Wire", item) for item in maybe_list(value) if isinstance(item, dict)]
