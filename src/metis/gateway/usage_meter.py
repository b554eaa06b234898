"""Usage and cost of calls that are passed on: embeddings, images, audio, reranking, sockets.

Their bodies are not read beyond the model and the usage, wherever a provider states it.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from metis.adapters.reported_cost import usage_of_counts, usage_of_metadata
from metis.canonical.errors import CatalogError, InvalidValueError
from metis.canonical.metadata import Usage
from metis.catalog.cost import price
from metis.gateway.config import Prices
from metis.gateway.exchange import Exchange
from metis.wire.call import UNPRICED
from metis.wire.json_access import maybe_count, maybe_object

MAX_METERED_BYTES = 16 * 1024 * 1024
"""How much of a passed response is read for its usage."""
_MAX_NAME = 200
_MODEL_IN_PATH = re.compile(r"/(?:models|tunedModels|model|deployments)/([^/:]+)")
_MODEL_IN_FORM = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n){0,8}\r\n([^\r\n]{1,200})\r\n')
_FORM_BYTES = 64 * 1024
_MAX_USAGE_LINES = 20
_USAGE_MARKS = (b'"usage"', b'"usageMetadata"', b'"billed_units"')
_BUCKETS = (
    *("input_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "output_tokens", "reasoning_output_tokens"),
)


class _Request(Struct):
    model: str | None = None


class _Response(Struct):
    model: str | None = None
    usage: Raw | UnsetType = UNSET
    usage_metadata: Raw | UnsetType = msgspec.field(default=UNSET, name="usageMetadata")
    meta: Raw | UnsetType = UNSET
    response: Raw | UnsetType = UNSET
    """The response in an event of a socket."""


_read_request = msgspec.json.Decoder(_Request).decode
_read_response = msgspec.json.Decoder(_Response).decode


def requested_model(path: str, query: bytes, body: bytes) -> str:
    """Return the model that a passed call names: in its path, its query, its JSON or its form."""
    match = _MODEL_IN_PATH.search(path)
    if match is not None:
        return match[1][:_MAX_NAME]
    if query:
        named = parse_qs(query.decode("latin-1"), max_num_fields=100).get("model")
        if named:
            return named[0][:_MAX_NAME]
    if body.lstrip()[:1] == b"{":
        try:
            return (_read_request(body).model or "")[:_MAX_NAME]
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return ""
    form = _MODEL_IN_FORM.search(body[:_FORM_BYTES]) or _MODEL_IN_FORM.search(body[-_FORM_BYTES:])
    return "" if form is None else form[1].decode(errors="replace")


def _usage_lines(body: bytes) -> Iterator[bytes]:
    """Yield the last lines of a body that may state usage, the last one first.

    They are searched from the end: a body of line breaks alone would take seconds to split.
    """
    end = len(body)
    for _ in range(_MAX_USAGE_LINES):
        place = max(body.rfind(mark, 0, end) for mark in _USAGE_MARKS)
        if place < 0:
            return
        start = body.rfind(b"\n", 0, place) + 1
        stop = body.find(b"\n", place)
        yield body[start : len(body) if stop < 0 else stop].rstrip()
        end = start


class UsageMeter:
    """Adds up what the responses of one passed call state as their usage."""

    def __init__(self) -> None:
        self._usage: Usage | None = None

    def add(self, body: bytes) -> None:
        """Read a response: one JSON value, lines of them, or events."""
        if not any(mark in body for mark in _USAGE_MARKS):
            return
        head = body.lstrip()[:1]
        lines = iter([body]) if head in b"{[" and head else _usage_lines(body)
        # Events repeat what was used so far: the last one that states it counts.
        for line in lines:
            if usage := _read_usage(line.removeprefix(b"data:")):
                self._usage = usage if self._usage is None else _sum(self._usage, usage)
                return

    def finish(self, exchange: Exchange, prices: Mapping[str, Prices]) -> None:
        """Note usage and cost in an exchange."""
        usage = self._usage
        stated = prices.get(exchange.model_id) or prices.get(exchange.model)
        if usage is not None:
            timings = exchange.timings
            latency = round((timings.end - timings.begin) * 1000) if timings.end else 0
            usage = replace(usage, latency_ms=max(0, latency))
        if stated is not None:
            usage = _priced_as_stated(usage, stated)
        elif usage is not None:
            try:
                usage = price(usage, exchange.model_id, exchange.started_at)
            except (CatalogError, InvalidValueError):
                usage = replace(usage, pricing_version=UNPRICED)
        exchange.usage = usage


def _priced_as_stated(usage: Usage | None, prices: Prices) -> Usage:
    usage = usage or Usage(
        cost_usd=Decimal(0), input_tokens=0, output_tokens=0, latency_ms=0, pricing_version=""
    )
    tokens = usage.prompt_tokens * prices.input_per_mtok_usd
    tokens += usage.output_tokens * prices.output_per_mtok_usd
    amount = tokens / 1_000_000 + prices.per_call_usd
    return replace(usage, cost_usd=amount, pricing_version="settings")


def _read_usage(data: bytes) -> Usage | None:
    try:
        stated = _read_response(data)
        if isinstance(stated.response, Raw):
            stated = _read_response(stated.response)
        if isinstance(stated.usage_metadata, Raw):
            return usage_of_metadata(msgspec.json.decode(stated.usage_metadata))
        if isinstance(stated.usage, Raw):
            return _usage_of(maybe_object(msgspec.json.decode(stated.usage)))
        if isinstance(stated.meta, Raw):
            return _billed_units(maybe_object(msgspec.json.decode(stated.meta)))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, InvalidValueError):
        return None
    return None


def _usage_of(counts: Mapping[str, Any]) -> Usage | None:
    usage = usage_of_counts(counts)
    total = maybe_count(counts.get("total_tokens"))
    # Rerankings and some embeddings state a total only: nothing is written.
    return usage or (None if total is None else _input_only(total))


def _billed_units(meta: Mapping[str, Any]) -> Usage | None:
    """Return the usage as Cohere states it."""
    units = maybe_object(meta.get("billed_units"))
    total = maybe_count(units.get("input_tokens"))
    searches = maybe_count(units.get("search_units"))
    if total is None and searches is None:
        return None
    usage = _input_only(total or 0)
    return replace(usage, server_tool_requests={"search": searches}) if searches else usage


def _input_only(count: int) -> Usage:
    return Usage(
        cost_usd=Decimal(0), input_tokens=count, output_tokens=0, latency_ms=0, pricing_version=""
    )


def _sum(one: Usage, other: Usage) -> Usage:
    counts = {name: getattr(one, name) + getattr(other, name) for name in _BUCKETS}
    return replace(other, **counts)
