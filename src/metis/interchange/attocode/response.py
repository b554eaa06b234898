"""The response of attocode's providers: one answer of a model."""

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.errors import EncodeError
from metis.canonical.message import Role
from metis.canonical.metadata import StopReason, Usage
from metis.interchange.attocode import types
from metis.interchange.attocode.calls import call_ids, decode_calls, encode_calls
from metis.interchange.desk import Desk
from metis.interchange.document import Record, first_object, object_record, shaped
from metis.interchange.format import Format, entry_of
from metis.store.entries import KnownEntry, MessageEntry
from metis.wire.call import UNPRICED
from metis.wire.shape import Wire

_STOPS = frozenset({"end_turn", "tool_use", "max_tokens", "stop_sequence"})


class AttocodeResponse(Format):
    """One `ChatResponse` of attocode."""

    name = "attocode-response"
    system = "attocode"
    silent = {  # noqa: RUF012 - a table, read only
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

    def decode(self, record: Wire, desk: Desk) -> list[KnownEntry]:
        """The answer."""
        wire = shaped(types.ChatResponse, record, "$")
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

    def encode(self, entries: Sequence[KnownEntry], desk: Desk) -> Wire | None:
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
