"""Conversations that the viewer shows: for its tests, and for the images of the docs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from metis.canonical import (
    ContentBlock,
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    Usage,
    new_ulid,
)
from metis.store import Store
from metis.store.wire_bodies import WireBody

MODEL = "anthropic:claude-sonnet-4-6"
Part = tuple[Role, Sequence[ContentBlock], dict[str, Any]]
"""Role, content and metadata of a message."""


def message(
    session_id: str, role: Role, *blocks: ContentBlock, at: datetime, **metadata: Any
) -> Message:
    """A message with a new id."""
    return Message(
        id=new_ulid(),
        session_id=session_id,
        role=role,
        content=blocks,
        created_at=at,
        metadata=MessageMetadata(**metadata),
    )


def answered(
    model: str = MODEL, *, cost: str = "0.0063", reason: str = "default", **usage: Any
) -> dict[str, Any]:
    """The metadata of a response: who gave it and why, and what it used."""
    counts: dict[str, Any] = {"input_tokens": 2000, "output_tokens": 20, "latency_ms": 1200}
    return {
        "model": model,
        "provider": model.partition(":")[0],
        "routing": RoutingDecisionRecord(
            mode=RoutingMode.DEFAULT, chosen_model=model, reason=reason
        ),
        "usage": Usage(cost_usd=Decimal(cost), pricing_version="2026-05-08", **counts | usage),
    }


async def add_messages(
    store: Store, session_id: str, start: datetime, parts: Sequence[Part]
) -> list[Message]:
    """Store messages of a conversation, a second apart."""
    messages = [
        message(session_id, role, *blocks, at=start + timedelta(seconds=number), **metadata)
        for number, (role, blocks, metadata) in enumerate(parts)
    ]
    for one in messages:
        await store.append(one)
    return messages


def wire_body(response: Message, request: bytes) -> WireBody:
    """The bytes of the call that a response came from."""
    return WireBody(
        id=response.id,
        session_id=response.session_id,
        provider="anthropic",
        path="/v1/messages",
        request=request,
        response=(b'event: message_start\ndata: {"type":"message_start"}\n\n',),
    )
