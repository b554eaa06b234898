"""Turns on their way to a target: who may speak after whom, who last, and in how many texts."""

from collections.abc import Sequence
from typing import TypeGuard

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus
from metis.projection.ledger import Ledger
from metis.projection.target import Target, is_native

BRIDGE = "OK."
"""What an assistant says between a result and a user, where the target wants somebody to (T80)."""
CONTINUE = "Continue."
"""What a user says last, where the target wants a user to (T78, T81)."""


def place_turns(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The same conversation in turns that the target takes; calls stay beside their results."""
    target = ledger.target
    turns = list(messages)
    if target.alternates:
        turns = _joined(turns, ledger)
    if not target.user_after_tool:
        turns = _bridged(turns, ledger)
    if turns and not _may_be_last(turns[-1], target):
        ledger.synthesised(turns[-1], "message", "$", "the target wants a user to speak last")
        turns.append(_said(Role.USER, CONTINUE, turns[-1]))
    if target.joins_text:
        turns = [_with_one_text(message, ledger) for message in turns]
    return turns


def are_turns_free(messages: Sequence[Message], target: Target) -> bool:
    """Whether a target leaves it to the conversation who speaks when, as most do."""
    if target.alternates or target.joins_text or not target.user_after_tool:
        return False
    return target.prefill == "any" or not messages or messages[-1].role != Role.ASSISTANT


def _joined(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """Neighbours of one role as one message, each part still for itself (T72, T74)."""
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is None or not _may_join(before, message, ledger.target):
            joined.append(message)
            continue
        ledger.altered(message, "message", "$", f"joined with the {message.role} message before it")
        content = before.content + message.content
        metadata = before.metadata.meaningful()
        joined[-1] = replace(before, content=content, metadata=metadata)
    return joined


def _may_join(before: Message, message: Message, target: Target) -> bool:
    return (
        message.role == before.role != Role.TOOL
        and not (is_native(before, target) and is_native(message, target))
        and not any(isinstance(block, ToolUseBlock) for block in before.content)
    )


def _bridged(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    bridged: list[Message] = []
    for message in messages:
        follows = bool(bridged) and bridged[-1].role == Role.TOOL and message.role == Role.USER
        if follows and not is_native(message, ledger.target):
            reason = "the target wants an assistant to speak between a result and a user"
            ledger.synthesised(message, "message", "$", reason)
            bridged.append(_said(Role.ASSISTANT, BRIDGE, message))
        bridged.append(message)
    return bridged


def _may_be_last(message: Message, target: Target) -> bool:
    if message.role != Role.ASSISTANT or target.prefill == "any" or is_native(message, target):
        return True
    return target.prefill == "begun" and is_begun(message)


def is_begun(message: Message) -> bool:
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


def _with_one_text(message: Message, ledger: Ledger) -> Message:
    """The message with its texts as one, if it holds nothing else (T86)."""
    if is_native(message, ledger.target):
        return message
    match message.content:
        case (ToolResultBlock() as result,) if _is_text(result.content):
            ledger.altered(message, "tool_result", "$.content[0]", _ONE)
            block: ContentBlock = replace(result, content=(_one(result.content),))
        case content if _is_text(content):
            for index in range(1, len(content)):
                ledger.altered(message, "text", f"$.content[{index}]", _ONE)
            block = _one(content)
        case _:
            return message
    metadata = message.metadata.meaningful()
    return replace(message, content=(block,), metadata=metadata)


_ONE = "the target takes one text a message; joined with the text before it"


def _is_text(content: tuple[ContentBlock, ...]) -> TypeGuard[tuple[TextBlock, ...]]:
    return len(content) > 1 and all(isinstance(block, TextBlock) for block in content)


def _one(content: tuple[TextBlock, ...]) -> TextBlock:
    citations = tuple(citation for block in content for citation in block.citations)
    return TextBlock("\n\n".join(block.text for block in content), citations)
