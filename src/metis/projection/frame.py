"""The frame of a conversation: how it may begin, and how its last turn may end."""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import TextBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.ledger import Ledger
from metis.projection.target import is_native

OPENING = "(The conversation begins here.)"
"""What stands in for the first words of a user where a target wants some."""

INSTRUCTING = (Role.SYSTEM, Role.DEVELOPER)
"""The roles of those who ask nothing."""


_OPENED = (TextBlock(OPENING),)


def is_opening(message: Message) -> bool:
    """Whether a message stands in for the first words of a user."""
    return message.metadata.origin == "projection" and message.content == _OPENED


def settle_frame(messages: Sequence[Message], ledger: Ledger, *, is_start: bool) -> list[Message]:
    """The conversation as its target wants it to begin and to end."""
    sent = list(messages)
    if ledger.target.starts_with_user and is_start:
        _open(sent, ledger)
    if not ledger.target.takes_blank_end and sent:
        sent[-1] = _trimmed(sent[-1], ledger)
    return sent


def _open(messages: list[Message], ledger: Ledger) -> None:
    """Put words of a user before an answer that nothing was asked for (T76, T77).

    They stand there as long as the conversation begins so, and the prefix stays what it was.
    """
    place = next((n for n, message in enumerate(messages) if message.role not in INSTRUCTING), None)
    first = messages[-1 if place is None else place] if messages else None
    if first is None or first.role == Role.USER or is_native(first, ledger.target):
        return
    ledger.synthesised(messages[0], "text", "$", "the target wants a user to begin")
    at = len(messages) if place is None else place
    opening = replace(
        messages[max(0, at - 1)],  # what stands before it is there from the beginning (T176)
        role=Role.USER,
        content=_OPENED,
        metadata=MessageMetadata(origin="projection"),
    )
    messages.insert(at, opening)


def _trimmed(last: Message, ledger: Ledger) -> Message:
    """The last turn without blanks at its end, where the model is to go on with it (T79)."""
    text = last.content[-1] if last.content else None
    if last.role != Role.ASSISTANT or is_native(last, ledger.target):
        return last
    if not isinstance(text, TextBlock) or text.text.rstrip() in ("", text.text):
        return last
    path = f"$.content[{len(last.content) - 1}]"
    ledger.altered(last, "text", path, "blanks at the end of the last turn are not taken")
    end = replace(text, text=text.text.rstrip())
    return replace(last, content=(*last.content[:-1], end))
