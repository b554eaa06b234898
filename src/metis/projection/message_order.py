"""Order of messages at a target: who may be first, after whom and last, and in how many texts."""

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
"""The first user message, where a target needs one and the history has none."""
BRIDGE_TEXT = "OK."
"""The assistant message between a result and a user, where the target needs one (T80)."""
CONTINUE_TEXT = "Continue."
"""The last user message, where the target needs one and the history has none (T78, T81)."""
INSTRUCTION_ROLES = (Role.SYSTEM, Role.DEVELOPER)

_OPENING = (TextBlock(OPENING_TEXT),)
_JOINED_TEXT = "the target accepts one text per message; joined with the text before it"


def is_opening(message: Message) -> bool:
    """Whether a message is the made-up first user message."""
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
    # Anthropic and Gemini refuse a history that begins with a response (T76, T77).
    # It stays there as long as the history begins so, and the cached prefix remains valid.
    roles = enumerate(message.role for message in messages)
    first = next((index for index, role in roles if role not in INSTRUCTION_ROLES), None)
    message = messages[-1 if first is None else first] if messages else None
    if message is None or message.role == Role.USER or is_native(message, recorder.target):
        return
    recorder.record_synthesised(messages[0], "text", "$", "the target needs a user message first")
    at = len(messages) if first is None else first
    opening = replace(
        messages[max(0, at - 1)],  # what stands before it is there from the beginning (T176)
        role=Role.USER,
        content=_OPENING,
        metadata=MessageMetadata(origin="projection"),
    )
    messages.insert(at, opening)


def _without_trailing_space(last: Message, recorder: LossRecorder) -> Message:
    # Anthropic answers 400 to a last assistant message that ends in whitespace (T79).
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
        sent = _join_neighbours(sent, recorder)
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
    """Return whether a message only says that the model should go on."""
    first = message.content[0] if len(message.content) == 1 else None
    return isinstance(first, TextBlock) and first.text == CONTINUE_TEXT


def _join_neighbours(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    # Chat templates of open models raise on two messages of one role in a row (T72, T74).
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is None or not _may_join(before, message, recorder.target):
            joined.append(message)
            continue
        reason = f"joined with the {message.role} message before it"
        recorder.record_altered(message, "message", "$", reason)
        content = before.content + message.content
        joined[-1] = replace(before, content=content, metadata=before.metadata.comparable())
    return joined


def _may_join(before: Message, message: Message, target: Target) -> bool:
    return (
        message.role == before.role != Role.TOOL
        and not (is_native(before, target) and is_native(message, target))
        and not any(isinstance(block, ToolUseBlock) for block in before.content)
    )


def _add_bridges(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    # Mistral answers 400 to a user message directly after a tool result (T80).
    bridged: list[Message] = []
    for message in messages:
        follows = bool(bridged) and bridged[-1].role == Role.TOOL and message.role == Role.USER
        if follows and not is_native(message, recorder.target):
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
    """Whether the provider itself goes on with a response: its server tools were still running."""
    last = message.content[-1] if message.content else None
    is_paused = message.metadata.stop_reason is StopReason.PAUSE
    return is_paused and isinstance(last, OpaqueBlock) and last.issuer in target.issuers


def is_unfinished(message: Message) -> bool:
    """Whether a response is only a beginning, which a model can be asked to continue."""
    return message.metadata.model is None or message.metadata.status != MessageStatus.COMPLETE


def _text_message(role: Role, text: str, beside: Message) -> Message:
    return Message(
        id=beside.id,
        session_id=beside.session_id,
        role=role,
        content=(TextBlock(text),),
        created_at=beside.created_at,
        metadata=MessageMetadata(origin="projection"),
    )


def _with_one_text(message: Message, recorder: LossRecorder) -> Message:
    # Servers with simple chat templates print a list of parts instead of its text (T86).
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
