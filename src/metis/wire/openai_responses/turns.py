"""Turns of OpenAI Responses: what the messages of a conversation become in a request.

A message is one item or several; they are kept as bytes, so that the next request writes what is
new. The first system message is no item: it becomes the instructions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.canonical.tools import ToolDefinition
from metis.wire.body import TurnRecord
from metis.wire.call import AdapterOptions
from metis.wire.openai_responses.calls import Calls
from metis.wire.openai_responses.items import EASY_RUN, Form, encode_items
from metis.wire.openai_responses.options import encode_options
from metis.wire.openai_responses.parts import PROTOCOL, encode_parts, write_json
from metis.wire.shape import Wire
from metis.wire.spelling import NOTHING, spelling_of

_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_IDS = {"ids"}
_BETWEEN = "\n\n"


class _Said(Struct, gc=False):
    content: str
    role: str


class _Answered(Struct, gc=False):
    content: str
    role: str = "assistant"
    type: str = "message"


class _Output(Struct, gc=False):
    call_id: str
    output: str
    type: str = "function_call_output"


class _Call(Struct, gc=False):
    arguments: str
    call_id: str
    name: str
    type: str = "function_call"


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    turns = Turns()
    turns.add(messages)
    return turns.body(tools, options)


class Turns:
    """The turns of a conversation, written once each."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._calls = Calls()
        self._instructions: str | None = None
        self._records: dict[bool, TurnRecord] = {}
        """The items for a provider that keeps nothing, and for one that does."""
        self._counts: dict[bool, int] = {}

    def copy(self) -> "Turns":
        """The same turns, to which others can be added."""
        other = Turns()
        other._messages = [*self._messages]
        other._calls = self._calls
        other._instructions = self._instructions
        other._records = {key: record.copy() for key, record in self._records.items()}
        other._counts = dict(self._counts)
        return other

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = NOTHING) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._calls.learn({"ids": ids})
        if messages and not self._messages and self._instructions is None:
            first = messages[0]
            if _instructs(first):
                self._instructions = _text_of(first.content)
                messages = messages[1:]
        for message in messages:
            if message.metadata.provider_raw is not None:
                self._calls.learn(spelling_of(message, PROTOCOL))
        self._messages += messages

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        given = options.native.get(PROTOCOL, NOTHING)
        previous = given.get("previous_response_id")
        is_stateless = given.get("store") is False
        known = 0 if previous is None else self._end_of(previous)
        bare = _bare(self._messages, known)
        if bare is not None:
            return write_json({**self._around(options, tools), "input": bare})
        if known:
            # Only what is new follows an answer that the provider keeps (T67).
            record = TurnRecord("input", write_json)
            record.add(self._items(self._messages[known:], is_stateless=is_stateless))
        else:
            record = self._all(is_stateless=is_stateless)
        if record.is_empty and PROTOCOL in options.native:
            # A client may leave the input out: a stored prompt or conversation has its own.
            return write_json(self._around(options, tools))
        return record.body(tools, options, self._around)

    def _around(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._instructions is not None:
            wire["instructions"] = self._instructions
        return wire

    def _all(self, *, is_stateless: bool) -> TurnRecord:
        record = self._records.get(is_stateless)
        if record is None:
            record = self._records[is_stateless] = TurnRecord("input", write_json)
        count = self._counts.get(is_stateless, 0)
        record.add(self._items(self._messages[count:], is_stateless=is_stateless))
        self._counts[is_stateless] = len(self._messages)
        return record

    def _end_of(self, previous: Any) -> int:
        """How many messages the provider keeps already, up to an answer of its own."""
        ends = (
            index + 1
            for index, message in enumerate(self._messages)
            if message.metadata.response_id == previous
        )
        return max(ends, default=0)

    def _items(self, messages: Sequence[Message], *, is_stateless: bool) -> list[Any]:
        items: list[Any] = []
        for message in messages:
            raw = message.metadata.provider_raw
            spelling = NOTHING if raw is None else raw.get(PROTOCOL, NOTHING)
            role, content = message.role, message.content
            is_plain = not spelling or (role is _TOOL and spelling.keys() == _IDS)
            if spelling == EASY_RUN and len(content) == 1 and type(content[0]) is TextBlock:
                items.append(_Said(content[0].text, "assistant"))
            elif not (is_plain and self._plain(role, content, items)):
                self._encode(message, spelling, items, is_stateless=is_stateless)
        return items

    def _plain(self, role: Role, content: Sequence[ContentBlock], items: list[Any]) -> bool:
        """Add the items of a message of texts and calls; false for all others."""
        if len(content) == 1:
            only = content[0]
            if type(only) is TextBlock and role is not _TOOL and not only.citations:
                items.append(
                    _Answered(only.text)
                    if role is _ASSISTANT
                    else _Said(only.text, "user" if role is _USER else str(role))
                )
                return True
            if type(only) is ToolResultBlock:
                return self._plain_result(only, items)
        if role is not _ASSISTANT:
            return False
        found: list[Any] = []
        for block in content:
            if type(block) is ToolUseBlock:
                call_id = self._calls.wire_id(block.id)
                found.append(_Call(write_json(block.input).decode(), call_id, block.name))
            elif type(block) is TextBlock and not block.citations:
                found.append(_Answered(block.text))
            else:
                return False
        items += found
        return True

    def _plain_result(self, result: ToolResultBlock, items: list[Any]) -> bool:
        ours, inner = result.tool_use_id, result.content
        if len(inner) != 1 or result.is_error or self._calls.is_special(ours):
            return False
        only = inner[0]
        if type(only) is not TextBlock:
            return False
        items.append(_Output(self._calls.wire_id(ours), only.text))
        return True

    def _encode(
        self,
        message: Message,
        spelling: Mapping[str, Any],
        items: list[Any],
        *,
        is_stateless: bool,
    ) -> None:
        if message.role is _ASSISTANT:
            form = _form(message, spelling, is_stateless=is_stateless)
            items += encode_items(message.content, spelling, self._calls, form)
        elif message.role is _TOOL:
            items += (
                self._calls.encode_result(block, spelling)
                for block in message.content
                if isinstance(block, ToolResultBlock)
            )
        else:
            items.append(_encode_asked(message, spelling))


def _instructs(message: Message) -> bool:
    """Whether a message stands beside the input; a client may have put it there, or in it."""
    spelling = spelling_of(message, PROTOCOL)
    return message.role is Role.SYSTEM and (not spelling or "instructions" in spelling)


def _bare(messages: Sequence[Message], known: int) -> str | None:
    """The input of a client that asked with nothing but a text, behind what is known."""
    if len(messages) != known + 1 or not spelling_of(messages[-1], PROTOCOL).get("bare"):
        return None
    return _text_of(messages[-1].content)


def _text_of(content: Sequence[ContentBlock]) -> str:
    return _BETWEEN.join(block.text for block in content if isinstance(block, TextBlock))


def _form(message: Message, spelling: Mapping[str, Any], *, is_stateless: bool) -> Form:
    if "response" not in spelling:
        return "history"
    is_whole = message.metadata.status is MessageStatus.COMPLETE
    return "echo" if is_whole and not is_stateless else "stateless"


def _encode_asked(message: Message, spelling: Mapping[str, Any]) -> Any:
    content = message.content
    if spelling.get("item") and len(content) == 1 and isinstance(content[0], OpaqueBlock):
        return content[0].raw
    wire: Wire = {"role": str(message.role), **(spelling.get("keys") or NOTHING)}
    if len(content) == 1 and type(content[0]) is TextBlock and not spelling.get("parts"):
        wire["content"] = content[0].text
    else:
        wire["content"] = encode_parts(content, spelling.get("blocks") or NOTHING)
    return wire
