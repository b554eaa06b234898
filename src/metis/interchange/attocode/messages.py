"""The two formats of attocode: a list of messages, and one response of a model."""

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from msgspec import UNSET

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
from metis.interchange.conversion import (
    NO_MATCHING_CALL,
    ConversionContext,
    orphan_result_content,
    with_foreign_fields,
)
from metis.interchange.document import (
    Record,
    convert_to,
    first_item,
    first_object,
    is_empty_array,
    object_record,
)
from metis.interchange.format import ArrayFormat, Format, entry_of
from metis.interchange.residue import Difference
from metis.store.entries import KnownEntry, MessageEntry
from metis.streaming.arguments import parse_arguments
from metis.wire.call import UNPRICED
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

_SYSTEM = "attocode"
_ROLES = {role: str(role) for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL)}
_STOP_REASONS = frozenset({"end_turn", "tool_use", "max_tokens", "stop_sequence"})
# attocode stores the text of arguments that are not JSON under this key.
_RAW_KEY = "_raw"


class AttocodeMessages(ArrayFormat):
    """A JSON array of attocode's messages."""

    name = "attocode"
    system = _SYSTEM
    default_values = {  # noqa: RUF012 - a table, read only
        "toolCalls": (None, []),
        "toolResults": (None, []),
        "toolCallId": (None,),
        "parseError": (None,),
        "error": (None,),
    }

    def fits(self, data: bytes) -> bool:
        """Return whether it is an array of messages with a role and without an id."""
        first = first_item(data)
        if first is None:
            return is_empty_array(data)
        return "role" in first and "content" in first and "id" not in first

    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the message itself, and a message for each of its tool results."""
        wire = convert_to(types.Message, record, "$")
        messages: list[Message] = []
        # attocode has two forms of results: the content of a `tool` message, or a list of values.
        if wire.role == "tool" and wire.toolCallId is not None and not wire.toolResults:
            messages.append(_decode_text_result(wire, wire.toolCallId, conversion))
        elif wire.content or wire.toolCalls or not wire.toolResults:
            messages.append(_decode_message(wire, conversion))
        for index, result in enumerate(wire.toolResults or ()):
            messages.append(_decode_result(result, conversion, f"$.toolResults[{index}]"))
        # The number in the record says which messages are written together again.
        return [
            entry_of(with_foreign_fields(message, _SYSTEM, {"part": part} if part else {}))
            for part, message in enumerate(messages)
        ]

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return one message with the tool results that belong to it."""
        messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
        if len(messages) != len(entries):
            return None
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

    def is_equivalent(self, difference: Difference) -> bool:
        """Return whether both values mean the same; one text may be a string or a list."""
        if difference.key == "cache_control":
            return difference.actual == {"type": "ephemeral"}
        if difference.steps == ("content",):
            text = _single_text(difference.expected)
            return text is not None and text == _single_text(difference.actual)
        return super().is_equivalent(difference)


class AttocodeResponse(Format):
    """One `ChatResponse` of attocode."""

    name = "attocode-response"
    system = _SYSTEM
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
        """Return whether it is an object with text content and no role."""
        first = first_object(data)
        return first is not None and isinstance(first.get("content"), str) and "role" not in first

    def split(self, data: bytes) -> Iterable[Record]:
        """Return the response, the one record."""
        yield object_record(data, self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - of the contract
        """Return the one response."""
        if len(records) != 1:
            raise EncodeError(f"{self.name} holds exactly one response, not {len(records)}")
        return json.dumps(records[0], ensure_ascii=False).encode()

    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the assistant message."""
        wire = convert_to(types.ChatResponse, record, "$")
        thinking = [] if wire.thinking is None else [ThinkingBlock(wire.thinking)]
        calls = _decode_calls(wire.toolCalls, conversion)
        texts = [TextBlock(wire.content)] if wire.content or not (thinking or calls) else []
        metadata: dict[str, Any] = {}
        if wire.usage is not None:
            metadata["usage"] = _decode_usage(wire.usage)
        if wire.stopReason is not None:
            metadata["stop_reason"] = StopReason(wire.stopReason)
        # Without a provider the name is ambiguous; it stays in the residue only.
        provider, colon, name = (wire.model or "").partition(":")
        if provider and colon and name:
            metadata |= {"model": wire.model, "provider": provider}
        message = conversion.message(
            Role.ASSISTANT,
            (*thinking, *texts, *calls),
            foreign=_foreign_call_ids(wire.toolCalls),
            **metadata,
        )
        return [entry_of(message)]

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return the response of an assistant message."""
        entry = entries[0]
        if not isinstance(entry, MessageEntry) or entry.message.role != Role.ASSISTANT:
            return None
        message = entry.message
        texts = [block.text for block in message.content if isinstance(block, TextBlock)]
        thinking = [block.text for block in message.content if isinstance(block, ThinkingBlock)]
        calls = _encode_calls(message, conversion)
        stop = message.metadata.stop_reason
        wire: Wire = {
            "content": "".join(texts),
            "toolCalls": calls or None,
            "usage": _encode_usage(message.metadata.usage),
            "model": message.metadata.model,
            "stopReason": str(stop) if stop in _STOP_REASONS else None,
            "thinking": "".join(thinking) if thinking else None,
        }
        return {key: value for key, value in wire.items() if value is not None}


def _decode_message(wire: types.Message, conversion: ConversionContext) -> Message:
    role = Role.USER if wire.role == "tool" else Role(wire.role)
    texts, hints = _decode_content(wire.content)
    calls = wire.toolCalls if role == Role.ASSISTANT else None
    blocks = _decode_calls(calls, conversion)
    if not texts and not blocks and role != Role.SYSTEM:
        # Messages other than system prompts need content in the canonical form.
        texts = [TextBlock("")]
    content = orphan_result_content(texts) if wire.role == "tool" else (*texts, *blocks)
    foreign = _foreign_call_ids(calls)
    message = conversion.message(role, content, foreign=foreign, hints=tuple(hints))
    if wire.role == "tool":
        reason = "a tool result without a call id; it became a user message"
        conversion.add_loss(message, "tool_result", "$", reason)
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


def _decode_text_result(
    wire: types.Message, call_id: str, conversion: ConversionContext
) -> Message:
    """Return the message of a tool result that is the content of a `tool` message."""
    texts, cache_marks = _decode_content(wire.content)
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
    return {"role": "tool", "content": _encode_texts(block.content, marked), "toolCallId": call_id}


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
    wire: Wire = {"role": role, "content": _encode_texts(message.content, marked)}
    calls = _encode_calls(message, conversion)
    return wire | ({"toolCalls": calls} if calls else {})


def _encode_texts(blocks: Sequence[ContentBlock], marked: set[int]) -> str | list[Wire]:
    texts: list[Wire] = []
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            mark = {"cache_control": {"type": "ephemeral"}} if index in marked else {}
            texts.append({"type": "text", "text": block.text, **mark})
    if len(texts) < 2 and not any("cache_control" in text for text in texts):  # noqa: PLR2004 - one text, or none
        return "".join(text["text"] for text in texts)
    return texts


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


def _decode_calls(
    calls: Sequence[types.ToolCall] | None, conversion: ConversionContext
) -> list[ToolUseBlock]:
    return [_decode_call(call, conversion) for call in calls or ()]


def _decode_call(call: types.ToolCall, conversion: ConversionContext) -> ToolUseBlock:
    # Arguments with a `parseError` are never used as an input: they stay invalid here, too.
    tool_use_id = conversion.open_tool_call(call.id, call.name)
    if call.parseError is None:
        return ToolUseBlock(tool_use_id, call.name, call.arguments)
    raw = call.arguments.get(_RAW_KEY)
    if set(call.arguments) != {_RAW_KEY} or not isinstance(raw, str):
        raw = json.dumps(call.arguments, ensure_ascii=False)
    return ToolUseBlock(tool_use_id, call.name, {}, InvalidInput(raw=raw, error=call.parseError))


def _foreign_call_ids(calls: Sequence[types.ToolCall] | None) -> Wire:
    return {"calls": [call.id for call in calls]} if calls else {}


def _encode_calls(message: Message, conversion: ConversionContext) -> list[Wire]:
    blocks = [block for block in message.content if isinstance(block, ToolUseBlock)]
    foreign_ids = conversion.foreign_call_ids(message)
    return [
        _encode_call(block, foreign_id or block.id)
        for block, foreign_id in zip(blocks, foreign_ids, strict=True)
    ]


def _encode_call(block: ToolUseBlock, foreign_id: str) -> Wire:
    wire: Wire = {"id": foreign_id, "name": block.name}
    if block.invalid is None:
        return wire | {"arguments": block.input}
    parsed, error = parse_arguments(block.invalid.raw)
    arguments = {_RAW_KEY: block.invalid.raw} if error is not None else parsed
    return wire | {"arguments": arguments, "parseError": block.invalid.error}


def _decode_usage(wire: types.Usage) -> Usage | None:
    cache_reads, cache_writes = wire.cacheReadTokens or 0, wire.cacheWriteTokens or 0
    counts = (wire.inputTokens, wire.outputTokens, cache_reads, cache_writes)
    # The store holds 64-bit integers; a count outside of them is not a token count.
    if not all(0 <= count < 2**63 for count in counts):
        return None
    return Usage(
        input_tokens=wire.inputTokens,
        output_tokens=wire.outputTokens,
        cached_input_tokens=cache_reads,
        cache_creation_input_tokens=cache_writes,
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
