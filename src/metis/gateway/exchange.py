"""One exchange through the gateway: what a client sent, where it went, and what came back."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
from msgspec import Struct

from metis.adapters.adapter import Adapter
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import Usage
from metis.projection import Loss
from metis.wire.call import CanonicalRequest

Mode = Literal["pass", "translate"]
"""Whether the bytes of a client went on as they came, or were translated."""

CLIENT_LEFT = 499
"""The status of an exchange whose client left before the end."""
MAX_RECORDED_BYTES = 16 * 1024 * 1024
"""How much of a response is collected for the store; a longer one is passed, but not stored."""


def _now() -> datetime:
    return datetime.now(UTC)


_MERGED_PARTS = 1024


class BodyCollector:
    """Collects the body of a response beside its passing, up to a limit.

    Many small parts are merged: bytes that come one by one would take forty times their memory.
    """

    def __init__(self, exchange: "Exchange", max_bytes: int = MAX_RECORDED_BYTES) -> None:
        self._exchange = exchange
        self._free = max_bytes
        self._unmerged = 0

    def add(self, data: bytes) -> None:
        """Add a part; beyond the limit nothing is collected any more, and the exchange says so."""
        exchange = self._exchange
        self._free -= len(data)
        if self._free < 0:
            exchange.is_truncated = True
            return
        parts = exchange.response_parts
        parts.append(data)
        self._unmerged += 1
        if self._unmerged == _MERGED_PARTS:
            parts[-_MERGED_PARTS:] = [b"".join(parts[-_MERGED_PARTS:])]
            self._unmerged = 0


class Tenant(Struct, frozen=True):
    """Whose key a client used: `team/user=KEY` names both, `user=KEY` the user alone."""

    user_id: str | None = None
    team_id: str | None = None


class Attempt(Struct, frozen=True, kw_only=True):
    """One call of a provider for a request."""

    provider: str
    model: str
    status: int | None = None
    """The HTTP status; None if no response came."""
    error: str | None = None
    milliseconds: int = 0


class Placing(Struct, frozen=True):
    """Where an exchange belongs, beside its session; see `placement.resolve`."""

    scope: str
    kind: str
    parent_session_id: str | None = None


class Timings(Struct, kw_only=True):
    """Moments of an exchange, in seconds of the monotonic clock; zero if not reached."""

    begin: float = msgspec.field(default_factory=time.monotonic)
    sent: float = 0.0
    """When the request went to the provider."""
    first_byte: float = 0.0
    """When the first byte of the response came."""
    end: float = 0.0


class Exchange(Struct, kw_only=True):
    """One request of a client with its response.

    The request handler fills it. After `Recorder.record` nobody changes it but the recorder. In
    the mode `pass` only the bytes are set: whoever stores the exchange decodes them, beside the
    answer.
    """

    id: str = msgspec.field(default_factory=new_ulid)
    started_at: datetime = msgspec.field(default_factory=_now)
    tenant: Tenant = Tenant()
    client_protocol: str
    """The protocol of the client, such as `anthropic`."""
    client_adapter: str
    """The adapter that reads the client's request and writes its response."""
    path: str
    """The path that the client called, which states the model in some protocols."""
    headers: Mapping[str, str] = {}
    """The client's headers that name a session, an agent or a program; never credentials."""
    requested_model: str = ""
    provider: str = ""
    model: str = ""
    """The provider's name of the model."""
    adapter: Adapter | None = None
    """The adapter of the provider that answered."""
    mode: Mode = "pass"
    is_stream: bool = False
    kind: Literal["chat", "count", "other"] = "chat"
    """What was called for: a response of a model, a count of tokens, anything else."""
    session_id: str = ""
    """The conversation to which the exchange belongs; `Recorder.begin` sets it."""
    placing: Placing | None = None
    """Where it belongs in that conversation, after the exchange was in a file."""

    request_body: bytes = b""
    request: CanonicalRequest | None = None
    """The decoded request, if it was translated."""
    request_adapter: str = ""
    """The adapter that reads the body, if it is not `client_adapter`."""
    sent_body: bytes = b""
    """The body that the provider got, if it is not that of the client."""
    sent_path: str = ""
    """The path that the provider got, if it is not that of the client."""
    records_bytes: bool = False
    """Whether the bytes of both bodies are stored, so that they are collected."""
    response_parts: list[bytes] = []
    """The body of the response as the provider sent it, decompressed; in the mode `translate` only
    if it is to be stored."""
    is_truncated: bool = False
    """Whether the response was longer than what is collected."""
    received_bytes: int = 0
    """How long the body of the response was, if it was translated."""
    response: Message | None = None
    """The decoded response, if it was translated."""

    status: int = 0
    """The status that the client received, or `CLIENT_LEFT`."""
    error: str | None = None
    losses: list[Loss] = []
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    attempts: list[Attempt] = []
    timings: Timings = msgspec.field(default_factory=Timings)
    facts: dict[str, Any] = {}
    """What the recorder notes about the exchange: where it belongs, and its record."""

    @property
    def size(self) -> int:
        """How many bytes of the request and the response have to be read."""
        parts = sum(map(len, self.response_parts))
        return max(len(self.request_body), self.received_bytes, parts)

    @property
    def model_id(self) -> str:
        """The canonical id of the model, for its price."""
        return f"{self.provider}:{self.model}"
