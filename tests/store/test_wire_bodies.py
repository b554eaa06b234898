"""Stored bytes of model calls: differences, limits, redaction and deletion."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from metis.canonical.errors import StoreError
from metis.canonical.ids import new_ulid
from metis.store import Store, wire_bodies
from metis.store import open as open_store
from metis.store.database import newest_schema, schema_steps
from metis.store.wire_bodies import BodyPacker, StoredBody, WireBody, read_previous_body

pytestmark = pytest.mark.anyio


def call(session_id: str, request: bytes, response: bytes = b"{}", **fields: str) -> WireBody:
    return WireBody(
        id=fields.get("id") or new_ulid(),
        session_id=session_id,
        provider=fields.get("provider", "anthropic"),
        path="/v1/messages",
        request=request,
        response=(response[:5], response[5:]),
    )


async def stored(store: Store, url: str, body: WireBody) -> StoredBody:
    """Return the bytes of a call after the deferred queue was written."""
    await store.close()
    async with open_store(url, recover=False) as opened:
        found = await opened.wire_body(body.session_id, body.id)
        assert found is not None
        return found


async def test_bytes_round_trip_in_every_store(url: str) -> None:
    store = open_store(url)
    session = await store.create_session()
    head, tail = os.urandom(3000), os.urandom(3000)
    bodies = [
        call(session.id, head + bytes([n]) * n * 7 + tail, b"event %d" % n) for n in range(60)
    ]
    for body in bodies:
        store.add_wire_bodies([body])
    await store.close()
    async with open_store(url, recover=False) as opened:
        before: StoredBody | None = None
        for body in bodies:
            found = await opened.wire_body(session.id, body.id)
            assert found is not None
            assert (found.request, found.response) == (body.request, b"".join(body.response))
            one: StoredBody = found
            previous = await opened.read(lambda t, one=one: read_previous_body(t, session.id, one))
            assert previous == before
            before = found
        assert await opened.wire_body(session.id, "nobody") is None
        assert await opened.wire_body("sess_other", bodies[0].id) is None


def test_a_request_is_stored_as_its_difference() -> None:
    packer = BodyPacker()
    text = os.urandom(100_000)
    sizes = [len(packer.row(call("s", text + b"%d" % n + text))[11]) for n in range(5)]
    assert sizes[0] > 200_000
    assert max(sizes[1:]) < 50
    # No difference is taken against another session, or against rows that were not stored.
    assert len(packer.row(call("t", text))[11]) > 100_000
    packer.clear()
    assert len(packer.row(call("s", text))[11]) > 100_000


async def test_a_deleted_session_has_no_bytes_and_gets_none(url: str) -> None:
    store = open_store(url)
    session = await store.create_session()
    body = call(session.id, b"x" * 500)
    store.add_wire_bodies([body])
    await store.close()
    async with open_store(url, recover=False) as opened:
        await opened.delete(session.id)
        assert await opened.wire_body(session.id, body.id) is None
        opened.add_wire_bodies([call(session.id, b"y" * 500)])
    async with open_store(url, recover=False) as opened:
        assert (await opened.read(lambda t: t.run("SELECT count(*) FROM wire_bodies"))) == [(0,)]


async def test_secrets_in_a_body_are_not_stored(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    session = await store.create_session()
    request = (
        b'{"mcp_servers":[{"authorization_token": "tok\\"en-123"}],'
        b'"tools":[{"Authorization":"Bearer abc"}]}'
    )
    found = await stored_after_add(store, sqlite_url, call(session.id, request))
    assert b"en-123" not in found.request
    assert b"Bearer" not in found.request
    assert found.request_bytes == len(request)


async def stored_after_add(store: Store, url: str, body: WireBody) -> StoredBody:
    store.add_wire_bodies([body])
    return await stored(store, url, body)


async def test_stored_size_is_bounded(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_bodies, "MAX_BODY_BYTES", 1000)
    store = open_store(sqlite_url)
    session = await store.create_session()
    found = await stored_after_add(store, sqlite_url, call(session.id, b"q" * 3000, b"r" * 2000))
    assert (len(found.request), len(found.response)) == (1000, 1000)
    assert (found.request_bytes, found.response_bytes) == (3000, 2000)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE wire_bodies SET request = x'00ff'",
        "UPDATE wire_bodies SET checksum = 5",
        "UPDATE wire_bodies SET prefix = 99999999",
        "UPDATE wire_bodies SET prefix = -1, suffix = 5",
        "UPDATE wire_bodies SET base_id = id",
        "DELETE FROM wire_bodies WHERE base_id = ''",
    ],
)
async def test_damaged_bytes_are_an_error(sqlite_url: str, tmp_path: Path, damage: str) -> None:
    store = open_store(sqlite_url)
    session = await store.create_session()
    bodies = [call(session.id, b"q" * 3000 + b"%d" % n) for n in range(3)]
    store.add_wire_bodies(bodies)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        database.execute(damage)
        database.commit()
    async with open_store(sqlite_url, recover=False) as opened:
        with pytest.raises(StoreError, match="bytes of"):
            await opened.wire_body(session.id, bodies[-1].id)


async def test_decompression_bomb_is_bounded(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(sqlite_url)
    session = await store.create_session()
    body = call(session.id, b"q" * 100_000)
    store.add_wire_bodies([body])
    await store.close()
    monkeypatch.setattr(wire_bodies, "MAX_BODY_BYTES", 1000)
    async with open_store(sqlite_url, recover=False) as opened:
        with pytest.raises(StoreError, match="longer"):
            await opened.wire_body(session.id, body.id)


async def test_store_of_previous_version_is_migrated(sqlite_url: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "metis.db")) as database:
        for number, sql in schema_steps("sqlite"):
            if number < 6:
                database.executescript(sql)
        database.execute("PRAGMA user_version = 5")
        database.execute("PRAGMA application_id = 1835365481")
        database.execute(
            "INSERT INTO sessions (id, workspace_path, schema_version, created_at, updated_at) "
            "VALUES ('sess_old', '', '1', 1, 1)"
        )
        database.commit()
    store = open_store(sqlite_url)
    assert await store.version() == newest_schema("sqlite") >= 6
    found = await stored_after_add(store, sqlite_url, call("sess_old", b"old"))
    assert found.request == b"old"
