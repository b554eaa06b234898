"""Cost and speed: sums, distributions and queries over the index of all calls."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.events.analytics import percentile
from metis.web import views
from metis.web.index import VIEWS, ViewerIndex, usd

Query = Mapping[str, str]
MAX_DAYS = 3650
MAX_CALLS = 200_000
"""The most calls that one page prices or sorts."""
DAY_S = 86_400
DAY_US = DAY_S * 1_000_000
MAX_PLOTTED = 400
"""The most days that the plot of cost shows."""
_BUCKETS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 1 << 60)
_GROUPS = {
    "day": "strftime('%Y-%m-%d', at_us / 1000000, 'unixepoch')",
    "model": "model",
    "project": "project",
    "key": "key",
    "conversation": "conversation",
}


class Content(Struct, frozen=True, kw_only=True):
    """The content of a page: a template with values, or bytes of another type."""

    template: str = ""
    values: Mapping[str, Any] = {}
    data: bytes = b""
    media_type: str = "text/html"
    file_name: str = ""
    """The name under which a browser saves it; without one it is shown."""


class Statistics:
    """Returns the pages about all calls; with a `tenant`, about those of its conversations."""

    def __init__(self, index: ViewerIndex, tenant: str | None = None) -> None:
        self._index = index
        self._tenant = tenant

    async def _sums(self, query: Query, grouping: str) -> list[dict[str, Any]]:
        group = _GROUPS[grouping]
        sql = (
            f"SELECT {group} AS name, count(*) AS calls, sum(input + cached + written) AS input, "  # noqa: S608 - fixed names
            "sum(cached) AS cached, sum(output) AS output, sum(pico_usd) AS pico FROM calls "
            "WHERE at_us >= ? AND (? IS NULL OR tenant = ?) GROUP BY 1 ORDER BY "
            + ("1" if grouping == "day" else "pico DESC, 1 LIMIT 200")
        )
        rows = await self._index.select(sql, (since_us(days(query)), self._tenant, self._tenant))
        largest = max((row["pico"] for row in rows), default=0)
        return [
            {
                **dict(row),
                "cost": views.format_usd(usd(row["pico"])),
                "share": 100 * row["pico"] / largest if largest else 0.0,
                "cache_share": 100 * row["cached"] / row["input"] if row["input"] else 0.0,
            }
            for row in rows
        ]

    async def cost(self, query: Query) -> Content:
        """Return what was spent, by day, model, project, key and conversation."""
        await self._index.refresh_if_due()
        tables = {name: await self._sums(query, name) for name in _GROUPS}
        # The plot includes days without a call.
        spent = {day_us(row["name"]) // 1_000_000: usd(row["pico"]) for row in tables["day"]}
        today = int(datetime.now(UTC).timestamp()) // DAY_S * DAY_S
        moments = range(today - (min(days(query), MAX_PLOTTED) - 1) * DAY_S, today + 1, DAY_S)
        plot = [list(moments), [float(spent.get(moment, 0)) for moment in moments]]
        values = {
            "title": "Cost",
            "days": days(query),
            "tables": tables,
            "plot": msgspec.json.encode(plot).decode(),
        }
        return Content(template="cost.html", values=values)

    async def cost_csv(self, query: Query) -> Content:
        """Return one table of the cost page for a spreadsheet."""
        by = query.get("by", "day")
        if by not in _GROUPS:
            raise InvalidValueError(f"by is one of {', '.join(_GROUPS)}")
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            ("name", "calls", "input_tokens", "cached_tokens", "output_tokens", "cost_usd")
        )
        for row in await self._sums(query, by):
            counts = (row["calls"], row["input"], row["cached"], row["output"])
            writer.writerow((csv_text(row["name"]), *counts, f"{usd(row['pico']).normalize():f}"))
        return Content(data=out.getvalue().encode(), media_type="text/csv")

    async def speed(self, query: Query) -> Content:
        """Return latencies, rates, errors by cause, and tools."""
        await self._index.refresh_if_due()
        since, pair = since_us(days(query)), (self._tenant, self._tenant)
        calls = await self._index.select(
            "SELECT model, latency_ms, first_ms, output FROM calls "
            "WHERE at_us >= ? AND (? IS NULL OR tenant = ?) LIMIT ?",
            (since, *pair, MAX_CALLS),
        )
        errors = await self._index.select(
            "SELECT cause, count(*) AS count, max(text) AS example, max(conversation) AS latest "
            "FROM errors WHERE at_us >= ? AND (? IS NULL OR tenant = ?) "
            "GROUP BY cause ORDER BY 2 DESC",
            (since, *pair),
        )
        tools = await self._index.select(
            "SELECT name, count(*) AS calls, sum(is_error) AS failures, "
            "sum(1 - is_done) AS open, avg(took_ms) AS mean_ms, max(took_ms) AS max_ms "
            "FROM tools WHERE at_us >= ? AND (? IS NULL OR tenant = ?) "
            "GROUP BY name ORDER BY 2 DESC",
            (since, *pair),
        )
        return Content(
            template="speed.html",
            values={
                "title": "Speed and errors",
                "days": days(query),
                "models": _speeds(calls),
                "errors": errors,
                "tools": tools,
                "plot": msgspec.json.encode(_histogram(calls)).decode(),
            },
        )

    async def sql(self, query: Query) -> Content:
        """Return the result of a query of the user over the index."""
        if self._tenant is not None:
            raise InvalidValueError("only the owner of the store may run queries; use `metis web`")
        await self._index.refresh_if_due()
        sql = query.get("sql", "")
        columns: dict[str, list[str]] = {}
        for name in VIEWS:
            rows = await self._index.select("SELECT name FROM pragma_table_info(?)", (name,))
            columns[name] = [row[0] for row in rows]
        values: dict[str, Any] = {
            "title": "SQL",
            "sql": sql,
            "views": VIEWS,
            "columns": columns,
            "names": (),
            "rows": (),
            "has_more": False,
            "fault": "",
        }
        if sql:
            try:
                names, rows, has_more = await self._index.query(sql[:10_000])
                values.update(names=names, rows=rows, has_more=has_more)
            except InvalidValueError as error:
                values["fault"] = str(error)
        return Content(template="sql.html", values=values)


def csv_text(name: str) -> str:
    """Return a text for a cell; one that begins like a formula would be run by a spreadsheet."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _speeds(calls: Sequence[Any]) -> list[dict[str, Any]]:
    groups: dict[str, list[Any]] = {}
    for call in calls:
        groups.setdefault(call["model"], []).append(call)
    return [
        {
            "model": model,
            "calls": len(group),
            "p50": percentile([call["latency_ms"] for call in group], 50),
            "p95": percentile([call["latency_ms"] for call in group], 95),
            "first": percentile([c["first_ms"] for c in group if c["first_ms"] is not None], 50),
            "rate": percentile(
                [c["output"] * 1000 // c["latency_ms"] for c in group if c["latency_ms"] > 0], 50
            ),
        }
        for model, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _histogram(calls: Sequence[Any]) -> list[list[float]]:
    counts = [0] * len(_BUCKETS)
    for call in calls:
        counts[next(i for i, limit in enumerate(_BUCKETS) if call["latency_ms"] <= limit)] += 1
    edges = [limit / 1000 for limit in _BUCKETS[:-1]]
    return [[*edges, edges[-1] * 2], [float(count) for count in counts]]


def number(text: str | None, default: int = 0) -> int:
    """Return a number from a query string; the default for anything else."""
    if not text or not text.isascii() or not text.isdigit() or len(text) > 15:  # noqa: PLR2004 - digits of a time in milliseconds
        return default
    return int(text)


def days(query: Query) -> int:
    """Return the number of days that a page covers."""
    return min(max(number(query.get("days"), 30), 1), MAX_DAYS)


def since_us(day_count: int) -> int:
    """Return the time that many days ago, in microseconds."""
    return int((datetime.now(UTC) - timedelta(days=day_count)).timestamp() * 1_000_000)


def day_us(text: str) -> int:
    """Return the first microsecond of a day; 0 without one."""
    try:
        return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()) * 1_000_000
    except ValueError:
        return 0
