"""Conversion context: the state of one document while it is read or written."""

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    ImageBlock,
    ImageSource,
    TextBlock,
    ToolUseBlock,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.loss import Change, Loss
from metis.store.entries import AnyEntry
from metis.wire.call import RequestContext
from metis.wire.json_access import maybe_object
from metis.wire.tool_ids import canonical_tool_id

_MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]+/[\w!#$&^.+*-]+ *(;[^\n]*)?", re.ASCII)
ORPHAN_RESULT_LEAD = "Result of an earlier tool call:"
"""The text before a tool result whose call is not in the history."""
NO_MATCHING_CALL = "no open call of this history matches it; it became a user message"
"""The reason of the loss for such a result."""


class ConversionContext:
    """Losses, tool calls and message ids of one document while it is read or written."""

    def __init__(self, format_name: str, system: str, context: RequestContext) -> None:
        self.format_name = format_name
        self.system = system
        self.request_context = context
        self.losses: list[Loss] = []
        # For each record so far, its last message; None where it is not a message.
        self.message_ids: list[str | None] = []
        # Our ids of messages by the foreign ids and bookmarks that name them; a format may store
        # other facts about earlier turns here as well.
        self.turns: dict[str, str] = {}
        # What a format tracks of the messages that later records refer to.
        self.active: object | None = None
        # Foreign ids of messages by ours.
        self.foreign_turns: dict[str, str] = {}
        # Options of the document that belong to its first message.
        self.options: dict[str, Any] = {}
        self._uses: Counter[str] = Counter()
        self._open_by_id: dict[str, deque[str]] = {}
        # Results without an id come in the order of their calls, so names are queues and ids
        # stacks.
        self._open_by_name: dict[str, deque[str]] = {}
        self._matched: set[str] = set()
        self._foreign_ids: dict[str, str | None] = {}
        self._tool_names: dict[str, str] = {}

    def message(
        self,
        role: Role,
        content: Sequence[ContentBlock],
        *,
        foreign: dict[str, Any] | None = None,
        created_at: datetime | None = None,
        **metadata: Any,
    ) -> Message:
        """Return an imported message; `foreign` is data that only the other system needs."""
        external = {self.system: foreign} if foreign else None
        return Message(
            id=new_ulid(),
            session_id=self.request_context.session_id,
            role=role,
            content=tuple(content),
            created_at=created_at or self.request_context.created_at,
            metadata=MessageMetadata(origin=f"import:{self.system}", external=external, **metadata),
        )

    def open_tool_call(self, foreign_id: str | None, name: str) -> str:
        """Return our id for a tool call that waits for its result from now on."""
        # gpt2099 stores calls of some providers without an id; no provider's id contains NUL.
        key = "\0" if foreign_id is None else foreign_id
        # Ids may repeat in a document, so the number of earlier uses is part of ours.
        tool_use_id = canonical_tool_id(self.request_context.session_id, key, self._uses[key])
        self._uses[key] += 1
        self._open_by_id.setdefault(key, deque()).append(tool_use_id)
        self._open_by_name.setdefault(name, deque()).append(tool_use_id)
        self._foreign_ids[tool_use_id] = foreign_id
        self._tool_names[tool_use_id] = name
        return tool_use_id

    def match_tool_result(self, foreign_id: str | None, name: str = "") -> str | None:
        """Return our id of the call that a result belongs to: the newest open one of that id.

        Without an id it is the oldest open one of that tool; None if there is none.
        """
        if foreign_id is None:
            open_calls = self._open_by_name.get(name, deque[str]())
            next_call = open_calls.popleft
        else:
            open_calls = self._open_by_id.get(foreign_id, deque[str]())
            next_call = open_calls.pop
        while open_calls:
            tool_use_id = next_call()
            if tool_use_id not in self._matched:
                self._matched.add(tool_use_id)
                return tool_use_id
        return None

    def foreign_call_ids(self, message: Message) -> list[str | None]:
        """Return the foreign ids of a message's tool calls in order; ours where it has none."""
        blocks = [block for block in message.content if isinstance(block, ToolUseBlock)]
        self._tool_names.update((block.id, block.name) for block in blocks)
        calls = [block.id for block in blocks]
        stored = foreign_fields(message, self.system).get("calls", ())
        foreign_ids: list[str | None] = list(stored) if len(stored) == len(calls) else list(calls)
        self._foreign_ids.update(zip(calls, foreign_ids, strict=True))
        return foreign_ids

    def foreign_call_id(self, tool_use_id: str) -> str | None:
        """Return the foreign id of an earlier tool call; ours if it has none."""
        return self._foreign_ids.get(tool_use_id, tool_use_id)

    def tool_name(self, tool_use_id: str) -> str:
        """Return the tool name of an earlier call; empty if there is no such call."""
        return self._tool_names.get(tool_use_id, "")

    def add_loss(
        self,
        item: Message | AnyEntry,
        block_type: str,
        path: str,
        reason: str,
        change: Change = Change.ALTERED,
    ) -> None:
        """Report that something was not converted unchanged."""
        self.losses.append(
            make_loss(item, self.format_name, block_type, path, reason, change=change)
        )


def make_loss(  # noqa: PLR0913 - the fields of a loss
    item: Message | AnyEntry,
    format_name: str,
    block_type: str,
    path: str,
    reason: str,
    *,
    change: Change = Change.ALTERED,
) -> Loss:
    """Return a loss of a message or an entry."""
    return Loss(
        session_id=item.session_id,
        message_id=item.id,
        block_type=block_type,
        adapter=format_name,
        reason=reason,
        change=change,
        path=path,
    )


def foreign_fields(message: Message, system: str) -> dict[str, Any]:
    """Return the data of a message that only another system's files need."""
    external = message.metadata.external
    return maybe_object(None if external is None else external.get(system))


def with_foreign_fields(message: Message, system: str, fields: Mapping[str, Any]) -> Message:
    """Return a message with more data that only another system's files need."""
    foreign = {**foreign_fields(message, system), **fields}
    if not foreign:
        return message
    external = {**(message.metadata.external or {}), system: foreign}
    return replace(message, metadata=replace(message.metadata, external=external))


def orphan_result_content(content: Sequence[ContentBlock]) -> tuple[ContentBlock, ...]:
    """Return the content of a user message for a tool result without a call."""
    return TextBlock(ORPHAN_RESULT_LEAD), *(_as_user_block(block) for block in content)


def _as_user_block(block: ContentBlock) -> ContentBlock:
    # Artifacts are for assistants and tools; a user message holds an image instead.
    if not isinstance(block, ArtifactBlock):
        return block
    kind = "url" if block.source.kind == "url" else "file_ref"
    return ImageBlock(ImageSource(kind, block.source.data), block.media_type)


def is_media_type(text: str | None) -> bool:
    """Return whether a text is a media type, such as `image/png`."""
    return text is not None and _MEDIA_TYPE.fullmatch(text) is not None


def parse_time(text: str) -> datetime | None:
    """Return a time in ISO form as UTC; None if it is not a time that we can represent."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
