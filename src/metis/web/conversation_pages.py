"""The pages about one conversation: its messages, one response of it, its bytes and its export."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from metis.canonical.blocks import AudioBlock, DocumentBlock, VideoBlock
from metis.canonical.errors import InvalidValueError, MetisError
from metis.canonical.message import Message, Role
from metis.catalog.tables import catalog
from metis.events.trace import TraceStore
from metis.interchange.export import Conversation
from metis.interchange.html import write_html
from metis.interchange.programs import PROGRAMS
from metis.interchange.redaction import redact
from metis.store import Store
from metis.store.entries import AnyEntry, MessageEntry
from metis.store.exchanges import EXTERNAL_KEY
from metis.store.queries import read_history_before
from metis.web import turns, views
from metis.web.index import ViewerIndex, usd
from metis.web.statistics import Content, Query, number

PAGE = 50
"""How many conversations or entries one page has."""
_BYTES_BEFORE, _BYTES_BEHIND = 200, 4_000
"""How much of a request is shown around a byte."""
_OCTETS = "application/octet-stream"
_FILE_TYPES = {
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/csv": "csv",
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "video/mp4": "mp4",
}


class ConversationPages:
    """Makes the pages about conversations; with a `tenant`, it links to those of its own."""

    def __init__(
        self, store: Store, index: ViewerIndex, tenant: str | None, trace: TraceStore | None
    ) -> None:
        self._store = store
        self._index = index
        self._tenant = tenant
        self._trace = trace

    async def conversation(self, session_id: str, query: Query) -> Content:
        """Return the newest page of a conversation, or the one that ends behind a message."""
        session = await self._store.session(session_id)
        at, before = query.get("at", ""), number(query.get("before"))
        if at:
            history = await self._around(session_id, at)
        elif before:
            history = await self._before(session_id, before)
        else:
            history = await self._store.history(session_id, newest=PAGE)
        first = history[0].seq if history else 1
        row = await self._index.select(
            "SELECT title, model, pico_usd, messages FROM conversations WHERE id = ?", (session_id,)
        )
        return Content(
            template="conversation.html",
            values={
                "title": (row[0]["title"] if row else "") or session_id,
                "session": session,
                "items": views.timeline(history),
                "before": first if first > 1 else 0,
                "last": history[-1].seq if history else 0,
                "is_newest": not at and not before,
                "cost": views.format_usd(usd(row[0]["pico_usd"])) if row else "",
                "children": await self._children(session_id),
            },
        )

    async def _around(self, session_id: str, message_id: str) -> Sequence[AnyEntry]:
        history = await self._store.history(session_id)
        at = next((entry.seq for entry in history if entry.id == message_id), None)
        if at is None:
            return history[-PAGE:]
        return [entry for entry in history if at - PAGE // 2 <= entry.seq <= at + PAGE // 2]

    async def _children(self, session_id: str) -> Sequence[tuple[str, str, str]]:
        """Return sub-agents and forks: id, kind and title."""
        rows = await self._index.select(
            "SELECT child, kind, title FROM links JOIN conversations ON id = child "
            "WHERE parent = ? AND (? IS NULL OR tenant = ?) LIMIT 200",
            (session_id, self._tenant, self._tenant),
        )
        return [(row["child"], row["kind"], row["title"]) for row in rows]

    async def _before(self, session_id: str, before: int) -> Sequence[AnyEntry]:
        return await self._store.read(
            lambda transaction: read_history_before(transaction, session_id, before, PAGE)
        )

    async def older(self, session_id: str, query: Query) -> Content:
        """Return the entries before a number, as a part of a page."""
        history = await self._before(session_id, number(query.get("before"), 1))
        first = history[0].seq if history else 1
        values = {
            "items": views.timeline(history),
            "session": await self._store.session(session_id),
            "before": first if first > 1 else 0,
        }
        return Content(template="items.html", values=values)

    async def newer(self, session_id: str, after: int) -> tuple[Content, int]:
        """Return the entries after a number, for the live tail, and the last number."""
        history = await self._store.history(session_id, after=after)
        session = await self._store.session(session_id)
        complete = [entry for entry in history if not _is_partial(entry)]
        last = complete[-1].seq if complete else after
        values = {"items": views.timeline(complete), "session": session, "before": 0}
        return Content(template="items.html", values=values), last

    async def turn(self, session_id: str, query: Query) -> Content:
        """Return what is recorded about one response."""
        history = await self._store.history(session_id)
        message = stored_message(history, query.get("at", ""))
        metadata, usage = message.metadata, message.metadata.usage
        sent = views.request_history(history, message.id)
        exchange = await self._exchange(message)
        events = [] if self._trace is None else await turns.turn_events(self._trace, message)
        window = None
        model = metadata.model or ""
        with suppress(MetisError):
            window = catalog().capabilities(model).max_context_tokens
        return Content(
            template="turn.html",
            values={
                "title": f"Response of {model}",
                "session": await self._store.session(session_id),
                "message": views.message_views([message])[0],
                "metadata": metadata,
                "usage": usage,
                "slots": turns.routing_steps(events, metadata.routing),
                "failures": turns.failed_attempts(events),
                "first_ms": turns.first_chunk_ms(events, message),
                "window": window,
                "sent_count": len(sent),
                "cache": turns.cache_map([*sent, message], message.id)
                if message.role is Role.ASSISTANT
                else None,
                "exchange": exchange,
                "format_usd": views.format_usd,
            },
        )

    async def _exchange(self, message: Message) -> Mapping[str, Any] | None:
        exchange_id = (message.metadata.external or {}).get(EXTERNAL_KEY)
        row = await self._store.exchange(exchange_id) if isinstance(exchange_id, str) else None
        return None if row is None else msgspec.json.decode(row.record_json)

    async def request(self, session_id: str, query: Query) -> Content:
        """Return the body of a request or of a response as the provider's protocol writes it."""
        history = await self._store.history(session_id)
        message = stored_message(history, query.get("at", ""))
        target = query.get("model") or message.metadata.model or ""
        body = views.wire_request(views.request_history(history, message.id), target).body
        if query.get("form") == "pretty":
            body = msgspec.json.format(body, indent=2)
        elif "byte" in query:
            place = number(query["byte"])
            body = body[max(0, place - _BYTES_BEFORE) : place + _BYTES_BEHIND]
        return Content(data=bytes(body), media_type="text/plain")

    async def media(self, session_id: str, query: Query) -> Content:
        """Return the bytes of a document, audio or video, to save: a browser never shows them."""
        message = await self._store.message(session_id, query.get("at", ""))
        place = number(query.get("block"), len(message.content))
        block = message.content[place] if place < len(message.content) else None
        if not isinstance(block, DocumentBlock | AudioBlock | VideoBlock):
            raise InvalidValueError("this block holds no file")
        try:
            data = b64decode(block.source.data, validate=True)
        except ValueError:
            raise InvalidValueError("the bytes of this block are damaged") from None
        # Neither name nor type of the file come from the conversation: a browser acts on both.
        kind = _FILE_TYPES.get(block.media_type, "bin")
        return Content(data=data, media_type=_OCTETS, file_name=f"attachment.{kind}")

    async def resume(self, session_id: str, query: Query) -> Content:
        """Return the commands that continue a conversation in other programs."""
        del query
        values = {
            "title": "Continue elsewhere",
            "session": await self._store.session(session_id),
            "programs": [program.name for program in PROGRAMS],
        }
        return Content(template="resume.html", values=values)

    # Files

    async def _exported(self, session_id: str, *, is_redacted: bool) -> tuple[bytes, Sequence[Any]]:
        session = await self._store.session(session_id)
        messages = await self._store.messages(session_id)
        data = bytes(write_html(Conversation(session, messages)).data)
        return redact(data, [str(Path.home())]) if is_redacted else (data, ())

    async def export_preview(self, session_id: str, query: Query) -> Content:
        """Return what an export with redaction would replace."""
        del query
        data, replaced = await self._exported(session_id, is_redacted=True)
        values = {
            "title": "Export",
            "session": await self._store.session(session_id),
            "replaced": replaced,
            "size": len(data),
        }
        return Content(template="export.html", values=values)

    async def export(self, session_id: str, query: Query) -> Content:
        """Return a conversation as one HTML file, redacted or as it is."""
        data, _ = await self._exported(session_id, is_redacted=bool(query.get("redact")))
        return Content(data=data, file_name="conversation.html")


def stored_message(history: Sequence[AnyEntry], message_id: str) -> Message:
    """Return a message of a history.

    Raises:
        InvalidValueError: there is none with this id.
    """
    for entry in history:
        if isinstance(entry, MessageEntry) and entry.id == message_id:
            return entry.message
    raise InvalidValueError("this conversation has no such message")


def _is_partial(entry: AnyEntry) -> bool:
    return isinstance(entry, MessageEntry) and entry.message.metadata.status == "partial"
