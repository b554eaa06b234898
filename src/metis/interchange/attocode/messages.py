"""The list of messages of attocode, in the spelling of either of its two programs."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import TextBlock, ToolResultBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, Outcome, OutcomeStatus
from metis.interchange.attocode import types
from metis.interchange.attocode.blocks import (
    SNAKE_CASE,
    SYSTEM,
    decode_calls,
    decode_content,
    decode_record,
    encode_calls,
    encode_content,
    foreign_call_ids,
    has_snake_case,
    is_snake_case,
    to_snake_case,
)
from metis.interchange.conversion import (
    NO_MATCHING_CALL,
    ConversionContext,
    orphan_result_content,
    with_foreign_fields,
)
from metis.interchange.document import first_item, is_empty_array
from metis.interchange.format import ArrayFormat, entry_of
from metis.interchange.residue import Difference
from metis.store.entries import KnownEntry, MessageEntry
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

_ROLES = {role: str(role) for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL)}


class AttocodeMessages(ArrayFormat):
    """A JSON array of attocode's messages."""

    name = "attocode"
    system = SYSTEM
    default_values = {  # noqa: RUF012 - a table, read only
        **dict.fromkeys(("toolCalls", "tool_calls", "toolResults", "tool_results"), (None, [])),
        **dict.fromkeys(("toolCallId", "tool_call_id", "parseError", "parse_error"), (None,)),
        "error": (None,),
        # The Python program has a name and metadata in every message, most of them empty.
        **dict.fromkeys(("name", "metadata"), (None,)),
    }

    def fits(self, data: bytes) -> bool:
        """Return whether it is an array of messages with a role and without an id."""
        first = first_item(data)
        if first is None:
            return is_empty_array(data)
        # A message of the Python program has no content if it has only calls.
        has_content = "content" in first or is_snake_case(first)
        return "role" in first and has_content and "id" not in first

    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the message itself, and a message for each of its tool results."""
        is_snake = is_snake_case(record)
        wire = decode_record(types.Message, record, is_snake=is_snake)
        messages: list[Message] = []
        # attocode has two forms of results: the content of a `tool` message, or a list of values.
        if wire.role == "tool" and wire.toolCallId is not None and not wire.toolResults:
            messages.append(_decode_text_result(wire, wire.toolCallId, conversion))
        elif wire.content or wire.toolCalls or not wire.toolResults:
            messages.append(_decode_message(wire, conversion))
        for index, result in enumerate(wire.toolResults or ()):
            key = "tool_results" if is_snake else "toolResults"
            messages.append(_decode_result(result, conversion, f"$.{key}[{index}]"))
        spelling = SNAKE_CASE if is_snake else {}
        # The number in the record says which messages are written together again.
        return [
            entry_of(
                with_foreign_fields(message, SYSTEM, {"part": part} if part else dict(spelling))
            )
            for part, message in enumerate(messages)
        ]

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return one message with the tool results that belong to it."""
        messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        if len(messages) != len(entries):
            return None
        wire = _encode_record(messages, conversion)
        return to_snake_case(wire) if wire and has_snake_case(messages[0]) else wire

    def is_equivalent(self, difference: Difference) -> bool:
        """Return whether both values mean the same; one text may be a string or a list."""
        if difference.key == "cache_control":
            return difference.actual == {"type": "ephemeral"}
        if difference.steps == ("content",):
            text = _single_text(difference.expected)
            return text is not None and text == _single_text(difference.actual)
        return super().is_equivalent(difference)


def _encode_record(messages: Sequence[Message], conversion: ConversionContext) -> Wire | None:
    first = messages[0]
    if first.role == Role.TOOL and not _has_result_values(messages):
        return _encode_text_result(first, conversion)
    wire: Wire = {"role": "tool", "content": ""}
    if first.role != Role.TOOL:
        wire, messages = _encode_message(first, conversion), messages[1:]
    if not wire:
        return None
    encoded = (_encode_result(message, conversion) for message in messages)
    results = [result for result in encoded if result is not None]
    return wire | ({"toolResults": results} if results else {})


def _decode_message(wire: types.Message, conversion: ConversionContext) -> Message:
    role = Role.USER if wire.role == "tool" else Role(wire.role)
    texts, hints = decode_content(wire.content, role)
    calls = wire.toolCalls if role == Role.ASSISTANT else None
    blocks = decode_calls(calls, conversion)
    if not texts and not blocks and role != Role.SYSTEM:
        # Messages other than system prompts need content in the canonical form.
        texts = [TextBlock("")]
    content = orphan_result_content(texts) if wire.role == "tool" else (*texts, *blocks)
    foreign = foreign_call_ids(calls)
    message = conversion.message(role, content, foreign=foreign, hints=tuple(hints))
    if wire.role == "tool":
        reason = "a tool result without a call id; it became a user message"
        conversion.add_loss(message, "tool_result", "$", reason)
    return message


def _decode_text_result(
    wire: types.Message, call_id: str, conversion: ConversionContext
) -> Message:
    """Return the message of a tool result that is the content of a `tool` message."""
    texts, cache_marks = decode_content(wire.content, Role.TOOL)
    hints = (CacheHint(after=0),) if cache_marks else ()
    tool_use_id = conversion.match_tool_result(call_id)
    if tool_use_id is None:
        message = conversion.message(Role.USER, orphan_result_content(texts), hints=hints)
        conversion.add_loss(message, "tool_result", "$", NO_MATCHING_CALL)
        return message
    block = ToolResultBlock(tool_use_id, tuple(texts))
    return conversion.message(Role.TOOL, (block,), parent_tool_use_id=tool_use_id, hints=hints)


def _decode_result(result: types.ToolResult, conversion: ConversionContext, path: str) -> Message:
    """Return the message of one of `toolResults`: text for models, value for programs."""
    value = result.result if result.error is None else result.error
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    content = (TextBlock(text),)
    tool_use_id = conversion.match_tool_result(result.callId)
    if tool_use_id is None:
        message = conversion.message(Role.USER, orphan_result_content(content))
        conversion.add_loss(message, "tool_result", path, NO_MATCHING_CALL)
        return message
    failed = result.error is not None
    outcome = Outcome(
        status=OutcomeStatus.ERROR if failed else OutcomeStatus.SUCCESS, value=result.result
    )
    block = ToolResultBlock(tool_use_id, content, failed)
    return conversion.message(Role.TOOL, (block,), parent_tool_use_id=tool_use_id, outcome=outcome)


def _has_result_values(messages: Sequence[Message]) -> bool:
    """Return whether results have values or share a record, and are not only text."""
    outcome = messages[0].metadata.outcome
    return len(messages) > 1 or (outcome is not None and outcome.value is not UNSET)


def _encode_text_result(message: Message, conversion: ConversionContext) -> Wire | None:
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    call_id = conversion.foreign_call_id(block.tool_use_id)
    # attocode marks a failure only in `toolResults`.
    if block.is_error:
        failed = {"callId": call_id, "result": None, "error": _result_text(block)}
        return {"role": "tool", "content": "", "toolResults": [failed]}
    marked = {len(block.content) - 1} if message.metadata.hints else set[int]()
    return {"role": "tool", "content": encode_content(block.content, marked), "toolCallId": call_id}


def _encode_result(message: Message, conversion: ConversionContext) -> Wire | None:
    """Return a result with its value, or with its text where it has no value."""
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    text = _result_text(block)
    outcome = message.metadata.outcome
    value: Any = text if outcome is None else outcome.value
    wire: Wire = {"callId": conversion.foreign_call_id(block.tool_use_id), "result": value}
    return wire | {"error": text} if block.is_error else wire


def _result_text(block: ToolResultBlock) -> str:
    return "".join(inner.text for inner in block.content if isinstance(inner, TextBlock))


def _encode_message(message: Message, conversion: ConversionContext) -> Wire:
    role = _ROLES.get(message.role)
    if role is None:
        return {}
    marked = {hint.after for hint in message.metadata.hints}
    wire: Wire = {"role": role, "content": encode_content(message.content, marked)}
    calls = encode_calls(message, conversion)
    return wire | ({"toolCalls": calls} if calls else {})


def _single_text(content: Any) -> str | None:
    """Return the text of content that is one text, in either form; None if it is more."""
    if isinstance(content, str):
        return content
    blocks = maybe_list(content)
    if not blocks:
        return ""
    first = maybe_object(blocks[0])
    is_plain = len(blocks) == 1 and set(first) <= {"type", "text", "cache_control"}
    return maybe_text(first.get("text")) if is_plain else None
