"""`metis sessions`: the conversations that are kept, as a table, as lines or as JSON."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from metis.catalog.load import catalog
from metis.cli.columns import printable, terminal_width
from metis.cli.listing import HEAD, RIGHT, SILENT, session_rows, short_name
from metis.cli.stored import with_store
from metis.cli.table import dollars, table
from metis.store import Overview, Store

_WIDEST = 120
_NOTHING = "No conversation is kept yet; `metis` starts one."
_NOTHING_HERE = "No conversation was held in this folder yet; without --here all are listed."


def print_sessions(url: str | None, limit: int, *, is_here: bool, as_json: bool) -> int:
    """Print the sessions that changed last, one a line; whole ids where nobody watches."""
    here = str(Path.cwd()) if is_here else None

    async def work(keep: Store) -> int:
        found = await keep.overviews(limit, workspace_path=here)
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode([_told(each) for each in found])))
        elif not found:
            click.echo(_NOTHING_HERE if is_here else _NOTHING, err=True)
        else:
            width = terminal_width()
            for line in _lines(found) if width is None else _table(found, width):
                click.echo(line)
        return 0

    return with_store(url, work, recover=False)


def _table(found: Sequence[Overview], width: int) -> list[str]:
    rows = session_rows(
        found,
        min(width, _WIDEST),
        now=datetime.now(UTC),
        name=short_name(dict(catalog().aliases)),
    )
    lines = table(HEAD, rows, right=RIGHT)
    hint = "metis -s ID goes on with one · metis show ID prints it"
    return [*lines, click.style(hint, dim=True)]


def _lines(found: Sequence[Overview]) -> list[str]:
    return ["  ".join(_cells(each)) for each in found]


def _cells(each: Overview) -> tuple[str, ...]:
    when = each.session.updated_at.astimezone().strftime("%Y-%m-%d %H:%M")
    counted = (str(each.message_count), dollars(each.cost_usd))
    return (each.session.id, when, each.model or "-", *counted, printable(each.title or SILENT))


def _told(each: Overview) -> Mapping[str, Any]:
    session = each.session
    return {
        "id": session.id,
        "title": each.title,
        "model": each.model,
        "message_count": each.message_count,
        "cost_usd": str(each.cost_usd),
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "folder": session.workspace_path,
    }
