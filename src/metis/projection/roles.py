"""Roles on their way to a target: where instructions may stand, and turns that hold nothing."""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.message import Message, Role
from metis.projection.blocks import fail_if_critical
from metis.projection.ledger import Ledger
from metis.projection.target import is_native


def place_roles(
    messages: Sequence[Message], ledger: Ledger, *, is_start: bool = True
) -> list[Message]:
    """Developer and late system messages in a role that the target knows, in their own place.

    Nothing earlier changes, so that the prefix of a conversation stays what it was (T73, T75).
    """
    target = ledger.target
    placed: list[Message] = []
    is_leading = is_start
    for message in messages:
        is_leading = is_leading and message.role in (Role.SYSTEM, Role.DEVELOPER)
        if is_native(message, target):
            placed.append(message)
        elif message.role == Role.DEVELOPER and not target.developer_role:
            role = Role.SYSTEM if is_leading else Role.USER
            ledger.altered(message, "developer", "$.role", f"sent as a {role} message in its place")
            placed.append(replace(message, role=role))
        elif message.role == Role.SYSTEM and not is_leading and target.system == "first":
            ledger.altered(message, "system", "$.role", "sent as a user message in its place")
            placed.append(replace(message, role=Role.USER, content=_marked(message)))
        else:
            placed.append(message)
    return placed


def _marked(message: Message) -> tuple[TextBlock, ...]:
    text = "\n\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    return (TextBlock(f"<system>\n{text}\n</system>"),)


def drop_empties(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The messages that say something; blank text goes where the target refuses it (T83, T88)."""
    kept: list[Message] = []
    for message in messages:
        if is_native(message, ledger.target):
            kept.append(message)
            continue
        sent = message if ledger.target.takes_blank_text else _without_blanks(message, ledger)
        if sent.content:
            kept.append(sent)
        elif message.role != Role.SYSTEM:
            ledger.dropped(message, "message", "$", "it holds nothing that can be sent")
    return kept


def _without_blanks(message: Message, ledger: Ledger) -> Message:
    blanks = [
        index
        for index, block in enumerate(message.content)
        if type(block) is TextBlock and not block.text.strip()
    ]
    if not blanks or any(isinstance(block, ThinkingBlock) for block in message.content):
        return message  # in a signed turn even an empty block has its place (T39)
    for index in blanks:
        fail_if_critical(message.content[index], message, f"$.content[{index}]", "it is blank")
        ledger.dropped(message, "text", f"$.content[{index}]", "the text is blank")
    left = (block for index, block in enumerate(message.content) if index not in blanks)
    return replace(message, content=tuple(left))
