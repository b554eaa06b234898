"""What a client of Responses continues by id: the items of earlier requests and their responses."""

from collections import OrderedDict
from typing import Any

import msgspec

_decode = msgspec.json.Decoder(list[Any]).decode
_encode = msgspec.json.Encoder().encode
_MAX_BYTES = 64 * 1024 * 1024
_MAX_ENTRY_BYTES = 16 * 1024 * 1024


class ResponseStates:
    """The items that each response continues, by tenant and id; the oldest are forgotten first.

    OpenAI stores them for its own models. For any other provider the gateway sends them again, so
    that a conversation can go on wherever its next request goes.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def add(self, tenant: str, response_id: str, items: list[Any]) -> None:
        """Hold the items of a response."""
        data = _encode(items)
        if len(data) > _MAX_ENTRY_BYTES:
            return
        self._bytes += len(data) - len(self._items.pop((tenant, response_id), b""))
        self._items[tenant, response_id] = data
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._items.popitem(last=False)[1])

    def has(self, tenant: str, response_id: str) -> bool:
        """Whether the items of a response are held."""
        return (tenant, response_id) in self._items

    def expand(self, tenant: str, request: dict[str, Any]) -> list[Any]:
        """Put the items of the response that a request continues before its own; returns all.

        A request that continues an unknown response is not changed.
        """
        given = request.get("input")
        items: list[Any] = (
            [{"type": "message", "role": "user", "content": given}]
            if isinstance(given, str)
            else list(given or [])
        )
        data = self._items.get((tenant, str(request.get("previous_response_id"))))
        if data is not None:
            items = [*_decode(data), *items]
            del request["previous_response_id"]
            request["input"] = items
        return items
