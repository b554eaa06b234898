"""The two formats of attocode: a list of messages, and one response of a model."""

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    InvalidInput,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import EncodeError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, Outcome, OutcomeStatus, StopReason, Usage
from metis.interchange.attocode import types
from metis.interchange.conversion import ConversionContext, foreign_fields, orphan_result_content
from metis.interchange.document import (
    Record,
    array_records,
    convert_to,
    first_item,
    first_object,
    is_empty_array,
    object_record,
    read_json,
)
from metis.interchange.format import Format, entry_of
from metis.interchange.residue import Difference
from metis.store.entries import KnownEntry, MessageEntry
from metis.streaming.arguments import parse_arguments
from metis.wire.call import UNPRICED
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

RAW = "_raw"
"""Where a call keeps the text of arguments that were no JSON."""


def decode_call(call: types.ToolCall, desk: ConversionContext) -> ToolUseBlock:
    """The block of a call; what could not be parsed is never taken for an input."""
    ours = desk.open_tool_call(call.id, call.name)
    if call.parseError is None:
        return ToolUseBlock(ours, call.name, call.arguments)
    raw = call.arguments.get(RAW)
    if set(call.arguments) != {RAW} or not isinstance(raw, str):
        raw = json.dumps(call.arguments, ensure_ascii=False)
    return ToolUseBlock(ours, call.name, {}, InvalidInput(raw=raw, error=call.parseError))


def encode_calls(message: Message, desk: ConversionContext) -> list[Wire]:
    """The calls of a message."""
    blocks = [block for block in message.content if isinstance(block, ToolUseBlock)]
    names = desk.foreign_call_ids(message)
    return [
        _encode_call(block, name or block.id) for block, name in zip(blocks, names, strict=True)
    ]


def _encode_call(block: ToolUseBlock, foreign: str) -> Wire:
    wire: Wire = {"id": foreign, "name": block.name}
    if block.invalid is None:
        return wire | {"arguments": block.input}
    found, fault = parse_arguments(block.invalid.raw)
    arguments = {RAW: block.invalid.raw} if fault is not None else found
    return wire | {"arguments": arguments, "parseError": block.invalid.error}


def decode_result(result: types.ToolResult, desk: ConversionContext, path: str) -> Message:
    """The message of one result: its text for models, its value for programs."""
    said = result.result if result.error is None else result.error
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    content = (TextBlock(text),)
    answered = desk.match_tool_result(result.callId)
    if answered is None:
        message = desk.message(Role.USER, orphan_result_content(content))
        reason = "it answers no open call of this history; here it is told by the user"
        desk.add_loss(message, "tool_result", path, reason)
        return message
    failed = result.error is not None
    outcome = Outcome(
        status=OutcomeStatus.ERROR if failed else OutcomeStatus.SUCCESS, value=result.result
    )
    block = ToolResultBlock(answered, content, failed)
    return desk.message(Role.TOOL, (block,), parent_tool_use_id=answered, outcome=outcome)


def encode_result(message: Message, desk: ConversionContext) -> Wire | None:
    """A result with its value; the text stands for it where there is no value."""
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    text = text_of(block)
    outcome = message.metadata.outcome
    value: Any = text if outcome is None else outcome.value
    wire: Wire = {"callId": desk.foreign_call_id(block.tool_use_id), "result": value}
    return wire | {"error": text} if block.is_error else wire


def text_of(block: ToolResultBlock) -> str:
    """The text of a result."""
    return "".join(inner.text for inner in block.content if isinstance(inner, TextBlock))


def decode_calls(
    calls: Sequence[types.ToolCall] | None, desk: ConversionContext
) -> list[ToolUseBlock]:
    """The blocks of calls."""
    return [decode_call(call, desk) for call in calls or ()]


def call_ids(calls: Sequence[types.ToolCall] | None) -> Wire:
    """What is kept of calls for the way back: their ids."""
    return {"calls": [call.id for call in calls]} if calls else {}


_ROLES = {role: str(role) for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL)}


class AttocodeMessages(Format):
    """A JSON array of attocode's messages."""

    name = "attocode"
    system = "attocode"
    default_values = {  # noqa: RUF012 - a table, read only
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

    def decode(self, record: Wire, desk: ConversionContext) -> list[KnownEntry]:
        """What was said, and each result of a call as a message of its own."""
        wire = convert_to(types.Message, record, "$")
        messages: list[Message] = []
        if wire.role == "tool" and wire.toolCallId is not None and not wire.toolResults:
            messages.append(_decode_answer(wire, wire.toolCallId, desk))
        elif wire.content or wire.toolCalls or not wire.toolResults:
            messages.append(_decode_said(wire, desk))
        for index, result in enumerate(wire.toolResults or ()):
            messages.append(decode_result(result, desk, f"$.toolResults[{index}]"))
        return [entry_of(_numbered(message, part)) for part, message in enumerate(messages)]

    def encode(self, entries: Sequence[KnownEntry], desk: ConversionContext) -> Wire | None:
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

    def is_equivalent(self, difference: Difference) -> bool:
        """A text may stand alone or as a list of one; cache marks are hints."""
        key = difference.steps[-1] if difference.steps else ""
        if key == "cache_control":
            return difference.actual == {"type": "ephemeral"}
        if key == "content" and len(difference.steps) == 1:
            text = _only_text(difference.plain)
            return text is not None and text == _only_text(difference.actual)
        return super().is_equivalent(difference)


def _decode_said(wire: types.Message, desk: ConversionContext) -> Message:
    role = Role.USER if wire.role == "tool" else Role(wire.role)
    texts, hints = _decode_content(wire.content)
    calls = wire.toolCalls if role == Role.ASSISTANT else None
    uses = decode_calls(calls, desk)
    if not texts and not uses and role != Role.SYSTEM:
        texts = [TextBlock("")]
    content = orphan_result_content(texts) if wire.role == "tool" else (*texts, *uses)
    message = desk.message(role, content, foreign=call_ids(calls), hints=tuple(hints))
    if wire.role == "tool":
        reason = "it names no call that it answers; here it is told by the user"
        desk.add_loss(message, "tool_result", "$", reason)
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


def _decode_answer(wire: types.Message, call_id: str, desk: ConversionContext) -> Message:
    texts, marks = _decode_content(wire.content)
    hints = [CacheHint(after=0)] if marks else []
    answered = desk.match_tool_result(call_id)
    if answered is None:
        message = desk.message(Role.USER, orphan_result_content(texts), hints=tuple(hints))
        reason = "it answers no open call of this history; here it is told by the user"
        desk.add_loss(message, "tool_result", "$", reason)
        return message
    block = ToolResultBlock(answered, tuple(texts))
    return desk.message(Role.TOOL, (block,), parent_tool_use_id=answered, hints=tuple(hints))


def _numbered(message: Message, part: int) -> Message:
    """The message with its number in the record, so that they are written together again."""
    if part == 0:
        return message
    metadata = message.metadata
    foreign = {**foreign_fields(message, "attocode"), "part": part}
    external = {**(metadata.external or {}), "attocode": foreign}
    return replace(message, metadata=replace(metadata, external=external))


def _has_results(messages: Sequence[Message]) -> bool:
    """Whether the results have values of their own, or share a record, and not only text."""
    outcome = messages[0].metadata.outcome
    return len(messages) > 1 or (outcome is not None and outcome.value is not UNSET)


def _encode_answer(message: Message, desk: ConversionContext) -> Wire | None:
    block = message.content[0] if message.content else None
    if not isinstance(block, ToolResultBlock):
        return None
    foreign = desk.foreign_call_id(block.tool_use_id)
    if block.is_error:
        text = text_of(block)
        failed = {"callId": foreign, "result": None, "error": text}
        return {"role": "tool", "content": "", "toolResults": [failed]}
    marks = {len(block.content) - 1} if message.metadata.hints else set[int]()
    return {"role": "tool", "content": _encode_texts(block.content, marks), "toolCallId": foreign}


def _encode_said(message: Message, desk: ConversionContext) -> Wire:
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


_STOPS = frozenset({"end_turn", "tool_use", "max_tokens", "stop_sequence"})


class AttocodeResponse(Format):
    """One `ChatResponse` of attocode."""

    name = "attocode-response"
    system = "attocode"
    default_values = {  # noqa: RUF012 - a table, read only
        "toolCalls": (None, []),
        "usage": (None,),
        "model": (None,),
        "stopReason": (None,),
        "thinking": (None,),
        "cacheReadTokens": (None, 0),
        "cacheWriteTokens": (None, 0),
        "cost": (None,),
        "parseError": (None,),
    }

    def fits(self, data: bytes) -> bool:
        """Whether it is an object with content that is text, and no role."""
        first = first_object(data)
        return first is not None and isinstance(first.get("content"), str) and "role" not in first

    def split(self, data: bytes) -> Iterable[Record]:
        """The response is the one record."""
        yield object_record(data, self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - every format has it
        """The one response; several answers are no response."""
        if len(records) != 1:
            raise EncodeError(f"a response is one answer of a model, not {len(records)}")
        return json.dumps(records[0], ensure_ascii=False).encode()

    def decode(self, record: Wire, desk: ConversionContext) -> list[KnownEntry]:
        """The answer."""
        wire = convert_to(types.ChatResponse, record, "$")
        said = [] if wire.thinking is None else [ThinkingBlock(wire.thinking)]
        uses = decode_calls(wire.toolCalls, desk)
        texts = [TextBlock(wire.content)] if wire.content or not (said or uses) else []
        about: dict[str, Any] = {}
        if wire.usage is not None:
            about["usage"] = _decode_usage(wire.usage)
        if wire.stopReason is not None:
            about["stop_reason"] = StopReason(wire.stopReason)
        provider, colon, name = (wire.model or "").partition(":")
        if provider and colon and name:
            about |= {"model": wire.model, "provider": provider}
        message = desk.message(
            Role.ASSISTANT, (*said, *texts, *uses), foreign=call_ids(wire.toolCalls), **about
        )
        return [entry_of(message)]

    def encode(self, entries: Sequence[KnownEntry], desk: ConversionContext) -> Wire | None:
        """The response of an answer."""
        entry = entries[0]
        if not isinstance(entry, MessageEntry) or entry.message.role != Role.ASSISTANT:
            return None
        message = entry.message
        texts = [block.text for block in message.content if isinstance(block, TextBlock)]
        thoughts = [block.text for block in message.content if isinstance(block, ThinkingBlock)]
        calls = encode_calls(message, desk)
        stop = message.metadata.stop_reason
        wire: Wire = {
            "content": "".join(texts),
            "toolCalls": calls or None,
            "usage": _encode_usage(message.metadata.usage),
            "model": message.metadata.model,
            "stopReason": str(stop) if stop in _STOPS else None,
            "thinking": "".join(thoughts) if thoughts else None,
        }
        return {key: value for key, value in wire.items() if value is not None}


def _decode_usage(wire: types.Usage) -> Usage | None:
    cached, written = wire.cacheReadTokens or 0, wire.cacheWriteTokens or 0
    counts = (wire.inputTokens, wire.outputTokens, cached, written)
    if not all(0 <= count < 2**63 for count in counts):
        return None
    return Usage(
        input_tokens=wire.inputTokens,
        output_tokens=wire.outputTokens,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        cost_usd=Decimal(0),
        reported_cost_usd=None if wire.cost is None else Decimal(str(wire.cost)),
        pricing_version=UNPRICED,
        latency_ms=0,
    )


def _encode_usage(usage: Usage | None) -> Wire | None:
    if usage is None:
        return None
    cost = usage.reported_cost_usd
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadTokens": usage.cached_input_tokens,
        "cacheWriteTokens": usage.cache_creation_input_tokens,
    } | ({} if cost is None else {"cost": float(cost)})
