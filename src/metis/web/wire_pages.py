"""Pages about bytes: a request as it was sent, a response as it was received, the cache map."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from metis.canonical.errors import InvalidValueError, MetisError
from metis.canonical.message import Message, Role
from metis.store import Store
from metis.store.entries import AnyEntry, MessageEntry
from metis.store.exchanges import EXTERNAL_KEY
from metis.store.wire_bodies import StoredBody, read_previous_body
from metis.streaming.text_frames import SseParser
from metis.web import turns, views
from metis.web.statistics import Content, Query, number

ROW_BYTES = 1_000
"""How many bytes a row of a raw body shows; each row has a link."""
PAGE_ROWS = 100
_BEFORE = 2
"""How many rows a link to a byte shows before it."""
_MAX_PRETTY = 400_000


class ByteRow(Struct, frozen=True):
    """Some bytes of a body, and where they begin."""

    offset: int
    text: str


class BytesPage(Struct, frozen=True, kw_only=True):
    """A part of a body, raw with offsets or indented."""

    rows: list[ByteRow]
    pretty: str
    size: int
    previous: int | None
    """Where the page before begins; None on the first."""
    following: int | None
    is_cut: bool


class WirePages:
    """Returns the pages about the bytes of one response."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def body(self, message: Message) -> StoredBody | None:
        """Return the stored bytes of the call that a response came from."""
        exchange_id = (message.metadata.external or {}).get(EXTERNAL_KEY)
        body_id = exchange_id if isinstance(exchange_id, str) else message.id
        return await self._store.wire_body(message.session_id, body_id)

    async def cache_map(
        self, history: Sequence[AnyEntry], message: Message, body: StoredBody | None
    ) -> turns.CacheMap | None:
        """Compare a request with the one before it to the same provider.

        The stored bytes are compared; without them, those that this version would write.
        """
        if message.role is not Role.ASSISTANT:
            return None
        if body is None:
            sent = views.request_history(history, message.id)
            return turns.rewritten_cache_map([*sent, message], message.id)
        previous = await self._store.read(
            lambda transaction: read_previous_body(transaction, message.session_id, body)
        )
        previous_id = "" if previous is None else _response_id(history, previous.id)
        old = b"" if previous is None else previous.request
        return turns.cache_map(old, body.request, message, previous_id)

    async def bytes_page(self, message: Message, query: Query) -> Content:
        """Return the request or the response of a call, byte by byte or indented."""
        side = "response" if query.get("side") == "response" else "request"
        body = await self.body(message)
        data = b"" if body is None else getattr(body, side)
        is_pretty = query.get("form") == "pretty"
        byte = number(query["byte"]) if "byte" in query else None
        if byte is not None and byte >= max(1, len(data)):
            raise InvalidValueError(f"the {side} has {len(data):,} bytes")
        values = {
            "title": f"The {side} as it was {'sent' if side == 'request' else 'received'}",
            "session": await self._store.session(message.session_id),
            "at": message.id,
            "body": body,
            "side": side,
            "form": "pretty" if is_pretty else "raw",
            "byte": byte,
            "part": _pretty_page(data)
            if is_pretty
            else _raw_page(data, number(query.get("from")), byte),
        }
        return Content(template="bytes.html", values=values)

    async def plain(
        self, history: Sequence[AnyEntry], message: Message, query: Query
    ) -> tuple[bytes, bool]:
        """Return a body as a file, and whether it is what was sent or only written again."""
        body = await self.body(message)
        if body is not None and not query.get("model"):
            return (body.response if query.get("side") == "response" else body.request), True
        target = query.get("model") or message.metadata.model or ""
        try:
            sent = views.request_history(history, message.id)
            return bytes(views.wire_request(sent, target).body), False
        except MetisError as error:
            raise InvalidValueError(f"the request cannot be written again: {error}") from None


def _response_id(history: Sequence[AnyEntry], body_id: str) -> str:
    """Return the message of the call with these bytes; empty if it left none."""
    for entry in reversed(history):
        if isinstance(entry, MessageEntry):
            external = entry.message.metadata.external or {}
            if entry.id == body_id or external.get(EXTERNAL_KEY) == body_id:
                return entry.id
    return ""


def _raw_page(data: bytes, start: int, byte: int | None) -> BytesPage:
    """Return rows of bytes; a row begins at the byte that a link names."""
    if byte is not None:
        start = max(0, byte - _BEFORE * ROW_BYTES)
    start = _boundary(data, min(start, max(0, len(data) - 1)))
    offset = start
    rows: list[ByteRow] = []
    while offset < len(data) and len(rows) < PAGE_ROWS:
        end = min(offset + ROW_BYTES, len(data))
        if byte is not None and offset < byte < end:
            end = byte
        # A UTF-8 character is not split, unless the link names a byte within it.
        if end not in (byte, len(data)):
            end = max(_boundary(data, end), offset + 1)
        rows.append(ByteRow(offset, data[offset:end].decode("utf-8", "replace")))
        offset = end
    return BytesPage(
        rows=rows,
        pretty="",
        size=len(data),
        previous=max(0, start - PAGE_ROWS * ROW_BYTES) if start else None,
        following=offset if offset < len(data) else None,
        is_cut=False,
    )


def _boundary(data: bytes, offset: int) -> int:
    """Return the last offset up to the given one where a UTF-8 character begins."""
    for back in range(min(4, offset + 1)):
        if offset - back < len(data) and data[offset - back] & 0xC0 != 0x80:  # noqa: PLR2004 - a continuation byte
            return offset - back
    return offset


def _pretty_page(data: bytes) -> BytesPage:
    text = _indented(data)
    return BytesPage(
        rows=[],
        pretty=text[:_MAX_PRETTY],
        size=len(data),
        previous=None,
        following=None,
        is_cut=len(text) > _MAX_PRETTY,
    )


def _indented(data: bytes) -> str:
    """Return JSON, or the events of a stream, indented; anything else as it is."""
    # Indenting shortens nothing, so four times the shown length is enough of a stream.
    data = data[: 4 * _MAX_PRETTY] if data[:1] not in (b"{", b"[") else data
    with suppress(msgspec.MsgspecError, RecursionError):
        return msgspec.json.format(data, indent=2).decode("utf-8", "replace")
    try:
        frames = SseParser().feed(data + b"\n\n")
    except MetisError:
        frames = []
    # A stream without events has an object on each line.
    parts = [(b"event: " + name, event) for name, event in frames if event] or [
        (b"", line) for line in data.splitlines()
    ]
    lines: list[bytes] = []
    for name, event in parts:
        text = bytes(event)
        with suppress(msgspec.MsgspecError, RecursionError):
            text = msgspec.json.format(text, indent=2)
        lines += (name, text) if name else (text,)
    return b"\n".join(lines).decode("utf-8", "replace")
