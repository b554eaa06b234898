"""Projection of the message order: first and last message, alternating roles, joined texts."""

from collections.abc import Sequence
from typing import TypeGuard

from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason
from metis.projection.loss import LossRecorder
from metis.projection.target import Target, is_native

OPENING_TEXT = "(The conversation begins here.)"
"""The synthesised first user message, for targets that need one."""
BRIDGE_TEXT = "OK."
"""The synthesised assistant message between a result and a user message (T80)."""
CONTINUE_TEXT = "Continue."
"""The synthesised last user message, for targets that need one (T78, T81)."""
INSTRUCTION_ROLES = (Role.SYSTEM, Role.DEVELOPER)

_OPENING = (TextBlock(OPENING_TEXT),)
_JOINED_TEXT = "the target accepts one text per message; joined with the text before it"


def is_opening(message: Message) -> bool:
    """Whether a message is the synthesised first user message."""
    return message.metadata.origin == "projection" and message.content == _OPENING


def fit_first_and_last(
    messages: Sequence[Message], recorder: LossRecorder, *, is_start: bool
) -> list[Message]:
    """Return the history with a first and a last message that the target accepts."""
    sent = list(messages)
    if recorder.target.starts_with_user and is_start:
        _add_opening(sent, recorder)
    if not recorder.target.accepts_trailing_space and sent:
        sent[-1] = _without_trailing_space(sent[-1], recorder)
    return sent


def _add_opening(messages: list[Message], recorder: LossRecorder) -> None:
    """Insert a user message before a history that begins with another role."""
    # Anthropic and Gemini reject a history that begins with a response (T76, T77). The opening is
    # the same in every request, so that the cached prefix remains valid.
    roles = enumerate(message.role for message in messages)
    first = next((index for index, role in roles if role not in INSTRUCTION_ROLES), None)
    message = messages[-1 if first is None else first] if messages else None
    if message is None or message.role == Role.USER or is_native(message, recorder.target):
        return
    recorder.record_synthesised(messages[0], "text", "$", "the target needs a user message first")
    index = len(messages) if first is None else first
    opening = replace(
        messages[max(0, index - 1)],  # the preceding message is the same in every request (T176)
        role=Role.USER,
        content=_OPENING,
        metadata=MessageMetadata(origin="projection"),
    )
    messages.insert(index, opening)


def _without_trailing_space(last: Message, recorder: LossRecorder) -> Message:
    # Anthropic rejects a last assistant message that ends in whitespace with 400 (T79).
    text = last.content[-1] if last.content else None
    if last.role != Role.ASSISTANT or is_native(last, recorder.target):
        return last
    if not isinstance(text, TextBlock) or text.text.rstrip() in ("", text.text):
        return last
    path = f"$.content[{len(last.content) - 1}]"
    reason = "whitespace at the end of the last message is not accepted"
    recorder.record_altered(last, "text", path, reason)
    return replace(last, content=(*last.content[:-1], replace(text, text=text.text.rstrip())))


def fit_message_order(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the history in an order of roles that the target accepts."""
    target = recorder.target
    sent = list(messages)
    if target.alternates_roles:
        sent = _join_adjacent(sent, recorder)
    if not target.allows_user_after_tool:
        sent = _add_bridges(sent, recorder)
    if sent and not _may_be_last(sent[-1], target):
        reason = "the target needs a user message last"
        recorder.record_synthesised(sent[-1], "message", "$", reason)
        sent.append(_text_message(Role.USER, CONTINUE_TEXT, sent[-1]))
    if target.joins_text:
        sent = [_with_one_text(message, recorder) for message in sent]
    return sent


def is_filler(message: Message) -> bool:
    """Whether the only block of a message is the text of a synthesised last prompt."""
    first = message.content[0] if len(message.content) == 1 else None
    return isinstance(first, TextBlock) and first.text == CONTINUE_TEXT


def _join_adjacent(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the history with adjacent messages of one role joined."""
    # Chat templates of open models fail on two adjacent messages of one role (T72, T74).
    joined: list[Message] = []
    for message in messages:
        previous = joined[-1] if joined else None
        if previous is None or not _may_join(previous, message, recorder.target):
            joined.append(message)
            continue
        reason = f"joined with the {message.role} message before it"
        recorder.record_altered(message, "message", "$", reason)
        content = previous.content + message.content
        joined[-1] = replace(previous, content=content, metadata=previous.metadata.comparable())
    return joined


def _may_join(previous: Message, message: Message, target: Target) -> bool:
    return (
        message.role == previous.role != Role.TOOL
        and not (is_native(previous, target) and is_native(message, target))
        and not any(isinstance(block, ToolUseBlock) for block in previous.content)
    )


def _add_bridges(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    # Mistral rejects a user message directly after a tool result with 400 (T80).
    bridged: list[Message] = []
    for message in messages:
        follows_tool = bool(bridged) and bridged[-1].role == Role.TOOL
        is_user = message.role == Role.USER
        if follows_tool and is_user and not is_native(message, recorder.target):
            reason = "the target needs an assistant message between a result and a user message"
            recorder.record_synthesised(message, "message", "$", reason)
            bridged.append(_text_message(Role.ASSISTANT, BRIDGE_TEXT, message))
        bridged.append(message)
    return bridged


def _may_be_last(message: Message, target: Target) -> bool:
    if message.role != Role.ASSISTANT or target.prefill == "any" or is_native(message, target):
        return True
    return _is_paused(message, target) or (
        target.prefill == "unfinished" and is_unfinished(message)
    )


def _is_paused(message: Message, target: Target) -> bool:
    """Whether the provider continues a response whose server tools were still running."""
    last = message.content[-1] if message.content else None
    is_paused = message.metadata.stop_reason is StopReason.PAUSE
    return is_paused and isinstance(last, OpaqueBlock) and last.issuer in target.issuers


def is_unfinished(message: Message) -> bool:
    """Whether an assistant message is incomplete, so that a model can continue it."""
    return message.metadata.model is None or message.metadata.status != MessageStatus.COMPLETE


def _text_message(role: Role, text: str, adjacent: Message) -> Message:
    """Return a synthesised message with the ids and the time of an adjacent one."""
    return Message(
        id=adjacent.id,
        session_id=adjacent.session_id,
        role=role,
        content=(TextBlock(text),),
        created_at=adjacent.created_at,
        metadata=MessageMetadata(origin="projection"),
    )


def _with_one_text(message: Message, recorder: LossRecorder) -> Message:
    """Return a message with its texts, or those of its result, joined to one."""
    # Servers with simple chat templates show a list of parts as Python text to the model (T86).
    if is_native(message, recorder.target):
        return message
    match message.content:
        case (ToolResultBlock() as result,) if _is_text(result.content):
            recorder.record_altered(message, "tool_result", "$.content[0]", _JOINED_TEXT)
            block: ContentBlock = replace(result, content=(_joined_text(result.content),))
        case content if _is_text(content):
            for index in range(1, len(content)):
                recorder.record_altered(message, "text", f"$.content[{index}]", _JOINED_TEXT)
            block = _joined_text(content)
        case _:
            return message
    return replace(message, content=(block,), metadata=message.metadata.comparable())


def _is_text(content: tuple[ContentBlock, ...]) -> TypeGuard[tuple[TextBlock, ...]]:
    return len(content) > 1 and all(isinstance(block, TextBlock) for block in content)


def _joined_text(content: tuple[TextBlock, ...]) -> TextBlock:
    citations = tuple(citation for block in content for citation in block.citations)
    return TextBlock("\n\n".join(block.text for block in content), citations)
