"""Order of messages at a target.

who may speak first, after whom and last, and in how many texts.
"""

from collections.abc import Sequence
from typing import TypeGuard

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus
from metis.projection.loss import LossRecorder
from metis.projection.target import Target, is_native

OPENING_TEXT = "(The conversation begins here.)"
"""What stands in for the first words of a user where a target wants some."""

INSTRUCTION_ROLES = (Role.SYSTEM, Role.DEVELOPER)
"""The roles of those who ask nothing."""


_OPENED = (TextBlock(OPENING_TEXT),)


def is_opening(message: Message) -> bool:
    """Whether a message stands in for the first words of a user."""
    return message.metadata.origin == "projection" and message.content == _OPENED


def fit_first_and_last(
    messages: Sequence[Message], ledger: LossRecorder, *, is_start: bool
) -> list[Message]:
    """The conversation as its target wants it to begin and to end."""
    sent = list(messages)
    if ledger.target.starts_with_user and is_start:
        _open(sent, ledger)
    if not ledger.target.accepts_trailing_space and sent:
        sent[-1] = _trimmed(sent[-1], ledger)
    return sent


def _open(messages: list[Message], ledger: LossRecorder) -> None:
    """Put words of a user before an answer that nothing was asked for (T76, T77).

    They stand there as long as the conversation begins so, and the prefix stays what it was.
    """
    place = next(
        (n for n, message in enumerate(messages) if message.role not in INSTRUCTION_ROLES), None
    )
    first = messages[-1 if place is None else place] if messages else None
    if first is None or first.role == Role.USER or is_native(first, ledger.target):
        return
    ledger.record_synthesised(messages[0], "text", "$", "the target wants a user to begin")
    at = len(messages) if place is None else place
    opening = replace(
        messages[max(0, at - 1)],  # what stands before it is there from the beginning (T176)
        role=Role.USER,
        content=_OPENED,
        metadata=MessageMetadata(origin="projection"),
    )
    messages.insert(at, opening)


def _trimmed(last: Message, ledger: LossRecorder) -> Message:
    """The last turn without blanks at its end, where the model is to go on with it (T79)."""
    text = last.content[-1] if last.content else None
    if last.role != Role.ASSISTANT or is_native(last, ledger.target):
        return last
    if not isinstance(text, TextBlock) or text.text.rstrip() in ("", text.text):
        return last
    path = f"$.content[{len(last.content) - 1}]"
    ledger.record_altered(last, "text", path, "blanks at the end of the last turn are not taken")
    end = replace(text, text=text.text.rstrip())
    return replace(last, content=(*last.content[:-1], end))


BRIDGE_TEXT = "OK."
"""What an assistant says between a result and a user, where the target wants somebody to (T80)."""
CONTINUE_TEXT = "Continue."
"""What a user says last, where the target wants a user to (T78, T81)."""


def fit_message_order(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The same conversation in turns that the target takes; calls stay beside their results."""
    target = ledger.target
    turns = list(messages)
    if target.alternates_roles:
        turns = _joined(turns, ledger)
    if not target.allows_user_after_tool:
        turns = _bridged(turns, ledger)
    if turns and not _may_be_last(turns[-1], target):
        ledger.record_synthesised(
            turns[-1], "message", "$", "the target wants a user to speak last"
        )
        turns.append(_said(Role.USER, CONTINUE_TEXT, turns[-1]))
    if target.joins_text:
        turns = [_with_one_text(message, ledger) for message in turns]
    return turns


def has_free_order(messages: Sequence[Message], target: Target) -> bool:
    """Whether a target leaves it to the conversation who speaks when, as most do."""
    if target.alternates_roles or target.joins_text or not target.allows_user_after_tool:
        return False
    return target.prefill == "any" or not messages or messages[-1].role != Role.ASSISTANT


def _joined(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """Neighbours of one role as one message, each part still for itself (T72, T74)."""
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is None or not _may_join(before, message, ledger.target):
            joined.append(message)
            continue
        ledger.record_altered(
            message, "message", "$", f"joined with the {message.role} message before it"
        )
        content = before.content + message.content
        metadata = before.metadata.comparable()
        joined[-1] = replace(before, content=content, metadata=metadata)
    return joined


def _may_join(before: Message, message: Message, target: Target) -> bool:
    return (
        message.role == before.role != Role.TOOL
        and not (is_native(before, target) and is_native(message, target))
        and not any(isinstance(block, ToolUseBlock) for block in before.content)
    )


def _bridged(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    bridged: list[Message] = []
    for message in messages:
        follows = bool(bridged) and bridged[-1].role == Role.TOOL and message.role == Role.USER
        if follows and not is_native(message, ledger.target):
            reason = "the target wants an assistant to speak between a result and a user"
            ledger.record_synthesised(message, "message", "$", reason)
            bridged.append(_said(Role.ASSISTANT, BRIDGE_TEXT, message))
        bridged.append(message)
    return bridged


def _may_be_last(message: Message, target: Target) -> bool:
    if message.role != Role.ASSISTANT or target.prefill == "any" or is_native(message, target):
        return True
    return target.prefill == "unfinished" and is_unfinished(message)


def is_unfinished(message: Message) -> bool:
    """Whether an answer was only begun, so that a model can be asked to go on with it."""
    return message.metadata.model is None or message.metadata.status != MessageStatus.COMPLETE


def _said(role: Role, text: str, beside: Message) -> Message:
    return Message(
        id=beside.id,
        session_id=beside.session_id,
        role=role,
        content=(TextBlock(text),),
        created_at=beside.created_at,
        metadata=MessageMetadata(origin="projection"),
    )


def _with_one_text(message: Message, ledger: LossRecorder) -> Message:
    """The message with its texts as one, if it holds nothing else (T86)."""
    if is_native(message, ledger.target):
        return message
    match message.content:
        case (ToolResultBlock() as result,) if _is_text(result.content):
            ledger.record_altered(message, "tool_result", "$.content[0]", _ONE)
            block: ContentBlock = replace(result, content=(_one(result.content),))
        case content if _is_text(content):
            for index in range(1, len(content)):
                ledger.record_altered(message, "text", f"$.content[{index}]", _ONE)
            block = _one(content)
        case _:
            return message
    metadata = message.metadata.comparable()
    return replace(message, content=(block,), metadata=metadata)


_ONE = "the target takes one text a message; joined with the text before it"


def _is_text(content: tuple[ContentBlock, ...]) -> TypeGuard[tuple[TextBlock, ...]]:
    return len(content) > 1 and all(isinstance(block, TextBlock) for block in content)


def _one(content: tuple[TextBlock, ...]) -> TextBlock:
    citations = tuple(citation for block in content for citation in block.citations)
    return TextBlock("\n\n".join(block.text for block in content), citations)
