"""The pages of the viewer: what each address shows, read from the store and its index."""

import os
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from metis.canonical.blocks import AudioBlock, DocumentBlock, VideoBlock
from metis.canonical.errors import InvalidValueError, MetisError, UnknownSessionError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import Usage
from metis.catalog.tables import catalog, price_table, pricing_versions
from metis.events.trace import TraceStore
from metis.interchange.export import Conversation
from metis.interchange.html import write_html
from metis.interchange.programs import PROGRAMS
from metis.interchange.redaction import redact
from metis.store import Store
from metis.store.entries import AnyEntry, MessageEntry
from metis.store.queries import read_history_before
from metis.web import turns, views
from metis.web.index import Filters, Row, ViewerIndex, usd
from metis.web.statistics import (
    DAY_US,
    MAX_CALLS,
    MAX_DAYS,
    Content,
    Query,
    Statistics,
    day_us,
    days,
    number,
    since_us,
)

PAGE = 50
"""How many conversations or entries one page has."""
_REFRESH_S = 2.0
_REFRESHED_AT_ONCE = 20
"""How many changed conversations a page reads before it shows."""
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
_CALLS = (
    "SELECT conversation, at_us, model, input, cached, written, output, pico_usd, latency_ms "
    "FROM calls WHERE at_us >= ? AND (? = '' OR conversation = ?) AND (? = '' OR project = ?) "
    "AND (? IS NULL OR tenant = ?) ORDER BY at_us LIMIT ?"
)


Handler = Callable[[str, Query], Awaitable[Content]]


class Pages:
    """Makes the pages of one store; with a `tenant`, only those of its conversations."""

    def __init__(
        self,
        store: Store,
        index: ViewerIndex,
        *,
        tenant: str | None = None,
        replayer: turns.Replayer | None = None,
        trace: TraceStore | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._tenant = tenant
        self._replayer = replayer
        self._trace = trace
        self.statistics = Statistics(index, self.refresh, tenant)
        self._refreshed_at = -_REFRESH_S
        self.listings: Mapping[str, Callable[[Query], Awaitable[Content]]] = {
            "": self.conversations,
            "changed": self.changed,
            "cost": self.statistics.cost,
            "cost.csv": self.statistics.cost_csv,
            "speed": self.statistics.speed,
            "what-if": self.what_if,
            "sql": self.statistics.sql,
        }
        self.of_session: Mapping[str, Handler] = {
            "": self.conversation,
            "older": self.older,
            "turn": self.turn,
            "request": self.request,
            "media": self.media,
            "requests": self.requests,
            "losses": self.losses,
            "what-if": self.session_what_if,
            "replay": self.replay_form,
            "resume": self.resume,
            "export": self.export_preview,
            "export.html": self.export,
        }

    async def refresh(self) -> None:
        """Read what changed in the store, at most every other second."""
        if time.monotonic() - self._refreshed_at >= _REFRESH_S:
            self._refreshed_at = time.monotonic()
            await self._index.refresh(_REFRESHED_AT_ONCE)

    async def check_access(self, session_id: str) -> None:
        """Refuse conversations of other tenants, in the words for those that do not exist.

        Raises:
            UnknownSessionError: it does not exist, or belongs to another tenant.
        """
        if self._tenant is None:
            return
        await self._store.session(session_id)
        if (await self._index.tenants_of([session_id])).get(session_id) != self._tenant:
            await self._index.refresh()
            if (await self._index.tenants_of([session_id])).get(session_id) != self._tenant:
                raise UnknownSessionError(session_id)

    # Lists

    async def conversations(self, query: Query) -> Content:
        """Return the list of conversations, or the matches of a search."""
        await self.refresh()
        words = query.get("q", "").strip()
        if words:
            return await self._matches(words)
        filters = self._filters(query)
        page = await self._index.page(filters, PAGE)
        filters_query = {name: value for name, value in query.items() if value and name != "cursor"}
        return Content(
            template="rows.html" if query.get("part") else "list.html",
            values={
                "title": "Conversations",
                "page": {"rows": [_list_row(row) for row in page.rows], "cursor": page.cursor},
                "query": query,
                "count": 0,
                "since_ms": max((row.updated_us for row in page.rows), default=0) // 1000,
                "choices": await self._index.choices(self._tenant),
                "next": urlencode({**filters_query, "part": "1", "cursor": page.cursor}),
                "providers": sorted({name.partition(":")[0] for name in views.targets()}),
            },
        )

    async def changed(self, query: Query) -> Content:
        """Return how many conversations changed since a list was made, as a part of it."""
        await self.refresh()
        since = number(query.get("since_ms")) * 1000 + 999
        sql = (
            "SELECT count(*) FROM conversations WHERE updated_us > ? AND (? IS NULL OR tenant = ?)"
        )
        rows = await self._index.select(sql, (since, self._tenant, self._tenant))
        values = {"count": rows[0][0], "since_ms": query.get("since_ms", "0")}
        return Content(template="changed.html", values=values)

    def _filters(self, query: Query) -> Filters:
        try:
            min_cost = Decimal(query.get("min_cost") or "0")
        except InvalidOperation:
            raise InvalidValueError("the least cost is a number of US dollars") from None
        if not min_cost.is_finite():
            raise InvalidValueError("the least cost is a number of US dollars")
        until = day_us(query.get("until", ""))
        return Filters(
            program=query.get("program", ""),
            model=query.get("model", ""),
            provider=query.get("provider", ""),
            project=query.get("project", ""),
            key=query.get("key", ""),
            tenant=self._tenant,
            min_cost=min(min_cost, Decimal(1_000_000)),
            only_errors=bool(query.get("errors")),
            only_losses=bool(query.get("losses")),
            since_us=day_us(query.get("since", "")),
            until_us=until + DAY_US if until else 0,
            sort=query.get("sort", "changed"),
            cursor=query.get("cursor", ""),
        )

    async def _matches(self, words: str) -> Content:
        matches = await self._store.search(words[:1000], limit=PAGE)
        ids = list({match.session_id for match in matches})
        if self._tenant is not None and ids:
            tenants = await self._index.tenants_of(ids)
            matches = [match for match in matches if tenants.get(match.session_id) == self._tenant]
        titles = await self._index.titles_of(ids) if ids else {}
        values = {"title": words, "words": words, "matches": matches, "titles": titles}
        return Content(template="search.html", values=values)

    # One conversation

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
        message = _message(history, query.get("at", ""))
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
        exchange_id = (message.metadata.external or {}).get("metis-gateway")
        row = await self._store.exchange(exchange_id) if isinstance(exchange_id, str) else None
        return None if row is None else msgspec.json.decode(row.record_json)

    async def request(self, session_id: str, query: Query) -> Content:
        """Return the body of a request or of a response as the provider's protocol writes it."""
        history = await self._store.history(session_id)
        message = _message(history, query.get("at", ""))
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

    # Only here

    async def requests(self, session_id: str, query: Query) -> Content:
        """Return one request as two models would receive it."""
        session = await self._store.session(session_id)
        history = await self._store.history(session_id)
        messages = views.request_history(history, query.get("at"))
        first = query.get("first") or views.DEFAULT_TARGETS[0]
        second = query.get("second") or views.DEFAULT_TARGETS[1]
        diff, fault = None, ""
        try:
            diff = views.request_diff(messages, first, second)
        except MetisError as error:
            fault = str(error)
        return Content(
            template="requests.html",
            values={
                "title": f"Requests of {session.id}",
                "session": session,
                "at": query.get("at", ""),
                "first": first,
                "second": second,
                "targets": views.targets(),
                "diff": diff,
                "fault": fault,
            },
        )

    async def losses(self, session_id: str, query: Query) -> Content:
        """Return what targets would not get, and what the next request would cost there."""
        session = await self._store.session(session_id)
        chosen = query.get("model", "")
        names = [chosen] if chosen else list(views.DEFAULT_TARGETS)
        history = await self._store.history(session_id)
        messages = views.request_history(history, None)
        rows, others, faults = views.loss_lane(messages, names)
        calls = await self._calls(session_id=session_id)
        return Content(
            template="losses.html",
            values={
                "title": f"Losses of {session.id}",
                "session": session,
                "names": names,
                "chosen": chosen,
                "targets": views.targets(),
                "rows": rows,
                "others": others,
                "faults": faults,
                "prices": [turns.what_if(calls[-1:], name) for name in names],
                "format_usd": views.format_usd,
            },
        )

    async def session_what_if(self, session_id: str, query: Query) -> Content:
        """Return what a conversation would cost under another model or price table."""
        calls = await self._calls(session_id=session_id)
        return self._what_if_page(calls, query, await self._store.session(session_id))

    async def what_if(self, query: Query) -> Content:
        """Return what a project or a time would cost under another model or price table."""
        await self.refresh()
        calls = await self._calls(days=days(query), project=query.get("project", ""))
        return self._what_if_page(calls, query, None)

    def _what_if_page(self, calls: Sequence[turns.Call], query: Query, session: Any) -> Content:
        version = query.get("prices", "")
        table = price_table(version) if version in pricing_versions() else None
        chosen = query.get("model", "")
        names = [chosen] if chosen else ["", *views.DEFAULT_TARGETS]
        return Content(
            template="what_if.html",
            values={
                "title": "What if",
                "session": session,
                "results": [turns.what_if(calls, name, table) for name in names],
                "chosen": chosen,
                "targets": views.targets(),
                "versions": pricing_versions(),
                "version": version,
                "days": days(query),
                "project": query.get("project", ""),
                "format_usd": views.format_usd,
                "count": len(calls),
            },
        )

    async def _calls(
        self, *, days: int = MAX_DAYS, session_id: str = "", project: str = ""
    ) -> list[turns.Call]:
        since = since_us(days)
        pairs = (session_id, session_id, project, project, self._tenant, self._tenant)
        if session_id:
            await self._index.refresh()
        rows = await self._index.select(_CALLS, (since, *pairs, MAX_CALLS))
        return [
            turns.Call(
                row["conversation"],
                datetime.fromtimestamp(row["at_us"] / 1_000_000, UTC),
                row["model"],
                Usage(
                    input_tokens=row["input"],
                    cached_input_tokens=row["cached"],
                    cache_creation_input_tokens=row["written"],
                    output_tokens=row["output"],
                    cost_usd=usd(row["pico_usd"]),
                    latency_ms=row["latency_ms"],
                    pricing_version="stored",
                ),
            )
            for row in rows
        ]

    async def replay_form(self, session_id: str, query: Query) -> Content:
        """Return the form that asks another model for the response at a message."""
        return await self._replay_page(session_id, query.get("at", ""), query.get("model", ""))

    async def replay(self, session_id: str, form: Query) -> Content:
        """Ask another model for a response to the same history, and compare both."""
        at, model = form.get("at", ""), form.get("model", "")
        if self._replayer is None:
            raise InvalidValueError("this viewer cannot call models; start it with `metis web`")
        history = await self._store.history(session_id)
        message = _message(history, at)
        fault, comparison = "", None
        try:
            answer = await self._replayer(views.request_history(history, at), model)
            comparison = turns.compare_answers(message, answer)
        except MetisError as error:
            fault = str(error)
        return await self._replay_page(session_id, at, model, comparison, fault)

    async def _replay_page(
        self,
        session_id: str,
        at: str,
        model: str,
        comparison: turns.Comparison | None = None,
        fault: str = "",
    ) -> Content:
        values = {
            "title": "The same turn, another model",
            "session": await self._store.session(session_id),
            "at": at,
            "model": model or "sim",
            "targets": ["sim", *views.targets()],
            "comparison": comparison,
            "fault": fault,
            "can_replay": self._replayer is not None,
        }
        return Content(template="replay.html", values=values)

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


def _list_row(row: Row) -> dict[str, Any]:
    moment = datetime.fromtimestamp(row.updated_us / 1_000_000, UTC)
    return {
        **row._asdict(),
        "program": row.program.removeprefix("import:"),
        "cost": f"${usd(row.pico_usd):.4f}" if row.pico_usd else "",
        "exact_cost": views.format_usd(usd(row.pico_usd)),
        "time": moment.strftime("%Y-%m-%d %H:%M"),
    }


def _message(history: Sequence[AnyEntry], message_id: str) -> Message:
    for entry in history:
        if isinstance(entry, MessageEntry) and entry.id == message_id:
            return entry.message
    raise InvalidValueError("this conversation has no such message")


def _is_partial(entry: AnyEntry) -> bool:
    return isinstance(entry, MessageEntry) and entry.message.metadata.status == "partial"


def index_path(store_name: str, home: Path) -> Path | None:
    """Return where the index of a store is, in a directory that can be written; None elsewhere."""
    if not os.access(home, os.W_OK):
        return None
    digest = msgspec.json.encode(store_name).hex()[-16:]
    return home / f"viewer-{digest}.db"
