"""The pages of the viewer: what each address shows, read from the store and its index."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlencode

from metis.canonical.errors import InvalidValueError, UnknownSessionError
from metis.events.trace import TraceStore
from metis.store import Store
from metis.web import turns, views
from metis.web.comparison_pages import ComparisonPages
from metis.web.conversation_pages import PAGE, ConversationPages
from metis.web.index import Filters, Row, ViewerIndex, usd
from metis.web.statistics import DAY_US, Content, Query, Statistics, day_us, number

Handler = Callable[[str, Query], Awaitable[Content]]


class Pages:
    """Returns the pages of one store; with a `tenant`, only those of its conversations."""

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
        self.conversation_pages = ConversationPages(store, index, tenant, trace)
        self.comparisons = ComparisonPages(store, index, tenant, replayer)
        statistics = Statistics(index, tenant)
        self.listings: Mapping[str, Callable[[Query], Awaitable[Content]]] = {
            "": self.conversations,
            "changed": self.changed,
            "cost": statistics.cost,
            "cost.csv": statistics.cost_csv,
            "speed": statistics.speed,
            "what-if": self.comparisons.what_if,
            "sql": statistics.sql,
        }
        self.of_session: Mapping[str, Handler] = {
            "": self.conversation_pages.conversation,
            "older": self.conversation_pages.older,
            "turn": self.conversation_pages.turn,
            "tree": self.conversation_pages.tree,
            "bytes": self.conversation_pages.bytes_page,
            "request": self.conversation_pages.request,
            "media": self.conversation_pages.media,
            "requests": self.comparisons.requests,
            "losses": self.comparisons.losses,
            "what-if": self.comparisons.session_what_if,
            "replay": self.comparisons.replay_form,
            "resume": self.conversation_pages.resume,
            "export": self.conversation_pages.export_preview,
            "export.html": self.conversation_pages.export,
        }

    async def check_access(self, session_id: str) -> None:
        """Refuse conversations of other tenants with the error for those that do not exist.

        Raises:
            UnknownSessionError: it does not exist, or belongs to another tenant.
        """
        if self._tenant is None:
            return
        await self._store.session(session_id)
        sql = "SELECT DISTINCT tenant FROM exchanges WHERE session_id = ?"
        tenants = await self._store.read(lambda t: t.run(sql, (session_id,)))
        if tenants != [(self._tenant,)]:
            raise UnknownSessionError(session_id)

    # Lists

    async def conversations(self, query: Query) -> Content:
        """Return the list of conversations, or the matches of a search."""
        await self._index.refresh_if_due()
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
        await self._index.refresh_if_due()
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
            raise InvalidValueError("the minimum cost must be a number of US dollars") from None
        if not min_cost.is_finite():
            raise InvalidValueError("the minimum cost must be a number of US dollars")
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
        # Matches of other tenants are removed afterwards, so more are searched for a tenant.
        limit = PAGE if self._tenant is None else 20 * PAGE
        matches = await self._store.search(words[:1000], limit=limit)
        ids = list({match.session_id for match in matches})
        if self._tenant is not None and ids:
            tenants = await self._index.column("tenant", ids)
            matches = [match for match in matches if tenants.get(match.session_id) == self._tenant]
        matches = matches[:PAGE]
        titles = await self._index.column("title", ids) if ids else {}
        values = {"title": words, "words": words, "matches": matches, "titles": titles}
        return Content(template="search.html", values=values)


def _list_row(row: Row) -> dict[str, Any]:
    moment = datetime.fromtimestamp(row.updated_us / 1_000_000, UTC)
    return {
        **row._asdict(),
        "program": row.program.removeprefix("import:"),
        "cost": f"${usd(row.pico_usd):.4f}" if row.pico_usd else "",
        "exact_cost": views.format_usd(usd(row.pico_usd)),
        "time": moment.strftime("%Y-%m-%d %H:%M"),
    }
