"""Ids of calls within one request: each names one call, also where a history reuses them."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.projection.content import Placed, with_blocks
from metis.projection.critical import fail_if_critical
from metis.projection.ledger import Ledger

_Block = TypeVar("_Block", ToolUseBlock, ToolResultBlock)


def settle_ids(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The same calls and results under ids of which none is empty or names two calls (T08-T10).

    A new id depends on what came before it only, so it is the same in every later request.
    """
    ids = _Ids(ledger)
    return [ids.settle(message) for message in messages]


class _Ids:
    """The ids that were given so far; results follow the calls of the last turn with their id."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._counts: dict[str, int] = {}
        self._used: set[str] = set()
        self._waiting: dict[str, list[str]] = {}
        self._last: dict[str, str] = {}

    def settle(self, message: Message) -> Message:
        if message.role == Role.ASSISTANT:
            return self._settle_calls(message)
        if message.role == Role.TOOL:
            return self._settle_result(message)
        return message

    def _settle_calls(self, message: Message) -> Message:
        calls: list[ToolUseBlock] = []
        kept: list[Placed] = []
        for index, block in enumerate(message.content):
            if not isinstance(block, ToolUseBlock):
                kept.append((index, block))
            elif block.id and block in calls:
                reason = "the turn holds the same call twice"
                fail_if_critical(block, message, f"$.content[{index}]", reason)
                self._ledger.dropped(message, "tool_use", f"$.content[{index}]", reason)
            else:
                is_first = not any(call.id == block.id for call in calls)
                calls.append(block)
                kept.append((index, self._settle_call(block, message, index, is_first=is_first)))
        same = len(kept) == len(message.content) and all(
            block is message.content[index] for index, block in kept
        )
        return message if same else with_blocks(message, kept)

    def _settle_call(
        self, call: ToolUseBlock, message: Message, index: int, *, is_first: bool
    ) -> ToolUseBlock:
        count = self._counts.get(call.id, 0)
        self._counts[call.id] = count + 1
        new = call.id
        while not new or new in self._used:
            new = hashed_tool_id(message.session_id, call.id, str(count))
            count += 1
        self._used.add(new)
        if is_first:
            self._waiting[call.id] = []
        self._waiting[call.id].append(new)
        return self._renamed(call, "id", new, message, index)

    def _settle_result(self, message: Message) -> Message:
        result = message.content[0] if message.content else None
        if not isinstance(result, ToolResultBlock):
            return message
        theirs = result.tool_use_id
        waiting = self._waiting.get(theirs)
        new = waiting.pop(0) if waiting else self._last.get(theirs, theirs)
        self._last[theirs] = new
        if new == theirs:
            return message
        named = self._renamed(result, "tool_use_id", new, message, 0)
        metadata = replace(message.metadata, parent_tool_use_id=new)
        return replace(message, content=(named,), metadata=metadata)

    def _renamed(self, block: _Block, field: str, new: str, message: Message, index: int) -> _Block:
        old = getattr(block, field)
        if old == new:
            return block
        reason = "the id names another call, too" if old else "the call has no id"
        self._ledger.altered(message, block.type, f"$.content[{index}].{field}", reason)
        return replace(block, **{field: new})
