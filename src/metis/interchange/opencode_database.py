"""`opencode.db`: the database in which opencode stores sessions since version 1.2.

Its rows become the records of `opencode export`: the info of a session, then its messages with
their parts. The ids are the same, so that a session that was exported and imported before is not
imported twice.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from metis.canonical.errors import ForeignDocumentError
from metis.interchange.database import open_database, table_names
from metis.interchange.source import Source, parse_record
from metis.wire.json_access import Wire

FORMAT = "opencode"
MAX_SESSIONS = 100_000
_TABLES = frozenset({"session", "message", "part"})
_JSON_COLUMNS = frozenset({"metadata", "model", "permission", "revert", "summary_diffs"})
# Columns whose names are prefixed by the object that they belong to in an export.
_NESTED = {"summary": "summary", "time": "time", "tokens": "tokens", "share": "share"}


class DatabaseSession(NamedTuple):
    """What a list shows of a session in the database."""

    id: str
    directory: str
    title: str
    updated_ms: int
    message_count: int


def is_database(source: Source) -> bool:
    """Return whether a file is a database of opencode."""
    return table_names(source, FORMAT) >= _TABLES


def database_sessions(source: Source) -> list[DatabaseSession]:
    """Return the sessions of a database, the newest first.

    Raises:
        ForeignDocumentError: the database is damaged, or of another form.
    """
    sql = (
        "SELECT id, directory, title, time_updated, "
        "(SELECT count(*) FROM message WHERE session_id = session.id) "
        "FROM session ORDER BY time_updated DESC LIMIT ?"
    )
    with _reading(source) as database:
        return [
            DatabaseSession(
                str(row[0]),
                str(row[1] or ""),
                str(row[2] or ""),
                row[3] if isinstance(row[3], int) else 0,
                int(row[4]),
            )
            for row in _rows(database, sql, (MAX_SESSIONS,))
        ]


def database_documents(source: Source, session_id: str = "") -> Iterator[Iterator[Wire]]:
    """Yield for each session what `opencode export` has: its info, then its messages.

    With an id only that session.

    Raises:
        ForeignDocumentError: there is no such session, or the database is damaged.
    """
    with _reading(source) as database:
        condition = "WHERE id = ?" if session_id else "WHERE ? = ''"
        sql = f"SELECT * FROM session {condition} ORDER BY time_created, id"  # noqa: S608 - constants
        rows = list(_rows(database, sql, (session_id,)))
        if session_id and not rows:
            raise ForeignDocumentError(f"no session {session_id}", format=FORMAT, line=1)
        for row in rows:
            yield _document(database, row)


def _document(database: sqlite3.Connection, session: sqlite3.Row) -> Iterator[Wire]:
    yield {"info": _session_info(session)}
    identity = str(session["id"])
    messages = _rows(
        database,
        "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id",
        (identity,),
    )
    for message in messages:
        message_id = str(message["id"])
        parts = _rows(
            database, "SELECT id, data FROM part WHERE message_id = ? ORDER BY id", (message_id,)
        )
        yield {
            "info": {**_data(message), "id": message_id, "sessionID": identity},
            "parts": [
                {
                    **_data(part),
                    "id": str(part["id"]),
                    "sessionID": identity,
                    "messageID": message_id,
                }
                for part in parts
            ],
        }


def _session_info(session: sqlite3.Row) -> Wire:
    """Return the row of a session as the info of an export; empty columns are left out."""
    info: dict[str, Any] = {}
    for column in session.keys():  # noqa: SIM118 - iterating over a row yields values
        value = session[column]
        if value is None:
            continue
        if column in _JSON_COLUMNS:
            value = parse_record(0, str(value).encode()).value
        group, _, key = column.partition("_")
        if key == "id":
            info[f"{group}ID"] = value
        elif not key or group not in _NESTED:
            info[column] = value
        elif key.startswith("cache_"):
            counts = info.setdefault(_NESTED[group], {}).setdefault("cache", {})
            counts[key.removeprefix("cache_")] = value
        else:
            info.setdefault(_NESTED[group], {})[key] = value
    return info


def _data(row: sqlite3.Row) -> Mapping[str, Any]:
    record = parse_record(0, str(row["data"]).encode("utf-8", "replace"))
    # What cannot be read stays visible as an unknown part instead of vanishing.
    return record.fields or {"type": "unreadable", "text": str(row["data"])}


def _reading(source: Source) -> closing[sqlite3.Connection]:
    try:
        return closing(open_database(source, FORMAT))
    except sqlite3.Error as error:
        raise ForeignDocumentError(str(error), format=FORMAT, line=1) from None


def _rows(
    database: sqlite3.Connection, sql: str, parameters: tuple[object, ...]
) -> Iterator[sqlite3.Row]:
    try:
        yield from database.execute(sql, parameters)
    except sqlite3.Error as error:
        raise ForeignDocumentError(str(error), format=FORMAT, line=1) from None
