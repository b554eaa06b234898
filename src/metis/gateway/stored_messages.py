"""Messages of a request as those of a stored session: ids, times, parents, results of calls."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import InvalidMessageError
from metis.canonical.ids import new_tool_use_id, new_ulid
from metis.canonical.message import Message, Role
from metis.gateway.client_sessions import leading_system
from metis.gateway.exchange import Exchange
from metis.gateway.stored_exchange import elapsed_ms, note, principal
from metis.store.append import PreparedMessage, prepare_message
from metis.store.entries import SidecarEntry
from metis.store.exchanges import HistoryEnd
from metis.wire.original_form import with_tool_ids

INVALID_KIND = "gateway.invalid_message"
"""The kind of the sidecar entry with a message that breaks rules of the store."""


_MICROSECOND = timedelta(microseconds=1)


def run_of_calls(messages: Sequence[Message]) -> list[str]:
    """Return the ids of the calls that the last response of a history made, in order."""
    calls: list[str] = []
    in_run = False
    for message in reversed(messages):
        if message.role is Role.ASSISTANT:
            in_run = True
            calls[:0] = [block.id for block in message.content if type(block) is ToolUseBlock]
        elif in_run:
            break
    return calls


def last_run_start(messages: Sequence[Message]) -> int:
    """Return the position of the first message of the last response of a history."""
    position = len(messages)
    while position and messages[position - 1].role is not Role.ASSISTANT:
        position -= 1
    while position and messages[position - 1].role is Role.ASSISTANT:
        position -= 1
    return position


def answered_calls(messages: Sequence[Message]) -> set[str]:
    """Return the ids of the calls that these messages answer."""
    return {
        block.tool_use_id
        for message in messages
        if message.role is Role.TOOL
        for block in message.content
        if isinstance(block, ToolResultBlock)
    }


class StoredMessages:
    """Turns messages of a request into those of a stored session, with ids of that session."""

    def __init__(
        self, exchange: Exchange, call_ids: Mapping[str, str], parent: HistoryEnd | None
    ) -> None:
        """Start behind a history; `call_ids` are the stored ids of its calls by those read."""
        self._exchange = exchange
        self._at = exchange.started_at
        self._call_ids = dict(call_ids)
        self._parents = () if parent is None else (parent.message_id,)
        self._last_calls = () if parent is None else parent.call_ids
        self._in_run = False
        self._last_id = ""
        self.count = 0
        """How many messages were added."""

    def end(self) -> HistoryEnd:
        """Return the end of the history up to the last message that was added."""
        return HistoryEnd(self._exchange.session_id, self._last_id, self._last_calls)

    def add(self, message: Message) -> PreparedMessage | SidecarEntry:
        """Add a message of the request; one that breaks a rule becomes a journal entry."""
        tenant = self._exchange.tenant
        if not self._is_answer(message):
            return self._invalid(message, "a result without a call")
        names = {"user_id": principal(tenant.user_id), "team_id": principal(tenant.team_id)}
        return self._append(message, {name: value for name, value in names.items() if value})

    def add_response(self, message: Message) -> PreparedMessage | SidecarEntry:
        """Add the response, which follows the request."""
        end = elapsed_ms(self._exchange)
        self._at = max(self._at, self._exchange.started_at + timedelta(milliseconds=end))
        return self._append(message, {})

    def _append(self, message: Message, changes: dict[str, Any]) -> PreparedMessage | SidecarEntry:
        calls = {b.id: new_tool_use_id() for b in message.content if type(b) is ToolUseBlock}
        self._call_ids.update(calls)
        metadata = message.metadata
        if metadata.parent_tool_use_id is not None:
            call = metadata.parent_tool_use_id
            changes["parent_tool_use_id"] = self._call_ids.get(call, call)
        if self._parents and not self.count:
            changes["parents"] = self._parents
        self._at += _MICROSECOND
        content = message.content
        if calls or message.role is Role.TOOL:
            content = tuple([self._with_ids(block) for block in content])
        stored = replace(
            message,
            id=new_ulid(),
            session_id=self._exchange.session_id,
            created_at=self._at,
            content=content,
            metadata=replace(metadata, **changes) if changes else metadata,
        )
        try:
            prepared = prepare_message(with_tool_ids(stored, calls) if calls else stored)
        except InvalidMessageError as error:
            return self._invalid(message, str(error))
        self.count += 1
        self._last_id = stored.id
        is_response = message.role is Role.ASSISTANT
        if is_response:
            earlier = self._last_calls if self._in_run else ()
            self._last_calls = (*earlier, *calls.values())
        self._in_run = is_response
        return prepared

    def _invalid(self, message: Message, reason: str) -> SidecarEntry:
        # Clients that cut their history leave results without calls; stores refuse them (M-138).
        data = {
            "exchange": self._exchange.id,
            "reason": reason,
            "role": message.role.value,
            "content": msgspec.to_builtins(message.content),
        }
        return note(self._exchange, INVALID_KIND, data)

    def _with_ids(self, block: ContentBlock) -> ContentBlock:
        if isinstance(block, ToolUseBlock):
            return replace(block, id=self._call_ids[block.id])
        if isinstance(block, ToolResultBlock):
            return replace(block, tool_use_id=self._call_ids[block.tool_use_id])
        return block

    def _is_answer(self, message: Message) -> bool:
        """Whether every result of a message answers a call of the stored thread."""
        return message.role is not Role.TOOL or all(
            block.tool_use_id in self._call_ids
            for block in message.content
            if isinstance(block, ToolResultBlock)
        )


def system_texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the system prompts in front."""
    return [
        block.text
        for message in leading_system(messages)
        for block in message.content
        if isinstance(block, TextBlock)
    ]
