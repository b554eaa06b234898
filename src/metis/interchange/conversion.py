"""Conversion context: what is known while one document is read or written."""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

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
"""What stands before a result whose call is not in the history, as the user is told it."""


class ConversionContext:
    """What is known while one document is read or written."""

    def __init__(self, format_name: str, system: str, context: RequestContext) -> None:
        self.format_name = format_name
        self.system = system
        self.request_context = context
        self.losses: list[Loss] = []
        self.message_ids: list[str | None] = []
        """For each record so far, its last message; None where it is no message."""
        self.turns: dict[str, str] = {}
        """Our ids of messages by the foreign ids and bookmarks that name them.

        A format may note beside them what one turn tells of those that follow.
        """
        self.foreign_turns: dict[str, str] = {}
        """Foreign ids of messages by ours."""
        self.options: dict[str, Any] = {}
        """Options that wait for the first message."""
        self._uses: Counter[str] = Counter()
        self._open_by_id: dict[str, list[str]] = {}
        self._open_by_name: dict[str, deque[str]] = {}
        self._answered: set[str] = set()
        self._foreign_calls: dict[str, str | None] = {}
        self._tool_names: dict[str, str] = {}

    def message(
        self,
        role: Role,
        content: Sequence[ContentBlock],
        *,
        foreign: dict[str, Any] | None = None,
        created_at: datetime | None = None,
        **about: Any,
    ) -> Message:
        """A message as it is imported; `foreign` is what only the other system's files need."""
        external = {self.system: foreign} if foreign else None
        return Message(
            id=new_ulid(),
            session_id=self.request_context.session_id,
            role=role,
            content=tuple(content),
            created_at=created_at or self.request_context.created_at,
            metadata=MessageMetadata(origin=f"import:{self.system}", external=external, **about),
        )

    def open_tool_call(self, foreign: str | None, name: str) -> str:
        """Our id for a call that is made now."""
        key = "\0" if foreign is None else foreign
        ours = canonical_tool_id(self.request_context.session_id, key, self._uses[key])
        self._uses[key] += 1
        self._open_by_id.setdefault(key, []).append(ours)
        self._open_by_name.setdefault(name, deque()).append(ours)
        self._foreign_calls[ours] = foreign
        self._tool_names[ours] = name
        return ours

    def match_tool_result(self, foreign: str | None, name: str = "") -> str | None:
        """Our id of the call that a result answers: the newest open one of that id.

        Without an id it is the oldest open one of that name; None if there is none.
        """
        waiting = self._by_name(name) if foreign is None else self._by_id(foreign)
        ours = next(waiting, None)
        if ours is not None:
            self._answered.add(ours)
        return ours

    def _by_id(self, foreign: str) -> Iterator[str]:
        waiting = self._open_by_id.get(foreign, [])
        while waiting:
            ours = waiting.pop()
            if ours not in self._answered:
                yield ours

    def _by_name(self, name: str) -> Iterator[str]:
        waiting = self._open_by_name.get(name, deque[str]())
        while waiting:
            ours = waiting.popleft()
            if ours not in self._answered:
                yield ours

    def foreign_call_ids(self, message: Message) -> list[str | None]:
        """The foreign ids of the calls in a message, in their order; ours where there are none."""
        blocks = [block for block in message.content if isinstance(block, ToolUseBlock)]
        self._tool_names.update((block.id, block.name) for block in blocks)
        calls = [block.id for block in blocks]
        kept = foreign_fields(message, self.system).get("calls", ())
        names: list[str | None] = list(kept) if len(kept) == len(calls) else list(calls)
        self._foreign_calls.update(zip(calls, names, strict=True))
        return names

    def foreign_call_id(self, tool_use_id: str) -> str | None:
        """The foreign id of a call that came before; ours if it has none."""
        return self._foreign_calls.get(tool_use_id, tool_use_id)

    def tool_name(self, tool_use_id: str) -> str:
        """The name of the tool that a call before called; empty if there is none."""
        return self._tool_names.get(tool_use_id, "")

    def add_loss(
        self,
        item: Message | AnyEntry,
        block_type: str,
        path: str,
        reason: str,
        change: Change = Change.ALTERED,
    ) -> None:
        """Write down that something did not come through as it was."""
        self.losses.append(
            Loss(
                session_id=item.session_id,
                message_id=item.id,
                block_type=block_type,
                adapter=self.format_name,
                reason=reason,
                change=change,
                path=path,
            )
        )


def foreign_fields(message: Message, system: str) -> dict[str, Any]:
    """What another system's files need of a message and the canonical form has no place for."""
    external = message.metadata.external
    return maybe_object(None if external is None else external.get(system))


def orphan_result_content(content: Sequence[ContentBlock]) -> tuple[ContentBlock, ...]:
    """A result without a call, as words of the user."""
    return TextBlock(ORPHAN_RESULT_LEAD), *(_shown(block) for block in content)


def _shown(block: ContentBlock) -> ContentBlock:
    """What a tool made, as the user shows it."""
    if not isinstance(block, ArtifactBlock):
        return block
    kind = "url" if block.source.kind == "url" else "file_ref"
    return ImageBlock(ImageSource(kind, block.source.data), block.media_type)


def is_media_type(text: str | None) -> bool:
    """Whether a text names a kind of media, such as `image/png`."""
    return text is not None and _MEDIA_TYPE.fullmatch(text) is not None


def parse_time(text: str) -> datetime | None:
    """A time in ISO form, in UTC; None if it is no time that we can hold."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
