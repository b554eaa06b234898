"""The message list of attocode."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint
from metis.interchange.aside import Difference
from metis.interchange.attocode import types
from metis.interchange.attocode.calls import (
    call_ids,
    decode_calls,
    decode_result,
    encode_calls,
    encode_result,
    text_of,
)
from metis.interchange.desk import Desk, foreign_of, told
from metis.interchange.document import (
    Record,
    array_records,
    first_item,
    is_empty_array,
    read_json,
    shaped,
)
from metis.interchange.format import Format, entry_of
from metis.store.entries import KnownEntry, MessageEntry
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

_ROLES = {role: str(role) for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL)}


class AttocodeMessages(Format):
    """A JSON array of attocode's messages."""

    name = "attocode"
    system = "attocode"
    silent = {  # noqa: RUF012 - a table, read only
        "toolCalls": (None, []),
        "toolResults": (None, []),
        "toolCallId": (None,),
        "parseError": (None,),
        "error": (None,),
    }

    def fits(self, data: bytes) -> bool:
        """Whether it is an array of messages with a role and without an id."""
        first = first_item(data)
        if first is None:
            return is_empty_array(data)
        return "role" in first and "content" in first and "id" not in first

    def split(self, data: bytes) -> Iterable[Record]:
        """The messages."""
        return array_records(data, read_json(data, self.name), "$", self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - every format has it
        """The array, indented as people keep such files."""
        return json.dumps(records, ensure_ascii=False, indent=2).encode() + b"\n"

    def decode(self, record: Wire, desk: Desk) -> list[KnownEntry]:
        """What was said, and each result of a call as a message of its own."""
        wire = shaped(types.Message, record, "$")
        messages: list[Message] = []
        if wire.role == "tool" and wire.toolCallId is not None and not wire.toolResults:
            messages.append(_decode_answer(wire, wire.toolCallId, desk))
        elif wire.content or wire.toolCalls or not wire.toolResults:
            messages.append(_decode_said(wire, desk))
        for index, result in enumerate(wire.toolResults or ()):
            messages.append(decode_result(result, desk, f"$.toolResults[{index}]"))
        return [entry_of(_numbered(message, part)) for part, message in enumerate(messages)]

    def encode(self, entries: Sequence[KnownEntry], desk: Desk) -> Wire | None:
        """One message from what was said and the results that came with it."""
        messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        if len(messages) != len(entries):
            return None
        first = messages[0]
        if first.role == Role.TOOL and not _has_results(messages):
            return _encode_answer(first, desk)
        said = None if first.role == Role.TOOL else first
        wire: Wire = {"role": "tool", "content": ""} if said is None else _encode_said(said, desk)
        if not wire:
            return None
        results = [encode_result(message, desk) for message in messages if message is not said]
        kept = [result for result in results if result is not None]
        return wire | ({"toolResults": kept} if kept else {})

    def says_the_same(self, difference: Difference) -> bool:
        """A text may stand alone or as a list of one; cache marks are hints."""
        key = difference.steps[-1] if difference.steps else ""
        if key == "cache_control":
            return difference.actual == {"type": "ephemeral"}
        if key == "content" and len(difference.steps) == 1:
            text = _only_text(difference.plain)
            return text is not None and text == _only_text(difference.actual)
        return super().says_the_same(difference)


def _decode_said(wire: types.Message, desk: Desk) -> Message:
    role = Role.USER if wire.role == "tool" else Role(wire.role)
    texts, hints = _decode_content(wire.content)
    calls = wire.toolCalls if role == Role.ASSISTANT else None
    uses = decode_calls(calls, desk)
    if not texts and not uses and role != Role.SYSTEM:
        texts = [TextBlock("")]
    content = told(texts) if wire.role == "tool" else (*texts, *uses)
    message = desk.message(role, content, foreign=call_ids(calls), hints=tuple(hints))
    if wire.role == "tool":
        reason = "it names no call that it answers; here it is told by the user"
        desk.lose(message, "tool_result", "$", reason)
    return message


def _decode_content(
    content: str | list[types.ContentBlock],
) -> tuple[list[TextBlock], list[CacheHint]]:
    if isinstance(content, str):
        return ([TextBlock(content)] if content else []), []
    hints = [
        CacheHint(after=index)
        for index, block in enumerate(content)
        if block.cache_control is not None
    ]
    return [TextBlock(block.text) for block in content], hints


def _decode_answer(wire: types.Message, call_id: str, desk: Desk) -> Message:
    texts, marks = _decode_content(wire.content)
    hints = [CacheHint(after=0)] if marks else []
    answered = desk.answer_call(call_id)
    if answered is None:
        message = desk.message(Role.USER, told(texts), hints=tuple(hints))
        reason = "it answers no open call of this history; here it is told by the user"
        desk.lose(message, "tool_result", "$", reason)
        return message
    block = ToolResultBlock(answered, tuple(texts))
    return desk.message(Role.TOOL, (block,), parent_tool_use_id=answered, hints=tuple(hints))


def _numbered(message: Message, part: int) -> Message:
    """The message with its number in the record, so that they are written together again."""
    if part == 0:
        return message
    metadata = message.metadata
    foreign = {**foreign_of(message, "attocode"), "part": part}
    external = {**(metadata.external or {}), "attocode": foreign}
    return replace(message, metadata=replace(metadata, external=external))


def _has_results(messages: Sequence[Message]) -> bool:
    """Whether the results have values of their own, or share a record, and not only text."""
    outcome = messages[0].metadata.outcome
    return len(messages) > 1 or (outcome is not None and outcome.value is not UNSET)


def _encode_answer(message: Message, desk: Desk) -> Wire | None:
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    foreign = desk.foreign_call(block.tool_use_id)
    if block.is_error:
        text = text_of(block)
        failed = {"callId": foreign, "result": None, "error": text}
        return {"role": "tool", "content": "", "toolResults": [failed]}
    marks = {len(block.content) - 1} if message.metadata.hints else set[int]()
    return {"role": "tool", "content": _encode_texts(block.content, marks), "toolCallId": foreign}


def _encode_said(message: Message, desk: Desk) -> Wire:
    role = _ROLES.get(message.role)
    if role is None:
        return {}
    marks = {hint.after for hint in message.metadata.hints}
    wire: Wire = {"role": role, "content": _encode_texts(message.content, marks)}
    calls = encode_calls(message, desk)
    return wire | ({"toolCalls": calls} if calls else {})


def _encode_texts(blocks: Sequence[ContentBlock], marks: set[int]) -> str | list[Wire]:
    texts: list[Wire] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            mark = {"cache_control": {"type": "ephemeral"}} if index in marks else {}
            texts.append({"type": "text", "text": block.text, **mark})
    if len(texts) < 2 and not any("cache_control" in text for text in texts):  # noqa: PLR2004 - one text, or none
        return "".join(text["text"] for text in texts)
    return texts


def _only_text(content: Any) -> str | None:
    """The text of content that is one text, in whatever form; None if it is more than that."""
    if isinstance(content, str):
        return content
    blocks = maybe_list(content)
    if not blocks:
        return ""
    first = maybe_object(blocks[0])
    is_plain = len(blocks) == 1 and set(first) <= {"type", "text", "cache_control"}
    return maybe_text(first.get("text")) if is_plain else None
