"""Roles of messages at a target: where instructions may stand, and where developer messages go.

A developer message in mid-conversation becomes part of the user message or tool result before it.
After a response it stays where it is, as a user message, so that nothing changes that was sent.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, MessageMetadata
from metis.projection.blocks import project_blocks, project_result
from metis.projection.content import with_blocks
from metis.projection.loss import LossRecorder
from metis.projection.media import Media
from metis.projection.target import Target, is_native
from metis.projection.tool_calls import calls_of


def target_roles(
    messages: Sequence[Message], target: Target, *, is_start: bool = True
) -> list[Role | None]:
    """The role that each message has at the target; None for one that no target knows.

    Late instructions that were not attached stay in their own place: nothing earlier changes, so
    that the prefix of a conversation stays what it was (T73, T75).
    """
    roles: list[Role | None] = []
    is_leading = is_start
    for message in messages:
        is_leading = is_leading and message.role in (Role.SYSTEM, Role.DEVELOPER)
        roles.append(_placed(message, target, is_leading=is_leading))
    return roles


def _placed(message: Message, target: Target, *, is_leading: bool) -> Role | None:
    role = message.role
    if not role.is_known:
        return None
    if is_native(message, target):
        return role
    if role == Role.DEVELOPER:
        return _placed_developer(message, target, is_leading=is_leading)
    if role == Role.SYSTEM and not is_leading and target.system == "first":
        return Role.USER
    return role


def _placed_developer(message: Message, target: Target, *, is_leading: bool) -> Role:
    if not is_leading:
        return Role.DEVELOPER if keeps_developer_role(message, target) else Role.USER
    return Role.DEVELOPER if target.developer_role else Role.SYSTEM


def keeps_developer_role(message: Message, target: Target) -> bool:
    """Whether a late developer message is in the words of a client of the target's protocol."""
    if is_native(message, target):
        return True
    metadata = message.metadata
    return metadata.origin in target.developer_origins and metadata.model is None


def with_role(message: Message, role: Role, ledger: LossRecorder) -> Message:
    """The message in the role that it has at the target."""
    if role == message.role:
        return message
    ledger.record_altered(
        message, str(message.role), "$.role", f"sent as a {role} message in its place"
    )
    if message.role == Role.SYSTEM:
        message = _marked(message)
    return replace(message, role=role)


def _marked(message: Message) -> Message:
    """A late system message, in one text that says what it is; a blank one says nothing."""
    text = "\n\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    if not text.strip():
        return with_blocks(message, [])
    last = len(message.content) - 1
    return with_blocks(message, [(last, TextBlock(f"<system>\n{text}\n</system>"))])


def drop_empty(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The messages that say something (T83)."""
    kept: list[Message] = []
    for message in messages:
        if message.content or is_native(message, ledger.target):
            kept.append(message)
        elif message.role != Role.SYSTEM:
            ledger.record_dropped(message, "message", "$", "it holds nothing that can be sent")
    return kept


_ASSISTANT, _DEVELOPER, _TOOL, _USER = Role.ASSISTANT, Role.DEVELOPER, Role.TOOL, Role.USER


def needs_earlier_messages(messages: Sequence[Message], target: Target) -> bool:
    """Whether one of these messages may belong to what stood before all of them."""
    for message in messages:
        if message.role is _ASSISTANT:
            return False
        if message.role is _DEVELOPER and not keeps_developer_role(message, target):
            return True
    return False


def attach_developer_messages(
    messages: Sequence[Message], ledger: LossRecorder
) -> Sequence[Message]:
    """The conversation with each late developer message in the one that it belongs to."""
    if not any(message.role is _DEVELOPER for message in messages):
        return messages
    row = _Row(ledger)
    for message in messages:
        row.add(message)
    return row.finish()


class _Row:
    """A conversation in which developer messages find the message that they belong to."""

    def __init__(self, ledger: LossRecorder) -> None:
        self._ledger = ledger
        self._sent: list[Message] = []
        self._host: int | None = None
        self._first = 0
        """How many blocks stand before the host's own already."""
        self._wordless: set[str] = set()
        """The calls whose results have no place for words."""
        self._behind: list[Message] = []
        """What results cannot hold; it stands behind all results of the turn (T27)."""

    def add(self, message: Message) -> None:
        """Put a message into its place, or into the message that it belongs to."""
        role = message.role
        if role is _DEVELOPER and not keeps_developer_role(message, self._ledger.target):
            if self._host is not None:
                self._attach(message, self._host)
                return
        elif role is _ASSISTANT:
            self._host = None
            self._note_wordless(message)
        elif role is _USER or self._takes_words(message):
            self._host = len(self._sent) + (0 if role is _TOOL else len(self._behind))
            self._first = 0
        if role is not _TOOL:
            self._give()
        self._sent.append(message)

    def finish(self) -> list[Message]:
        """All messages."""
        self._give()
        return self._sent

    def _note_wordless(self, message: Message) -> None:
        names = self._ledger.target.tools_without_text
        if names:
            self._wordless.update(call.id for call in calls_of(message) if call.name in names)

    def _takes_words(self, message: Message) -> bool:
        place = _result_place(message)
        result = None if place is None else message.content[place]
        return isinstance(result, ToolResultBlock) and result.tool_use_id not in self._wordless

    def _give(self) -> None:
        self._sent += self._behind
        self._behind = []

    def _attach(self, message: Message, place: int) -> None:
        host, ledger = self._sent[place], self._ledger
        at = _result_place(host, is_first=message.metadata.prepended)
        joined = self._in_words(host, message) if at is None else self._in_result(host, message, at)
        if joined is None:
            ledger.record_dropped(message, "message", "$", "it holds nothing that can be sent")
            return
        reason = f"attached to the {host.role} message before it"
        ledger.record_altered(message, str(message.role), "$.role", reason)
        if is_native(host, ledger.target):
            ledger.attachments.append((host, joined))
        self._sent[place] = joined

    def _in_words(self, host: Message, message: Message) -> Message | None:
        """The words of a user with those of a message beside them."""
        carried, _ = project_blocks(message, _USER, self._ledger)
        if not carried.content:
            return None
        if not is_native(host, self._ledger.target):
            # What is to be told of its own blocks is told under the places that they have.
            host, _ = project_blocks(host, _USER, self._ledger)
        told = tuple(map(_ended, carried.content))
        place = self._place(host.content, told, message)
        hints = (*_shifted(host, len(told), place), *self._hints(host, carried, place))
        return _with_content(host, _inserted(host.content, place, told), hints)

    def _in_result(self, host: Message, message: Message, place: int) -> Message | None:
        """A result with what it can hold of a message; the rest stands behind the results."""
        result = host.content[place]
        if not isinstance(result, ToolResultBlock):
            return None
        said = ToolResultBlock(result.tool_use_id, message.content)
        carried, media = project_result(said, message, "$", self._ledger)
        told = tuple(map(_ended, carried.content))
        if not told:
            return None
        if media:
            self._behind.append(_shown(message, media))
        inner = _inserted(result.content, self._place(result.content, told, message), told)
        content = list(host.content)
        content[place] = replace(result, content=inner)
        hints = tuple(replace(hint, after=place) for hint in self._hints(host, message, 0))
        return _with_content(host, tuple(content), host.metadata.hints + hints)

    def _place(
        self, own: Sequence[ContentBlock], told: Sequence[ContentBlock], message: Message
    ) -> int:
        """Where a message goes among the blocks of its host: behind those that came before it."""
        if not message.metadata.prepended:
            return len(own)
        self._first += len(told)
        return self._first - len(told)

    def _hints(self, host: Message, message: Message, shift: int) -> tuple[CacheHint, ...]:
        """The hints of a message for the one that it is attached to."""
        if message.metadata.hints and is_native(host, self._ledger.target):
            reason = "the message that it is attached to has the marks of its client"
            self._ledger.record_dropped(message, "hint", "$.metadata.hints", reason)
            return ()
        return _shifted(message, shift)


def _result_place(message: Message, *, is_first: bool = False) -> int | None:
    """Where the first or the last result of a tool message stands; None if it has none."""
    if message.role is not _TOOL:
        return None
    places = range(len(message.content))
    return next(
        (
            place
            for place in (places if is_first else reversed(places))
            if isinstance(message.content[place], ToolResultBlock)
        ),
        None,
    )


def _ended(block: ContentBlock) -> ContentBlock:
    """A text with its end marked, for other words stand beside it."""
    return replace(block, text=f"{block.text}\n") if isinstance(block, TextBlock) else block


def _shown(message: Message, media: Sequence[Media]) -> Message:
    """The message behind the results with what they cannot hold."""
    content: list[ContentBlock] = []
    for block in media:
        content += (TextBlock(f"[{block.type} that was told of in the results]"), block)
    metadata = MessageMetadata(origin="projection")
    return replace(message, role=_USER, content=tuple(content), metadata=metadata)


def _inserted(
    own: tuple[ContentBlock, ...], place: int, told: tuple[ContentBlock, ...]
) -> tuple[ContentBlock, ...]:
    return (*own[:place], *told, *own[place:])


def _shifted(message: Message, shift: int, place: int = 0) -> tuple[CacheHint, ...]:
    """The hints of a message for which blocks make room, from a place on."""
    return tuple(
        replace(hint, after=hint.after + shift) if hint.after >= place else hint
        for hint in message.metadata.hints
    )


def _with_content(
    message: Message, content: tuple[ContentBlock, ...], hints: tuple[CacheHint, ...]
) -> Message:
    metadata = replace(message.metadata, hints=hints) if hints else message.metadata
    return replace(message, content=content, metadata=metadata)
