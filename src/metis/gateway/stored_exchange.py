"""What an exchange leaves in the store: its priced response, its record, bytes and events.

Everything here is pure: from an exchange and the place of its conversation to a write job.
"""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import MetisError
from metis.canonical.ids import new_ulid
from metis.canonical.message import SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import (
    MessageStatus,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    Usage,
)
from metis.events import Payload
from metis.events.turn_events import LlmCallFailed, LlmErrorClass
from metis.gateway.exchange import CLIENT_LEFT, Exchange
from metis.session.events import llm_call_completed, usage_totals
from metis.session.models import Models, ResolvedModel
from metis.session.response import estimated_usage
from metis.store.entries import SidecarEntry
from metis.store.exchanges import EXTERNAL_KEY
from metis.store.records import SessionRecord
from metis.store.wire_bodies import WireBody
from metis.streaming import MessageComplete
from metis.transport.concealment import bytes_without_key
from metis.wire.call import UNPRICED, CanonicalRequest, RequestContext

log = logging.getLogger("metis.gateway")

_FIRST_ERROR = 400
_SERVER_ERROR = 500
_ERROR_CLASSES: Mapping[int, LlmErrorClass] = {
    401: "auth",
    403: "auth",
    413: "context_overflow",
    429: "rate_limit",
    CLIENT_LEFT: "cancelled",
}
_MAX_SEARCHED = 200_000
# All of them, also those that are zero: programs read this record without our defaults.
_USAGE = (
    *("input_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "output_tokens", "reasoning_output_tokens"),
    *("estimated", "pricing_version", "latency_ms"),
)
_WORKING_DIRECTORY = re.compile(
    r"(?:[Ww]orking directory:|<cwd>|working in the directory:|Workspace Directories:\*\*\s{0,9}-)"
    r"\s*((?:/|[A-Za-z]:\\)[^\n<`]{0,500})"
)
_write_json = msgspec.json.Encoder(order="sorted").encode


def elapsed_ms(exchange: Exchange) -> int:
    """Return the milliseconds from the request to the end of the response."""
    timings = exchange.timings
    return max(0, round((timings.end - timings.begin) * 1000)) if timings.end else 0


# The response


class Priced(Struct, frozen=True):
    """The response of an exchange as it is stored, and what it cost."""

    message: Message | None
    """None if nothing came, or only usage."""
    usage: Usage | None


def resolved_model(exchange: Exchange, models: Models) -> ResolvedModel | None:
    """Return the model that answered; None if its provider is unknown."""
    if not exchange.provider or not exchange.model:
        return None
    try:
        return models.get(exchange.model_id)
    except MetisError:
        return None


def decoded_response(exchange: Exchange, model: ResolvedModel) -> Message | None:
    """Return the response of an exchange; of a cut stream, what came.

    Raises:
        MetisError: the bytes are no response of the provider's protocol.
    """
    if exchange.response is not None:
        return exchange.response
    is_refused = exchange.status >= _FIRST_ERROR and exchange.status != CLIENT_LEFT
    if is_refused or not exchange.response_parts:
        return None
    context = RequestContext(
        session_id=exchange.session_id,
        model=model.id,
        provider=model.provider,
        created_at=exchange.started_at,
        latency_ms=elapsed_ms(exchange),
    )
    if not exchange.is_stream:
        if exchange.is_truncated or exchange.status == CLIENT_LEFT:
            return None
        return model.adapter.from_wire_response(b"".join(exchange.response_parts), context)
    decoder = model.adapter.stream_decoder(context)
    events = decoder.feed(b"".join(exchange.response_parts))
    events += decoder.finish()
    if events and isinstance(events[-1], MessageComplete):
        return events[-1].message
    return replace(
        decoder.message,
        metadata=replace(decoder.message.metadata, status=MessageStatus.ERROR),
    )


def priced_response(
    exchange: Exchange, message: Message, models: Models, model: ResolvedModel
) -> Priced:
    """Return the response with model, routing, status, usage and cost, as sessions store it."""
    metadata = message.metadata
    status = metadata.status
    if status is MessageStatus.PARTIAL:
        status = MessageStatus.ERROR
    if exchange.status == CLIENT_LEFT:
        status = MessageStatus.CANCELLED
    elif exchange.error is not None:
        status = MessageStatus.ERROR
    is_complete = status is MessageStatus.COMPLETE
    usage = exchange.usage or metadata.usage
    # An interrupted stream does not reach the event with the usage, yet its tokens are billed.
    if usage is None or (not is_complete and exchange.usage is None):
        request = exchange.request
        count = model.estimate_tokens(request.messages, request.tools) if request else 0
        usage = estimated_usage(message, model, count, reported=usage)
    if exchange.cost_usd is None:
        usage = replace(usage, latency_ms=elapsed_ms(exchange))
        usage = models.price(usage, model, exchange.started_at)
    stop_reason = metadata.stop_reason if is_complete else StopReason(status.value)
    tenant = exchange.tenant
    metadata = replace(
        metadata,
        external={EXTERNAL_KEY: exchange.id},
        model=model.id,
        origin=None,
        provider=model.provider,
        routing=_routing(exchange, model),
        status=status,
        stop_reason=stop_reason,
        team_id=principal(tenant.team_id),
        usage=usage,
        user_id=principal(tenant.user_id),
    )
    content = tuple(
        [block for block in message.content if type(block) is not TextBlock or block.text]
    )
    return Priced(replace(message, content=content, metadata=metadata), usage)


def _routing(exchange: Exchange, model: ResolvedModel) -> RoutingDecisionRecord:
    others = [f"{attempt.provider}:{attempt.model}" for attempt in exchange.attempts]
    alternatives = tuple(dict.fromkeys(other for other in others if other != model.id))
    return _routing_record(model.id, exchange.requested_model, alternatives)


@lru_cache(1024)
def _routing_record(
    model_id: str, requested: str, alternatives: tuple[str, ...]
) -> RoutingDecisionRecord:
    return RoutingDecisionRecord(
        chosen_model=model_id,
        mode=RoutingMode.OVERRIDE,
        reason=f"the client of the gateway named {requested or model_id!r}",
        alternatives_considered=alternatives,
    )


def principal(name: str | None) -> str | None:
    """Return the stable id that stands for a user or team in stored messages.

    The name of a key is that id, unless it is an e-mail address: no address is stored (M-074).
    """
    if name is None or "@" not in name:
        return name or None
    return f"id_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


# The record


def exchange_record(exchange: Exchange, usage: Usage | None) -> bytes:
    """Return the JSON of an exchange, as `GET /metis/requests/{id}` shows it."""
    cost: Decimal | None = exchange.cost_usd
    if cost is None and usage is not None and usage.pricing_version != UNPRICED:
        cost = usage.cost_usd  # an unknown price is not zero
    timings = exchange.timings
    return _write_json(
        {
            "id": exchange.id,
            "session": exchange.session_id,
            "client_protocol": exchange.client_protocol,
            "asked_model": exchange.requested_model,
            "provider": exchange.provider,
            "model": exchange.model,
            "mode": exchange.mode,
            "status": exchange.status,
            "losses": exchange.losses,
            "usage": None if usage is None else {name: getattr(usage, name) for name in _USAGE},
            # Plain digits: a small amount as 8E-7 is hard to read, and refused by some programs.
            "cost_usd": None if cost is None else format(cost, "f"),
            "attempts": exchange.attempts,
            "timings": {
                "total_ms": _since(timings.begin, timings.end),
                "sent_ms": _since(timings.begin, timings.sent),
                "first_byte_ms": _since(timings.begin, timings.first_byte),
            },
        }
    )


def wire_body(exchange: Exchange, priced: Priced, keys: Sequence[str]) -> WireBody:
    """Return the bytes that a provider got and sent; its keys are not stored."""
    message = priced.message
    is_complete = message is not None and message.metadata.status is MessageStatus.COMPLETE
    conceal = partial(_without_keys, keys=keys, may_have_errors=not is_complete)
    return WireBody(
        id=exchange.id,
        session_id=exchange.session_id,
        provider=exchange.provider,
        path=exchange.sent_path or exchange.path,
        status=exchange.status,
        request=exchange.sent_body or exchange.request_body,
        response=exchange.response_parts,
        conceal=conceal if keys else None,
    )


def _without_keys(data: bytes, keys: Sequence[str], *, may_have_errors: bool) -> bytes:
    for key in keys:
        data = bytes_without_key(data, key, may_have_errors=may_have_errors)
    return data


def _since(begin: float, moment: float) -> float | None:
    return round((moment - begin) * 1000, 3) if moment else None


# Events


def call_event(exchange: Exchange, priced: Priced, parent_session_id: str | None) -> Payload:
    """Return the bus event of an exchange: counts, cost and times, no text."""
    message, usage = priced.message, priced.usage
    user_id, team_id = principal(exchange.tenant.user_id), principal(exchange.tenant.team_id)
    timings = exchange.timings
    if message is not None and message.metadata.status is MessageStatus.COMPLETE:
        first_ms = _since(timings.begin, timings.first_byte)
        return llm_call_completed(
            message,
            first_chunk_ms=None if first_ms is None else round(first_ms),
            parent_session_id=parent_session_id,
            inbound_shape=exchange.client_protocol,
            user_id=user_id,
            team_id=team_id,
        )
    failed = LlmCallFailed(
        model=exchange.model_id,
        provider=exchange.provider,
        error_class=_error_class(exchange.status),
        error_message=f"HTTP {exchange.status}",
        latency_ms=elapsed_ms(exchange),
        retry_count=max(0, len(exchange.attempts) - 1),
        user_id=user_id,
        team_id=team_id,
    )
    if usage is None:
        return failed
    return replace(failed, **usage_totals(usage), pricing_version=usage.pricing_version)


def _error_class(status: int) -> LlmErrorClass:
    if status in _ERROR_CLASSES:
        return _ERROR_CLASSES[status]
    if status >= _SERVER_ERROR:
        return "server_error"
    return "invalid_request" if status >= _FIRST_ERROR else "network"


# The session


def new_session(exchange: Exchange, request: CanonicalRequest | None) -> SessionRecord:
    """Return the session that an exchange begins."""
    at = exchange.started_at
    return SessionRecord(
        id=exchange.session_id,
        workspace_path="" if request is None else working_directory(request.messages),
        schema_version=SCHEMA_VERSION,
        created_at=at,
        updated_at=at,
    )


def working_directory(messages: Sequence[Message]) -> str:
    """Return the directory that a coding agent names in its first prompts; else an empty text."""
    searched = 0
    for message in messages:
        if message.role is Role.ASSISTANT or searched > _MAX_SEARCHED:
            break
        for block in message.content:
            if isinstance(block, TextBlock):
                searched += len(block.text)
                match = _WORKING_DIRECTORY.search(block.text[:_MAX_SEARCHED])
                if match:
                    return match[1].strip()
    return ""


def note(exchange: Exchange, kind: str, data: Mapping[str, Any]) -> SidecarEntry:
    """Return a sidecar entry for the session of an exchange."""
    return SidecarEntry(
        id=new_ulid(),
        session_id=exchange.session_id,
        created_at=exchange.started_at,
        kind=kind,
        data=data,
    )


# Messages
