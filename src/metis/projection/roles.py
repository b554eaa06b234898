"""Roles on their way to a target: where instructions may stand, and turns that hold nothing."""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import TextBlock
from metis.canonical.message import Message, Role
from metis.projection.content import with_blocks
from metis.projection.ledger import Ledger
from metis.projection.target import Target, is_native


def placed_roles(
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
        return Role.DEVELOPER if keeps_role(message, target) else Role.USER
    return Role.DEVELOPER if target.developer_role else Role.SYSTEM


def keeps_role(message: Message, target: Target) -> bool:
    """Whether a late developer message is in the words of a client of the target's protocol."""
    if is_native(message, target):
        return True
    metadata = message.metadata
    return metadata.origin in target.developer_origins and metadata.model is None


def place(message: Message, role: Role, ledger: Ledger) -> Message:
    """The message in the role that it has at the target."""
    if role == message.role:
        return message
    ledger.altered(message, str(message.role), "$.role", f"sent as a {role} message in its place")
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


def drop_empties(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The messages that say something (T83)."""
    kept: list[Message] = []
    for message in messages:
        if message.content or is_native(message, ledger.target):
            kept.append(message)
        elif message.role != Role.SYSTEM:
            ledger.dropped(message, "message", "$", "it holds nothing that can be sent")
    return kept
