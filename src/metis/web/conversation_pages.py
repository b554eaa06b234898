"""Pages about one conversation: its messages, one response, its bytes and its export."""

import asyncio
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from metis.canonical.blocks import AudioBlock, DocumentBlock, VideoBlock
from metis.canonical.errors import InvalidValueError, MetisError
from metis.canonical.message import Message
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
from metis.store.threads import Threads
from metis.web import turns, views
from metis.web.branches import Child, branches
from metis.web.index import ViewerIndex, usd
from metis.web.statistics import Content, Query, number
from metis.web.wire_pages import WirePages

PAGE = 50
"""How many conversations or entries one page has."""
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
    """Returns pages about conversations; with a `tenant`, links lead only to its conversations."""

    def __init__(
        self, store: Store, index: ViewerIndex, tenant: str | None, trace: TraceStore | None
    ) -> None:
        self._store = store
        self._index = index
        self._tenant = tenant
        self._trace = trace
        self._wire = WirePages(store)

    async def conversation(self, session_id: str, query: Query) -> Content:
        """Return the newest messages of a conversation, or those around or before an entry."""
        session = await self._store.session(session_id)
        at, before = query.get("at", ""), number(query.get("before"))
        branch = query.get("branch", "")
        if branch:
            history = await self._branch(session_id, branch, before)
        elif at:
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
                "branch": branch,
                "last": _complete_until(history, first - 1),
                "is_newest": not at and not before and not branch,
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

    async def _branch(self, session_id: str, tip: str, before: int) -> Sequence[AnyEntry]:
        """Return the newest messages of the thread that ends with a message."""
        history = await self._store.history(session_id)
        thread = {message.id for message in Threads(history).path(tip)}
        entries = [
            entry for entry in history if entry.id in thread and (not before or entry.seq < before)
        ]
        return entries[-PAGE:]

    async def tree(self, session_id: str, query: Query) -> Content:
        """Return the branches of a conversation, with its forks and sub-agents."""
        del query
        session = await self._store.session(session_id)
        await self._index.refresh_if_due()
        history = await self._store.history(session_id)
        rows, others, has_more = branches(history, await self._children(session_id))
        values = {
            "title": "Branches",
            "session": session,
            "rows": rows,
            "others": others,
            "has_more": has_more,
            "format_usd": views.format_usd,
        }
        return Content(template="tree.html", values=values)

    async def _children(self, session_id: str) -> Sequence[Child]:
        """Return the sub-agents and forks that began in a conversation."""
        rows = await self._index.select(
            "SELECT child, kind, title, place FROM links JOIN conversations ON id = child "
            "WHERE parent = ? AND (? IS NULL OR tenant = ?) LIMIT 200",
            (session_id, self._tenant, self._tenant),
        )
        return [Child(row["child"], row["kind"], row["title"], row["place"]) for row in rows]

    async def _before(self, session_id: str, before: int) -> Sequence[AnyEntry]:
        return await self._store.read(
            lambda transaction: read_history_before(transaction, session_id, before, PAGE)
        )

    async def older(self, session_id: str, query: Query) -> Content:
        """Return the entries before a number, as a part of a page."""
        before, branch = number(query.get("before"), 1), query.get("branch", "")
        if branch:
            history = await self._branch(session_id, branch, before)
        else:
            history = await self._before(session_id, before)
        first = history[0].seq if history else 1
        values = {
            "branch": branch,
            "items": views.timeline(history),
            "session": await self._store.session(session_id),
            "before": first if first > 1 else 0,
        }
        return Content(template="items.html", values=values)

    async def newer(self, session_id: str, after: int) -> tuple[Content, int]:
        """Return the entries after a number, for the live tail, and the last number.

        A message that is still being written is included and sent again later: the returned number
        is that of the entry before it.
        """
        history = await self._store.history(session_id, after=after)
        session = await self._store.session(session_id)
        last = _complete_until(history, after)
        values = {"items": views.timeline(history), "session": session, "before": 0, "branch": ""}
        return Content(template="items.html", values=values), last

    async def turn(self, session_id: str, query: Query) -> Content:
        """Return what is recorded about one response."""
        history = await self._store.history(session_id)
        message = stored_message(history, query.get("at", ""))
        metadata, usage = message.metadata, message.metadata.usage
        body = await self._wire.body(message)
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
                "sent_count": len(views.request_history(history, message.id)),
                "body": body,
                "cache": await self._wire.cache_map(history, message, body),
                "exchange": exchange,
                "format_usd": views.format_usd,
            },
        )

    async def _exchange(self, message: Message) -> Mapping[str, Any] | None:
        exchange_id = (message.metadata.external or {}).get(EXTERNAL_KEY)
        row = await self._store.exchange(exchange_id) if isinstance(exchange_id, str) else None
        return None if row is None else msgspec.json.decode(row.record_json)

    async def request(self, session_id: str, query: Query) -> Content:
        """Return a body as text: the stored bytes, or the request as this version writes it."""
        history = await self._store.history(session_id)
        message = stored_message(history, query.get("at", ""))
        data, _ = await self._wire.plain(history, message, query)
        return Content(data=data, media_type="text/plain")

    async def bytes_page(self, session_id: str, query: Query) -> Content:
        """Return the bytes of a call, raw with their places, or indented."""
        message = await self._store.message(session_id, query.get("at", ""))
        return await self._wire.bytes_page(message, query)

    async def media(self, session_id: str, query: Query) -> Content:
        """Return the bytes of a document, audio or video, to save: a browser never shows them."""
        message = await self._store.message(session_id, query.get("at", ""))
        place = number(query.get("block"), len(message.content))
        block = message.content[place] if place < len(message.content) else None
        if not isinstance(block, DocumentBlock | AudioBlock | VideoBlock):
            raise InvalidValueError("this block contains no file")
        try:
            data = b64decode(block.source.data, validate=True)
        except ValueError:
            raise InvalidValueError("the bytes of this block are damaged") from None
        # Neither the name nor the type comes from the conversation: a browser acts on both.
        kind = _FILE_TYPES.get(block.media_type, "bin")
        return Content(data=data, media_type=_OCTETS, file_name=f"attachment.{kind}")

    async def resume(self, session_id: str, query: Query) -> Content:
        """Return the commands that continue a conversation in other programs."""
        del query
        values = {
            "title": "Continue elsewhere",
            "session": await self._store.session(session_id),
            "programs": [program.name for program in PROGRAMS if program.new_path is not None],
        }
        return Content(template="resume.html", values=values)

    # Files

    async def _exported(self, session_id: str, *, is_redacted: bool) -> tuple[bytes, Sequence[Any]]:
        session = await self._store.session(session_id)
        messages = await self._store.messages(session_id)
        # In a thread: ten megabytes take a second, during which no other page would be served.
        return await asyncio.to_thread(_export, Conversation(session, messages), is_redacted)

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


def _export(conversation: Conversation, is_redacted: bool) -> tuple[bytes, Sequence[Any]]:  # noqa: FBT001 - called by position
    data = bytes(write_html(conversation).data)
    return redact(data, [str(Path.home())]) if is_redacted else (data, ())


def stored_message(history: Sequence[AnyEntry], message_id: str) -> Message:
    """Return a message of a history.

    Raises:
        InvalidValueError: there is none with this id.
    """
    for entry in history:
        if isinstance(entry, MessageEntry) and entry.id == message_id:
            return entry.message
    raise InvalidValueError("this conversation has no such message")


def _complete_until(history: Sequence[AnyEntry], after: int) -> int:
    """Return the number of the last entry before the first message that is still being written."""
    for entry in history:
        if isinstance(entry, MessageEntry) and entry.message.metadata.status == "partial":
            break
        after = entry.seq
    return after
