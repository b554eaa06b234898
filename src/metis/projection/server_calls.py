"""Calls that a provider ran itself: a half without its other half is not sent (T197)."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from metis.canonical.blocks import OpaqueBlock
from metis.canonical.message import Message, Role
from metis.projection.content import with_blocks
from metis.projection.critical import fail_if_critical
from metis.projection.ledger import Ledger
from metis.projection.target import is_native

_CALLS = ("server_tool_use", "mcp_tool_use")
_RESULT = "_tool_result"


def drop_halves(messages: Sequence[Message], ledger: Ledger) -> list[Message]:
    """The conversation without server-side calls that have no result, and the other way round.

    They are never answered by a client. A call in the last turn may still be going on.
    """
    if not any(isinstance(block, OpaqueBlock) for m in messages for block in m.content):
        return list(messages)
    issuers = ledger.target.issuers
    halves = [half for message in messages for half in _halves(message, issuers)]
    called = {own for _, own, is_call in halves if is_call}
    answered = {own for _, own, is_call in halves if not is_call}
    whole = called & answered
    kept: list[Message] = []
    for index, message in enumerate(messages):
        is_open = index == len(messages) - 1 and message.role == Role.ASSISTANT
        lost = [
            place
            for place, own, is_call in _halves(message, issuers)
            if own not in whole and not (is_call and is_open)
        ]
        is_kept = not lost or is_native(message, ledger.target)
        kept.append(message if is_kept else _without(message, lost, ledger))
    return kept


def _halves(message: Message, issuers: frozenset[str]) -> Iterator[tuple[int, str, bool]]:
    """The index and the id of each half in a message, and whether it is the call."""
    for index, block in enumerate(message.content):
        if not isinstance(block, OpaqueBlock) or block.kind is None or block.issuer not in issuers:
            continue
        is_call = block.kind in _CALLS
        if is_call or block.kind.endswith(_RESULT):
            own = _id_of(block.data, is_call=is_call)
            if isinstance(own, str):
                yield index, own, is_call


def _id_of(data: Any, *, is_call: bool) -> Any:
    """The id that both halves name; Bedrock has it one level deeper than others."""
    part = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    inner = part.get("toolUse" if is_call else "toolResult")
    if isinstance(inner, dict):
        return cast("dict[str, Any]", inner).get("toolUseId")
    return part.get("id" if is_call else "tool_use_id")


def _without(message: Message, lost: Sequence[int], ledger: Ledger) -> Message:
    reason = "a call that the provider ran and its result belong together, and one is missing"
    for index in lost:
        path = f"$.content[{index}]"
        fail_if_critical(message.content[index], message, path, reason)
        ledger.dropped(message, "opaque", path, reason)
    left = [(index, block) for index, block in enumerate(message.content) if index not in lost]
    return with_blocks(message, left)
