"""Requests of clients, read for one tenant at a time."""

from metis.adapters.adapter import Adapter
from metis.wire.call import CanonicalRequest, RequestContext


class RequestReader:
    """Reads requests of clients."""

    def __init__(self, max_bytes: int = 32 * 1024 * 1024) -> None:
        self.max_bytes = max_bytes

    def read(
        self, adapter: Adapter, _tenant: str, body: bytes, context: RequestContext
    ) -> CanonicalRequest:
        """Return the canonical request of a client."""
        return adapter.from_wire_request(body, context)
