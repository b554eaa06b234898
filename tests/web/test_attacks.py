"""Attacks on the viewer: what other sites, other tenants and hostile addresses must not get."""

import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from metis import store as stores
from metis.canonical import Role, TextBlock
from metis.canonical.ids import new_ulid
from metis.store.append import prepare_message
from metis.store.exchanges import EXTERNAL_KEY, ExchangeJob, ExchangeRow
from metis.store.wire_bodies import WireBody
from metis.web.app import COOKIE, KeyAccess, TokenAccess, Viewer
from metis.web.pages import Pages
from viewer_data import answered, message

pytestmark = pytest.mark.anyio
TOKEN = "a-token-of-the-start-0123456789"  # noqa: S105 - of this test
SECRET_TEXT = "the badger of bob"  # noqa: S105 - what others must not read
ANN, BOB = b"a" * 32, b"b" * 32


class Client:
    """Sends requests to a viewer without a network, as a browser or an attacker would."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer

    async def send(
        self, method: str, target: str, form: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        path, _, query = target.partition("?")
        sent: list[dict[str, Any]] = []
        is_read = False

        async def receive() -> dict[str, object]:
            nonlocal is_read
            if is_read:
                return {"type": "http.disconnect"}
            is_read = True
            return {"type": "http.request", "body": urlencode(form or {}).encode()}

        async def send(event: dict[str, object]) -> None:
            sent.append(event)

        given = {"host": "127.0.0.1:80"} | {k.replace("_", "-"): v for k, v in headers.items()}
        await self._viewer(
            {
                "type": "http",
                "method": method,
                "path": path,
                "query_string": query.encode(),
                "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            },
            receive,
            send,
        )
        body = b"".join(event.get("body", b"") for event in sent[1:])
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, body.decode("utf-8", "replace")


async def add_exchange(store: Any, tenant: str, text: str) -> tuple[str, str]:
    """Store an exchange of the gateway; return its session and its response."""
    session = await store.create_session(workspace_path=f"/home{tenant}")
    exchange_id, at = new_ulid(), datetime.now(UTC)
    row = ExchangeRow(exchange_id, session.id, tenant, f'{{"id":"{exchange_id}"}}')
    prompt = message(session.id, Role.USER, TextBlock(text), at=at)
    response = message(
        session.id,
        Role.ASSISTANT,
        TextBlock(f"answer to {text}"),
        at=datetime.now(UTC),
        external={EXTERNAL_KEY: exchange_id},
        **answered(),
    )
    items = [prepare_message(prompt), prepare_message(response)]
    await store.add_exchanges([ExchangeJob(row, items)])
    store.add_wire_bodies(
        [
            WireBody(
                id=exchange_id,
                session_id=session.id,
                provider="openai",
                path="/v1/chat/completions",
                request=text.encode(),
            )
        ]
    )
    return session.id, response.id


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    async with stores.open(f"sqlite:///{tmp_path}/chats.db") as opened:
        yield opened


def every_address(store: Any, session_id: str, response_id: str) -> list[str]:
    """Every address that shows something of a conversation, from the tables of routes."""
    pages = Pages(store, Any)  # pyright: ignore[reportArgumentType] - only its tables are read
    query = f"at={response_id}&block=0&before=99&byte=0&side=request&branch={response_id}"
    names = [*pages.of_session, "live", "nothing"]
    return [f"/s/{session_id}/{name}".rstrip("/") + f"?{query}" for name in names]


async def test_no_page_shows_another_tenant_anything(store: Any) -> None:
    anns, anns_response = await add_exchange(store, "/ann", "the owl of ann")
    bobs, bobs_response = await add_exchange(store, "/bob", SECRET_TEXT)
    viewer = Viewer(store, KeyAccess(lambda: {ANN: "/ann", BOB: "/bob"}))
    client = Client(viewer)
    cookie = _cookie(viewer, ANN)
    for address in every_address(store, bobs, bobs_response):
        status, _, body = await client.send("GET", address, cookie=cookie)
        assert status == 404, address
        assert "badger" not in body
    # Ids of the other conversation do not open a door in one's own.
    for address in every_address(store, anns, bobs_response):
        if not address.partition("?")[0].endswith("/live"):
            _, _, body = await client.send("GET", address, cookie=cookie)
            assert "badger" not in body, address
    for name in ("", "changed", "cost", "cost.csv", "speed", "what-if", "sql"):
        for query in ("", "?q=badger", "?project=/home/bob", "?by=conversation", "?by=project"):
            _, _, body = await client.send("GET", f"/{name}{query}", cookie=cookie)
            main = body.partition("<main")[2] or body
            assert bobs not in main, name
            assert "of bob" not in main, name
            assert "home/bob" not in main.replace('value="/home/bob"', ""), name
    form = {"at": bobs_response, "model": "sim", "csrf": "x"}
    assert (await client.send("POST", f"/s/{bobs}/replay", form, cookie=cookie))[0] == 403
    assert "the owl of ann" in (await client.send("GET", f"/s/{anns}", cookie=cookie))[2]
    assert anns_response


async def test_a_conversation_of_two_tenants_is_shown_to_neither(store: Any) -> None:
    session_id, _ = await add_exchange(store, "/ann", "the owl of ann")
    row = ExchangeRow(new_ulid(), session_id, "/bob", "{}")
    await store.add_exchanges([ExchangeJob(row)])
    viewer = Viewer(store, KeyAccess(lambda: {ANN: "/ann", BOB: "/bob"}))
    for key in (ANN, BOB):
        cookie = _cookie(viewer, key)
        assert (await Client(viewer).send("GET", f"/s/{session_id}", cookie=cookie))[0] == 404
        assert "owl" not in (await Client(viewer).send("GET", "/", cookie=cookie))[2]


async def test_a_key_that_was_removed_opens_nothing(store: Any) -> None:
    tenants = {ANN: "/ann"}
    viewer = Viewer(store, KeyAccess(lambda: tenants))
    cookie = _cookie(viewer, ANN)
    assert (await Client(viewer).send("GET", "/", cookie=cookie))[0] == 200
    tenants.clear()
    tenants[BOB] = "/bob"
    assert (await Client(viewer).send("GET", "/", cookie=cookie))[0] == 401


def _cookie(viewer: Viewer, digest: bytes) -> str:
    from metis.web.app import _cookie_of  # noqa: PLC0415 # pyright: ignore[reportPrivateUsage] - as a login sets it

    del viewer
    return f"{COOKIE}={_cookie_of(digest)}"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1].evil", ""),
        *("127.0.0.1@evil.example", "0.0.0.0", "10.0.0.5:80", "127.0.0.1:80:80", "LOCALHOST.:80"),  # noqa: S104 - a name
    ],
)
async def test_a_name_that_was_bound_to_this_machine_is_refused(store: Any, host: str) -> None:
    """DNS rebinding: the page of another site has its own Host, and even the cookie is no use."""
    client = Client(Viewer(store, TokenAccess(TOKEN)))
    session = await store.create_session()
    for path in ("/", f"/s/{session.id}", f"/?token={TOKEN}", f"/s/{session.id}/live"):
        status, headers, body = await client.send(
            "GET", path, cookie=f"{COOKIE}={TOKEN}", host=host
        )
        assert status == 403
        assert "set-cookie" not in headers
        assert session.id not in body


async def test_nothing_changes_by_a_get_or_by_a_form_of_another_site(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    async def replay(messages: Any, model: str) -> Any:
        called.append(model)
        return messages[-1]

    session_id, response_id = await add_exchange(store, "/ann", "hello")
    client = Client(Viewer(store, TokenAccess(TOKEN), replayer=replay))
    cookie = f"{COOKIE}={TOKEN}"
    before = await _rows(store)
    for address in every_address(store, session_id, response_id):
        if not address.partition("?")[0].endswith("/live"):
            for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
                await client.send(method, f"{address}&model=sim", cookie=cookie)
    path = f"/s/{session_id}/replay"
    page = (await client.send("GET", f"{path}?at={response_id}", cookie=cookie))[2]
    token = re.search(r'name="csrf" value="(\w+)"', page)
    assert token is not None
    good = {"at": response_id, "model": "sim", "csrf": token[1]}
    attacks: list[tuple[dict[str, str], dict[str, str]]] = [
        ({**good, "csrf": ""}, {}),
        ({**good, "csrf": token[1][:-1] + "0"}, {}),
        (good, {"origin": "http://evil.example"}),
        (good, {"origin": "null"}),
        (good, {"origin": "http://127.0.0.1:81"}),
        (good, {"sec_fetch_site": "cross-site"}),
        (good, {"sec_fetch_site": "same-site"}),
    ]
    for form, headers in attacks:
        assert (await client.send("POST", path, form, cookie=cookie, **headers))[0] == 403
    assert (await client.send("POST", path, good))[0] == 401
    assert called == []
    assert await _rows(store) == before
    # The same form from our own page is accepted, so that the refusals above mean something.
    good_headers = {"origin": "http://127.0.0.1:80", "sec_fetch_site": "same-origin"}
    assert (await client.send("POST", path, good, cookie=cookie, **good_headers))[0] == 200
    assert called == ["sim"]
    assert await _rows(store) == before


async def _rows(store: Any) -> list[Any]:
    def read(transaction: Any) -> list[Any]:
        tables = ("sessions", "messages", "journal", "exchanges")
        return [transaction.run(f"SELECT * FROM {table}") for table in tables]  # noqa: S608 - names of ours

    return await store.read(read)


@pytest.mark.parametrize(
    "name",
    [
        *("../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "....//app.py", "app.py"),
        *("style.css/../../app.py", "style.css%00.py", "templates/base.html", "..\\app.py"),
    ],
)
async def test_no_file_but_the_static_ones_can_be_read(store: Any, name: str) -> None:
    client = Client(Viewer(store, TokenAccess(TOKEN)))
    session_id, response_id = await add_exchange(store, "/ann", "hello")
    cookie = f"{COOKIE}={TOKEN}"
    for path in (f"/static/{name}", f"/{name}", f"/s/{session_id}/{name}", f"/s/{name}/media"):
        status, _, body = await client.send("GET", path, cookie=cookie)
        assert status in (400, 404), path
        assert "root:" not in body
        assert "import asyncio" not in body
    for query in (
        f"at={quote(name)}&block=0",
        f"at={response_id}&block={quote(name)}",
        f"at={response_id}&block=-1",
    ):
        status, headers, _ = await client.send(
            "GET", f"/s/{session_id}/media?{query}", cookie=cookie
        )
        assert status in (400, 404)
        assert name not in str(headers)


async def test_the_token_is_in_no_log_and_no_referrer(
    store: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    client = Client(Viewer(store, TokenAccess(TOKEN)))
    cookie = f"{COOKIE}={TOKEN}"
    status, headers, body = await client.send("GET", f"/cost?token={TOKEN}")
    assert (status, headers["location"]) == (303, "/cost")
    assert TOKEN not in body
    # Pages hold neither the token nor its cookie, and send their address to no other site.
    for path in ("/", "/cost", "/nothing", "/sql?sql=select+1", f"/?token={TOKEN}x"):
        _, headers, body = await client.send("GET", path, cookie=cookie)
        assert TOKEN not in body.replace(f"{TOKEN}x", "")
        assert headers["referrer-policy"] == "same-origin"
        assert "http://" not in body.replace("http://www.w3.org", "")
    # Nor does an error that is logged.
    monkeypatch.setattr("metis.web.pages.Pages.conversations", None)
    await client.send("GET", f"/?q={TOKEN[:5]}", cookie=cookie)
    assert TOKEN not in caplog.text
