"""The response of a model as attocode has it, in the spelling of either of its two programs."""

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.errors import EncodeError
from metis.canonical.message import Role
from metis.canonical.metadata import StopReason, Usage
from metis.interchange.attocode import types
from metis.interchange.attocode.blocks import (
    SNAKE_CASE,
    SYSTEM,
    decode_calls,
    decode_record,
    encode_calls,
    foreign_call_ids,
    has_snake_case,
    is_snake_case,
    to_snake_case,
)
from metis.interchange.conversion import ConversionContext
from metis.interchange.document import Record, first_object, object_record
from metis.interchange.format import Format, entry_of
from metis.store.entries import KnownEntry, MessageEntry
from metis.wire.call import UNPRICED
from metis.wire.json_access import Wire

_STOP_REASONS = frozenset({"end_turn", "tool_use", "max_tokens", "stop_sequence"})


class AttocodeResponse(Format):
    """One `ChatResponse` of attocode."""

    name = "attocode-response"
    system = SYSTEM
    default_values = {  # noqa: RUF012 - a table, read only
        **dict.fromkeys(("toolCalls", "tool_calls"), (None, [])),
        **dict.fromkeys(("usage", "model", "thinking"), (None,)),
        **dict.fromkeys(("stopReason", "stop_reason", "parseError", "parse_error"), (None,)),
        **dict.fromkeys(("cacheReadTokens", "cacheWriteTokens"), (None, 0)),
        **dict.fromkeys(("cache_read_tokens", "cache_creation_tokens"), (None, 0)),
        "cost": (None,),
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
        is_snake = is_snake_case(record)
        wire = decode_record(types.ChatResponse, record, is_snake=is_snake)
        thinking = [] if wire.thinking is None else [ThinkingBlock(wire.thinking)]
        calls = decode_calls(wire.toolCalls, conversion)
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
            foreign=foreign_call_ids(wire.toolCalls) | (SNAKE_CASE if is_snake else {}),
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
        calls = encode_calls(message, conversion)
        stop = message.metadata.stop_reason
        wire: Wire = {
            "content": "".join(texts),
            "toolCalls": calls or None,
            "usage": _encode_usage(message.metadata.usage),
            "model": message.metadata.model,
            "stopReason": str(stop) if stop in _STOP_REASONS else None,
            "thinking": "".join(thinking) if thinking else None,
        }
        record = {key: value for key, value in wire.items() if value is not None}
        if not has_snake_case(message):
            return record
        usage = message.metadata.usage
        if usage is not None:
            total = usage.input_tokens + usage.output_tokens
            record["usage"] = record["usage"] | {"total_tokens": total}
        return to_snake_case(record)


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
