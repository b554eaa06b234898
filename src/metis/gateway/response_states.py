"""What a client of Responses continues by id: the items of earlier requests and their responses."""

import asyncio
import logging
from collections import OrderedDict
from typing import Any

import msgspec

from metis.canonical.errors import StoreError
from metis.store import Store
from metis.store.exchanges import ResponseItems

log = logging.getLogger("metis.gateway")

_decode = msgspec.json.Decoder(list[Any]).decode
_encode = msgspec.json.Encoder().encode
_MAX_BYTES = 64 * 1024 * 1024
_MAX_ENTRY_BYTES = 16 * 1024 * 1024
_MAX_LINKS = 5000
"""How many responses of a conversation are read from the store for one request."""
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""How long a response is waited for that another worker may be storing just now, each time."""


class ResponseStates:
    """The items that each response continues, by tenant and id; the oldest are forgotten first.

    OpenAI stores them for its own models. For any other provider the gateway sends them again, so
    that a conversation can go on wherever its next request goes. With a store every worker of the
    gateway finds them, also after a restart: each response is stored with what its request added.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES, store: Store | None = None) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._items: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._store = store
        self._writes: set[asyncio.Task[None]] = set()

    def add(self, tenant: str, response_id: str, items: list[Any]) -> None:
        """Hold the items of a response."""
        self._hold(tenant, response_id, _encode(items))

    def _hold(self, tenant: str, response_id: str, data: bytes) -> None:
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
        items = own_items(request)
        data = self._items.get((tenant, str(request.get("previous_response_id"))))
        if data is not None:
            items = [*_decode(data), *items]
            del request["previous_response_id"]
            request["input"] = items
        return items

    # The store

    def save(self, row: ResponseItems) -> None:
        """Store what a response adds to the one that it continues; the answer does not wait."""
        if self._store is None or len(row.items_json) > _MAX_ENTRY_BYTES:
            return
        task = asyncio.ensure_future(self._save(self._store, row))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _save(self, store: Store, row: ResponseItems) -> None:
        try:
            await store.add_response_items(row)
        except StoreError as error:
            log.warning("response %.80r can be continued here only: %s", row.id, error)

    async def close(self) -> None:
        """Wait until everything is stored."""
        await asyncio.gather(*self._writes)

    async def load(self, tenant: str, response_id: str, *, may_wait: bool) -> None:
        """Hold the items of a response, if they are stored.

        With `may_wait` they may come a moment later: another worker has just answered.
        """
        store = self._store
        if store is None or self.has(tenant, response_id):
            return
        try:
            row = await store.response_items(tenant, response_id)
            for pause in _PAUSES_S if may_wait else ():
                if row is not None:
                    break
                await asyncio.sleep(pause)
                row = await store.response_items(tenant, response_id)
            if row is not None:
                await self._load_chain(store, row)
        except StoreError as error:
            log.warning("response %.80r could not be looked up: %s", response_id, error)

    async def _load_chain(self, store: Store, row: ResponseItems) -> None:
        """Hold the items of a response and of those before it; nothing if one is missing."""
        tenant, response_id = row.tenant, row.id
        parts = [row.items_json]
        ids = {row.id}
        size = len(row.items_json)
        while row.previous_id:
            earlier = self._items.get((tenant, row.previous_id))
            if earlier is not None:
                parts.append(earlier.decode())
                break
            before = await store.response_items(tenant, row.previous_id)
            # A provider that repeats its ids makes circles.
            if before is None or before.id in ids or len(ids) >= _MAX_LINKS:
                return
            row = before
            ids.add(row.id)
            parts.append(row.items_json)
            size += len(row.items_json)
            if size > _MAX_ENTRY_BYTES:
                return
        items = [item for part in reversed(parts) for item in _decode(part)]
        self.add(tenant, response_id, items)


def own_items(request: dict[str, Any]) -> list[Any]:
    """Return the items of a Responses request, without those of what it continues."""
    value = request.get("input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return list(value or [])
