"""Projection of roles: positions of instructions, and attachment of developer messages.

A developer message within a conversation becomes part of the user message or tool result before it.
After a response it becomes a user message at the same position, so that the cached prefix is not
changed.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, MessageMetadata
from metis.projection.blocks import project_blocks, project_result
from metis.projection.content import calls_of, with_blocks
from metis.projection.loss import LossRecorder
from metis.projection.media import Media
from metis.projection.target import Target, is_native

_ASSISTANT, _DEVELOPER, _TOOL, _USER = Role.ASSISTANT, Role.DEVELOPER, Role.TOOL, Role.USER


def target_roles(
    messages: Sequence[Message], target: Target, *, is_start: bool = True
) -> list[Role | None]:
    """Return the role of each message at the target; None for an unknown role."""
    # Late instructions become user messages at the same position: moving them to the front would
    # change the prefix that the provider has cached (T73, T75).
    roles: list[Role | None] = []
    is_leading = is_start
    for message in messages:
        is_leading = is_leading and message.role in (Role.SYSTEM, Role.DEVELOPER)
        roles.append(_target_role(message, target, is_leading=is_leading))
    return roles


def _target_role(message: Message, target: Target, *, is_leading: bool) -> Role | None:
    role = message.role
    if not role.is_known:
        return None
    if is_native(message, target):
        return role
    if role == Role.DEVELOPER:
        if not is_leading:
            return Role.DEVELOPER if keeps_developer_role(message, target) else Role.USER
        return Role.DEVELOPER if target.developer_role else Role.SYSTEM
    if role == Role.SYSTEM and not is_leading and target.system == "first":
        return Role.USER
    return role


def keeps_developer_role(message: Message, target: Target) -> bool:
    """Whether a late developer message is sent as such: its client uses the target's protocol."""
    if is_native(message, target):
        return True
    metadata = message.metadata
    return metadata.origin in target.developer_origins and metadata.model is None


def with_role(message: Message, role: Role, recorder: LossRecorder) -> Message:
    """Return the message with its role at the target, and record a change of role."""
    if role == message.role:
        return message
    reason = f"sent as a {role} message at the same position"
    recorder.record_altered(message, str(message.role), "$.role", reason)
    if message.role == Role.SYSTEM:
        message = _with_system_tag(message)
    return replace(message, role=role)


def _with_system_tag(message: Message) -> Message:
    text = "\n\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    if not text.strip():
        return with_blocks(message, [])
    last = len(message.content) - 1
    return with_blocks(message, [(last, TextBlock(f"<system>\n{text}\n</system>"))])


def drop_empty(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the messages without empty ones, which targets reject (T83)."""
    sent: list[Message] = []
    for message in messages:
        if message.content or is_native(message, recorder.target):
            sent.append(message)
        elif message.role != Role.SYSTEM:
            recorder.record_dropped(message, "message", "$", "it has no content that can be sent")
    return sent


def needs_earlier_messages(messages: Sequence[Message], target: Target) -> bool:
    """Whether one of these messages may have to be attached to an earlier message."""
    for message in messages:
        if message.role is _ASSISTANT:
            return False
        if message.role is _DEVELOPER and not keeps_developer_role(message, target):
            return True
    return False


def attach_developer_messages(
    messages: Sequence[Message], recorder: LossRecorder
) -> Sequence[Message]:
    """Return the history with each late developer message attached to the message before it."""
    if not any(message.role is _DEVELOPER for message in messages):
        return messages
    attachment = _Attachment(recorder)
    for message in messages:
        attachment.add(message)
    return attachment.finish()


class _Attachment:
    """Builds a history in which developer messages are attached to the host message before them."""

    def __init__(self, recorder: LossRecorder) -> None:
        self._recorder = recorder
        self._sent: list[Message] = []
        self._host_index: int | None = None
        self._prepended_count = 0
        """How many attached blocks precede those of the host."""
        self._calls_without_text: set[str] = set()
        self._displaced: list[Message] = []
        """Messages with displaced media, to be sent after all results of the response (T27)."""

    def add(self, message: Message) -> None:
        """Add a message, or attach it to the current host."""
        role = message.role
        if role is _DEVELOPER and not keeps_developer_role(message, self._recorder.target):
            if self._host_index is not None:
                self._attach(message, self._host_index)
                return
        elif role is _ASSISTANT:
            self._host_index = None
            names = self._recorder.target.tools_without_text
            if names:
                calls = (call.id for call in calls_of(message) if call.name in names)
                self._calls_without_text.update(calls)
        elif role is _USER or self._is_host_result(message):
            displaced_count = 0 if role is _TOOL else len(self._displaced)
            self._host_index = len(self._sent) + displaced_count
            self._prepended_count = 0
        if role is not _TOOL:
            self._flush_displaced()
        self._sent.append(message)

    def finish(self) -> list[Message]:
        """Return the history, with displaced media at the end."""
        self._flush_displaced()
        return self._sent

    def _is_host_result(self, message: Message) -> bool:
        index = _result_index(message)
        result = None if index is None else message.content[index]
        if not isinstance(result, ToolResultBlock):
            return False
        return result.tool_use_id not in self._calls_without_text

    def _flush_displaced(self) -> None:
        self._sent += self._displaced
        self._displaced = []

    def _attach(self, message: Message, host_index: int) -> None:
        """Attach a developer message to its host, and record the change."""
        host, recorder = self._sent[host_index], self._recorder
        index = _result_index(host, is_first=message.metadata.prepended)
        if index is None:
            joined = self._attach_to_user(host, message)
        else:
            joined = self._attach_to_result(host, message, index)
        if joined is None:
            recorder.record_dropped(message, "message", "$", "it has no content that can be sent")
            return
        reason = f"attached to the {host.role} message before it"
        recorder.record_altered(message, str(message.role), "$.role", reason)
        if is_native(host, recorder.target):
            recorder.attachments.append((host, joined))
        self._sent[host_index] = joined

    def _attach_to_user(self, host: Message, message: Message) -> Message | None:
        """Return a user message with the blocks of a developer message; None if there are none."""
        projected, _ = project_blocks(message, _USER, self._recorder)
        if not projected.content:
            return None
        if not is_native(host, self._recorder.target):
            # Losses of the host's blocks must have the indexes from before the insertion.
            host, _ = project_blocks(host, _USER, self._recorder)
        blocks = tuple(map(_with_line_end, projected.content))
        index = self._insertion_index(host.content, blocks, message)
        hints = (
            *_shifted_hints(host, len(blocks), index),
            *self._attached_hints(host, projected, index),
        )
        return _with_content(host, _inserted(host.content, index, blocks), hints)

    def _attach_to_result(self, host: Message, message: Message, index: int) -> Message | None:
        """Return a tool message whose result has the blocks of a developer message, or None."""
        result = host.content[index]
        if not isinstance(result, ToolResultBlock):
            return None
        as_result = ToolResultBlock(result.tool_use_id, message.content)
        projected, media = project_result(as_result, message, "$", self._recorder)
        blocks = tuple(map(_with_line_end, projected.content))
        if not blocks:
            return None
        if media:
            self._displaced.append(_displaced_message(message, media))
        inner_index = self._insertion_index(result.content, blocks, message)
        content = list(host.content)
        content[index] = replace(result, content=_inserted(result.content, inner_index, blocks))
        hints = tuple(replace(h, after=index) for h in self._attached_hints(host, message, 0))
        return _with_content(host, tuple(content), host.metadata.hints + hints)

    def _insertion_index(
        self, content: Sequence[ContentBlock], blocks: Sequence[ContentBlock], message: Message
    ) -> int:
        """Return the index at which blocks are inserted: after blocks attached earlier."""
        if not message.metadata.prepended:
            return len(content)
        self._prepended_count += len(blocks)
        return self._prepended_count - len(blocks)

    def _attached_hints(self, host: Message, message: Message, shift: int) -> tuple[CacheHint, ...]:
        if message.metadata.hints and is_native(host, self._recorder.target):
            reason = "the message that it is attached to has the marks of its client"
            self._recorder.record_dropped(message, "hint", "$.metadata.hints", reason)
            return ()
        return _shifted_hints(message, shift)


def _result_index(message: Message, *, is_first: bool = False) -> int | None:
    if message.role is not _TOOL:
        return None
    indexes = range(len(message.content))
    for index in indexes if is_first else reversed(indexes):
        if isinstance(message.content[index], ToolResultBlock):
            return index
    return None


def _with_line_end(block: ContentBlock) -> ContentBlock:
    return replace(block, text=f"{block.text}\n") if isinstance(block, TextBlock) else block


def _displaced_message(message: Message, media: Sequence[Media]) -> Message:
    content: list[ContentBlock] = []
    for block in media:
        content += (TextBlock(f"[{block.type} from the tool results]"), block)
    metadata = MessageMetadata(origin="projection")
    return replace(message, role=_USER, content=tuple(content), metadata=metadata)


def _inserted(
    content: tuple[ContentBlock, ...], index: int, blocks: tuple[ContentBlock, ...]
) -> tuple[ContentBlock, ...]:
    return (*content[:index], *blocks, *content[index:])


def _shifted_hints(message: Message, shift: int, start: int = 0) -> tuple[CacheHint, ...]:
    return tuple(
        replace(hint, after=hint.after + shift) if hint.after >= start else hint
        for hint in message.metadata.hints
    )


def _with_content(
    message: Message, content: tuple[ContentBlock, ...], hints: tuple[CacheHint, ...]
) -> Message:
    metadata = replace(message.metadata, hints=hints) if hints else message.metadata
    return replace(message, content=content, metadata=metadata)
