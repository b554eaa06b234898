"""Pages that compare: one request for two models, losses, other prices, other responses."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from metis.canonical.errors import InvalidValueError, MetisError
from metis.canonical.metadata import Usage
from metis.catalog.tables import price_table, pricing_versions
from metis.store import Store
from metis.web import turns, views
from metis.web.conversation_pages import stored_message
from metis.web.index import ViewerIndex, usd
from metis.web.statistics import MAX_CALLS, MAX_DAYS, Content, Query, days, since_us

_CALLS = (
    "SELECT conversation, at_us, model, input, cached, written, output, pico_usd, latency_ms "
    "FROM calls WHERE at_us >= ? AND (? = '' OR conversation = ?) AND (? = '' OR project = ?) "
    "AND (? IS NULL OR tenant = ?) ORDER BY at_us LIMIT ?"
)


class ComparisonPages:
    """Returns pages that show how other models would receive, price or answer a conversation."""

    def __init__(
        self,
        store: Store,
        index: ViewerIndex,
        tenant: str | None,
        replayer: turns.Replayer | None,
    ) -> None:
        self._store = store
        self._index = index
        self._tenant = tenant
        self._replayer = replayer

    async def requests(self, session_id: str, query: Query) -> Content:
        """Return one request as two models would receive it."""
        session = await self._store.session(session_id)
        history = await self._store.history(session_id)
        messages = views.request_history(history, query.get("at"))
        first = query.get("first") or views.DEFAULT_TARGETS[0]
        second = query.get("second") or views.DEFAULT_TARGETS[1]
        diff, error_text = None, ""
        try:
            diff = await asyncio.to_thread(views.request_diff, messages, first, second)
        except MetisError as error:
            error_text = str(error)
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
                "fault": error_text,
            },
        )

    async def losses(self, session_id: str, query: Query) -> Content:
        """Return what each target would not receive, and the cost of the last response there."""
        session = await self._store.session(session_id)
        chosen = query.get("model", "")
        names = [chosen] if chosen else list(views.DEFAULT_TARGETS)
        history = await self._store.history(session_id)
        messages = views.request_history(history, None)
        rows, others, faults = await asyncio.to_thread(views.loss_lane, messages, names)
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
        session = await self._store.session(session_id)
        return await asyncio.to_thread(self._what_if_page, calls, query, session)

    async def what_if(self, query: Query) -> Content:
        """Return what a project or period would cost under another model or price table."""
        await self._index.refresh_if_due()
        calls = await self._calls(days=days(query), project=query.get("project", ""))
        return await asyncio.to_thread(self._what_if_page, calls, query, None)

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
        message = stored_message(history, at)
        error_text, comparison = "", None
        try:
            answer = await self._replayer(views.request_history(history, at), model)
            comparison = turns.compare_answers(message, answer)
        except MetisError as error:
            error_text = str(error)
        return await self._replay_page(session_id, at, model, comparison, error_text)

    async def _replay_page(
        self,
        session_id: str,
        at: str,
        model: str,
        comparison: turns.Comparison | None = None,
        error_text: str = "",
    ) -> Content:
        values = {
            "title": "Replay with another model",
            "session": await self._store.session(session_id),
            "at": at,
            "model": model or "sim",
            "targets": ["sim", *views.targets()],
            "comparison": comparison,
            "fault": error_text,
            "can_replay": self._replayer is not None,
        }
        return Content(template="replay.html", values=values)
