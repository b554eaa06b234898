"""Exchanges: calls and their results. Every call is answered once, at once, in order.

Repairs act on whole exchanges and never between a call and its results. The store is not touched:
what is made up or moved here is made up for one request.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.call_ids import settle_ids
from metis.projection.content import with_blocks
from metis.projection.critical import fail_if_critical
from metis.projection.ledger import Ledger
from metis.projection.target import Target, is_native

NO_RESULT = "No result of this call is available. It may or may not have run."
"""What an unanswered call is answered with; it claims nothing about the cause (T21)."""


def repair_exchanges(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The same conversation with every call answered right after it, once (T15, T17, T19-T23)."""
    messages = [part for message in messages for part in _single_results(message, ledger)]
    messages = settle_ids(messages, ledger)
    answers = _answers(messages, ledger)
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == Role.TOOL:
            result = result_of(message)
            if result is not None and index in answers.orphans and ledger.target.remembers:
                repaired.append(message)  # its call lies in an answer that the target keeps
            elif result is None or index in answers.orphans:
                repaired.append(_flattened(message, ledger))
            continue
        repaired.append(message)
        calls = calls_of(message)
        if calls:
            repaired += [answers.take(call, message, ledger) for call in calls]
    return repaired


def are_whole(messages: Sequence[Message], target: Target) -> bool:
    """Whether nothing has to be repaired; the common case, and a quick look.

    What came from the target itself may have several answers in a row before their results, and
    results in any order.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message.role == Role.TOOL:
            result = result_of(message)
            if result is None or len(message.content) != 1:
                return False
            is_kept = target.remembers and result.tool_use_id not in seen
            if result.tool_use_id not in waiting and not is_kept:
                return False
            if result.tool_use_id not in waiting:
                continue
            if result.tool_use_id != waiting[0] and not is_native(message, target):
                return False
            waiting.remove(result.tool_use_id)
            continue
        if waiting and not (message.role == Role.ASSISTANT and is_native(message, target)):
            return False
        for call in calls_of(message):
            if call.id in seen or not call.id:
                return False
            seen.add(call.id)
            waiting.append(call.id)
    return not waiting


class _Answers:
    """The results of a conversation by the call that they answer."""

    def __init__(self) -> None:
        self.by_call: dict[str, Message] = {}
        self.orphans: set[int] = set()

    def take(self, call: ToolUseBlock, message: Message, ledger: Ledger) -> Message:
        """The result of a call, or one that is made up."""
        found = self.by_call.pop(call.id, None)
        if found is not None:
            return found
        reason = f"the call of {call.name} has no result"
        ledger.synthesised(message, "tool_result", "$.content", reason)
        result = ToolResultBlock(call.id, (TextBlock(NO_RESULT),), is_error=True)
        return Message(
            id=message.id,
            session_id=message.session_id,
            role=Role.TOOL,
            content=(result,),
            created_at=message.created_at,
            metadata=MessageMetadata(parent_tool_use_id=call.id, origin="projection"),
        )


def _answers(messages: Sequence[Message], ledger: Ledger) -> _Answers:
    answers = _Answers()
    turn_of: dict[str, int] = {}
    turn = -1
    for index, message in enumerate(messages):
        if message.role != Role.TOOL:
            turn = index
            turn_of.update((call.id, index) for call in calls_of(message))
            continue
        result = result_of(message)
        if result is None or result.tool_use_id not in turn_of:
            answers.orphans.add(index)
            continue
        first = answers.by_call.get(result.tool_use_id)
        if first is not None:
            reason = "another result of the same call came later"
            fail_if_critical(first.content[0], first, "$.content[0]", reason)
            ledger.dropped(first, "tool_result", "$.content[0]", reason)
        if turn_of[result.tool_use_id] != turn:
            reason = "moved to the call that it answers"
            ledger.altered(message, "tool_result", "$.content[0]", reason)
        answers.by_call[result.tool_use_id] = message
    return answers


_GONE = "the call that it answers is not in the history; sent as text"


def _flattened(message: Message, ledger: Ledger, reason: str = _GONE) -> Message:
    """A result without a call, as words of the user (T20)."""
    result = result_of(message)
    inner = message.content if result is None else result.content
    fail_if_critical(message.content[0], message, "$.content[0]", reason)
    ledger.altered(message, message.content[0].type, "$.content[0]", reason)
    lead = TextBlock("Result of an earlier tool call:")
    told = with_blocks(message, [(0, lead), *((0, block) for block in inner)])
    metadata = replace(told.metadata, parent_tool_use_id=None)
    return replace(told, role=Role.USER, metadata=metadata)


def _single_results(message: Message, ledger: Ledger) -> list[Message]:
    """A tool message with several blocks as several messages, one block each."""
    if message.role != Role.TOOL or len(message.content) == 1:
        return [message]
    if not message.content:
        ledger.dropped(message, "message", "$", "it holds nothing that can be sent")
    parts: list[Message] = []
    for index, block in enumerate(message.content):
        place = f"$.content[{index}]"
        hints = tuple(replace(h, after=0) for h in message.metadata.hints if h.after == index)
        if isinstance(block, ToolResultBlock):
            ledger.altered(message, block.type, place, "the result is sent as a message of its own")
            about = replace(message.metadata, parent_tool_use_id=block.tool_use_id, hints=hints)
            parts.append(replace(message, content=(block,), metadata=about))
        else:
            ledger.altered(message, block.type, place, "no result; sent as a user message")
            about = replace(message.metadata, parent_tool_use_id=None, hints=hints)
            parts.append(replace(message, role=Role.USER, content=(block,), metadata=about))
    return parts


def flatten_exchanges(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """Calls and results as text, for a model that takes no tools; nothing that was said is lost."""
    flat: list[Message] = []
    for message in messages:
        if is_native(message, ledger.target):
            flat.append(message)
        elif message.role == Role.TOOL:
            flat.append(_flattened(message, ledger, "the model takes no tools; sent as text"))
        elif calls_of(message):
            flat.append(_told(message, ledger))
        else:
            flat.append(message)
    return flat


def _told(message: Message, ledger: Ledger) -> Message:
    content: list[ContentBlock] = []
    for index, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock):
            reason = "the model takes no tools; sent as text"
            fail_if_critical(block, message, f"$.content[{index}]", reason)
            ledger.altered(message, "tool_use", f"$.content[{index}]", reason)
            content.append(told_call(block))
        else:
            content.append(block)
    return replace(message, content=tuple(content))


def told_call(call: ToolUseBlock) -> TextBlock:
    """A call in words; arguments that were no JSON are told as they came."""
    if call.invalid is not None:
        return TextBlock(f"[called {call.name} with {call.invalid.raw}]")
    arguments = msgspec.json.encode(call.input, order="deterministic").decode()
    return TextBlock(f"[called {call.name} with {arguments}]")


def calls_of(message: Message) -> list[ToolUseBlock]:
    """The calls that an answer holds."""
    if message.role != Role.ASSISTANT:
        return []
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def result_of(message: Message) -> ToolResultBlock | None:
    """The result that a tool message holds."""
    if message.role != Role.TOOL or not message.content:
        return None
    block = message.content[0]
    return block if isinstance(block, ToolResultBlock) else None
