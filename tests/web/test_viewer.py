"""The viewer: who may look, what pages show, and that nothing in a conversation becomes markup."""

import asyncio
import html
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from metis import store as stores
from metis.canonical import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    new_tool_use_id,
    new_ulid,
)
from metis.session.delegate import PARENT_KIND
from metis.store.append import prepare_message
from metis.store.entries import SidecarEntry
from metis.store.exchanges import EXTERNAL_KEY, ExchangeJob, ExchangeRow
from metis.store.wire_bodies import WireBody
from metis.web import live
from metis.web.app import COOKIE, TokenAccess, Viewer
from metis.web.index import ViewerIndex, index_path
from viewer_data import Part, add_messages, answered, message

pytestmark = pytest.mark.anyio
TOKEN = "a-token-of-the-start"  # noqa: S105 - of this test
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202e\x1b]0;x\x07"


class Browser:
    """Sends requests to the viewer without a network."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self.cookie = f"{COOKIE}={TOKEN}"

    async def get(
        self, target: str, *, method: str = "GET", host: str = "127.0.0.1:80"
    ) -> tuple[int, dict[str, str], str]:
        path, _, query = target.partition("?")
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.request"}

        async def send(event: dict[str, object]) -> None:
            sent.append(event)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"host", host.encode()), (b"cookie", self.cookie.encode())],
        }
        await self._viewer(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, sent[1]["body"].decode()


@pytest.fixture
async def shown(tmp_path: Path) -> Any:
    async with stores.open(f"sqlite:///{tmp_path}/chats.db") as opened:
        session = await opened.create_session(workspace_path=HOSTILE)
        call = new_tool_use_id()
        usage = answered(cost="0.0033", input_tokens=1000, latency_ms=5)
        thinking = ThinkingBlock(f"hm {HOSTILE}", signature="sealed", issuer="anthropic")
        image = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
        page = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", HOSTILE)
        parts: list[Part] = [
            (Role.USER, (TextBlock(f"owl {HOSTILE}"), image, page), {}),
            (
                Role.ASSISTANT,
                (
                    thinking,
                    TextBlock(f"**bold** [x](javascript:alert(3)) {HOSTILE}"),
                    ToolUseBlock(call, "read_file", {"path": HOSTILE}),
                ),
                usage,
            ),
            (
                Role.TOOL,
                (ToolResultBlock(call, (TextBlock(HOSTILE),), is_error=True),),
                {"parent_tool_use_id": call},
            ),
            (Role.ASSISTANT, (TextBlock("done"),), usage),
        ]
        await add_messages(opened, session.id, datetime.now(UTC), parts)
        yield Browser(Viewer(opened, TokenAccess(TOKEN))), session.id, opened


async def test_the_token_becomes_a_cookie_and_leaves_the_address(shown: Any) -> None:
    browser, _, _ = shown
    browser.cookie = ""
    assert (await browser.get("/"))[0] == 401
    assert (await browser.get("/?token=wrong"))[0] == 401
    status, headers, _ = await browser.get(f"/cost?days=5&token={TOKEN}")
    assert (status, headers["location"]) == (303, "/cost?days=5")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=Strict" in headers["set-cookie"]
    _, headers, _ = await browser.get(f"//evil.example/?token={TOKEN}")
    assert headers["location"].startswith("/evil")


COUNTED = "with recursive n(i) as (select 1 union all select i+1 from n"


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        (
            "with recursive n(i) as (select 1 union all select i+1 from n) select max(i) from n",
            "long",
        ),
        ("select hex(zeroblob(900000000))", "too big"),
        (
            f"{COUNTED} limit 900) select hex(zeroblob(400000)) from n",  # noqa: S608 - an attack
            "more than 10,000,000 bytes",
        ),
        ("attach '/tmp/x.db' as x", "not authorized"),
        ("pragma writable_schema = 1", "not authorized"),
        ("select load_extension('x')", "not authorized"),
        ("delete from conversations", "not"),
        ("select 1; drop table x", "single SELECT"),
    ],
)
async def test_a_query_of_the_user_is_bounded_and_changes_nothing(
    shown: Any, sql: str, fault: str
) -> None:
    browser, _, _ = shown
    status, _, body = await browser.get(f"/sql?{urlencode({'sql': sql})}")
    assert status == 200
    assert fault in body


async def test_no_other_name_of_the_machine_and_no_line_break_gets_through(shown: Any) -> None:
    browser, _, _ = shown
    for host in ("127.0.0.1.evil.example", "localhost.evil.example:80", "evil@localhost", ""):
        assert (await browser.get("/", host=host))[0] == 403
    _, headers, _ = await browser.get(f"/a\r\nx-injected: 1?token={TOKEN}")
    assert "\r" not in headers["location"]
    assert headers["referrer-policy"] == "same-origin"


async def test_another_host_and_other_methods_are_refused(shown: Any) -> None:
    browser, session_id, _ = shown
    assert (await browser.get("/", host="evil.example"))[0] == 403
    for method in ("PUT", "DELETE", "PATCH"):
        assert (await browser.get(f"/s/{session_id}", method=method))[0] == 405
    # A form without the token of one of our pages.
    assert (await browser.get(f"/s/{session_id}/replay", method="POST"))[0] == 403
    status, headers, body = await browser.get("/", method="HEAD")
    assert (status, body) == (200, "")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "script-src 'self'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        *("", "/requests", "/losses", "/export.html", "/requests?first=gemini:x&second=ollama:y"),
        *("/what-if", "/resume", "/export", "/replay?at=x", "/older?before=9", "/tree"),
    ],
)
async def test_nothing_in_a_conversation_becomes_markup(shown: Any, path: str) -> None:
    browser, session_id, _ = shown
    status, _, body = await browser.get(f"/s/{session_id}{path}")
    assert status == 200
    assert "<script>alert" not in body
    assert "<img src=x" not in body
    assert 'href="javascript:' not in body


async def test_a_conversation_shows_its_blocks(shown: Any) -> None:
    browser, session_id, _ = shown
    _, _, body = await browser.get(f"/s/{session_id}")
    for text in (
        "<strong>bold</strong>",
        "thinking · sealed by anthropic",
        "read_file",
        "failed result",
        "data:image/png;base64,iVBORw0KGgo=",
        "1,000 in · 20 out",
        "$0.0033",
    ):
        assert text in body


async def test_two_models_receive_one_request_side_by_side(shown: Any) -> None:
    browser, session_id, opened = shown
    last = (await opened.messages(session_id))[-1].id
    query = f"at={last}&first=anthropic:claude-sonnet-4-6&second=openai:gpt-5"
    _, _, body = await browser.get(f"/s/{session_id}/requests?{query}")
    assert "POST /v1/messages" in body
    assert "POST /v1/chat/completions" in body
    assert "thinking dropped" in body
    assert ">done" not in body  # the response itself is not in its request
    _, _, body = await browser.get(f"/s/{session_id}/requests?first=nobody:x")
    assert "unknown provider" in body


async def test_losses_are_shown_before_a_switch(shown: Any) -> None:
    browser, session_id, _ = shown
    _, _, body = await browser.get(f"/s/{session_id}/losses?model=openai:gpt-5")
    assert "thinking dropped" in body
    _, _, body = await browser.get(f"/s/{session_id}/losses?model=nobody:x")
    assert "unknown provider" in body


async def test_search_list_and_cost(shown: Any) -> None:
    browser, session_id, _ = shown
    assert f"/s/{session_id}" in (await browser.get("/"))[2]
    assert f"/s/{session_id}" in (await browser.get("/?q=owl"))[2]
    assert "No message contains" in (await browser.get("/?q=zebra"))[2]
    assert "$0.0066" in (await browser.get("/cost"))[2]
    status, headers, body = await browser.get("/cost.csv?by=model")
    assert status == 200
    assert headers["content-type"].startswith("text/csv")
    assert "anthropic:claude-sonnet-4-6,2,2000,0,40,0.0066" in body
    assert (await browser.get("/cost.csv?by=nothing"))[0] == 400


@pytest.mark.parametrize(
    "path",
    ["/s/nope", "/s/nope/losses", "/nothing", "/static/app.py", "/static/..%2fapp.py", "/s/a/b/c"],
)
async def test_what_is_not_there_is_an_error_page(shown: Any, path: str) -> None:
    browser, _, _ = shown
    status, _, body = await browser.get(path)
    assert status == 404
    assert "Traceback" not in body


async def test_a_document_is_saved_under_a_name_of_ours(shown: Any) -> None:
    browser, session_id, opened = shown
    first = (await opened.messages(session_id))[0].id
    status, headers, body = await browser.get(f"/s/{session_id}/media?at={first}&block=2")
    assert (status, body) == (200, "%PDF-")
    assert headers["content-type"].startswith("application/octet-stream")
    assert headers["content-disposition"] == 'attachment; filename="attachment.pdf"'
    for query in (f"at={first}&block=0", f"at={first}&block=99", "at=../../etc/passwd&block=0"):
        assert (await browser.get(f"/s/{session_id}/media?{query}"))[0] in (400, 404)


async def test_a_list_says_what_changed_since(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, _, opened = shown
    monkeypatch.setattr("metis.web.index._REFRESH_S", 0.0)
    body = (await browser.get("/"))[2]
    since = re.search(r"changed\?since_ms=(\d+)", body)
    assert since is not None
    assert "show</a>" not in (await browser.get(f"/changed?since_ms={since[1]}"))[2]
    await opened.create_session()
    assert "1 changed" in (await browser.get(f"/changed?since_ms={since[1]}"))[2]


async def add_bytes(store: Any, session_id: str) -> tuple[str, str, bytes, bytes]:
    """Store the bytes of both responses; return the ids and the requests."""
    first, last = [one.id for one in await store.messages(session_id) if one.role is Role.ASSISTANT]
    old = b'{"model":"m","messages":["%s"],"tools":[]}' % ("ä" * 3000).encode()
    new = old.replace(b'"],"tools"', b'","</script><script>alert(1)"],"tools"')
    for body_id, request in ((first, old), (last, new)):
        body = WireBody(
            id=body_id,
            session_id=session_id,
            provider="anthropic",
            path="/v1/messages",
            request=request,
            response=(b'event: x\ndata: {"a":1}\n\n', b'event: y\ndata: {"b":"<b>"}\n\n'),
        )
        store.add_wire_bodies([body])
    await until_stored(store, session_id, last)
    return first, last, old, new


async def until_stored(store: Any, session_id: str, body_id: str) -> None:
    for _ in range(600):
        if await store.wire_body(session_id, body_id) is not None:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the bytes were not stored")


async def test_the_bytes_as_they_were_sent(shown: Any) -> None:
    browser, session_id, opened = shown
    first, last, old, new = await add_bytes(opened, session_id)
    path = f"/s/{session_id}/request?at={last}"
    assert (await browser.get(path))[2] == new.decode()
    assert (await browser.get(f"{path}&side=response"))[2].count("event:") == 2
    changed = old.index(b'"],"tools"') + 1
    turn = (await browser.get(f"/s/{session_id}/turn?at={last}"))[2]
    assert f"byte={changed}#b{changed}" in turn
    assert f"{changed:,} of {len(new):,} bytes" in turn
    assert f"turn?at={first}" in turn
    assert "POST /v1/messages" in turn
    page = (await browser.get(f"/s/{session_id}/bytes?at={last}&byte={changed}"))[2]
    assert f'id="b{changed}"' in page
    assert "<mark>,&#34;&lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "\ufffd" not in page  # no character is cut
    pretty = (await browser.get(f"/s/{session_id}/bytes?at={last}&side=response&form=pretty"))[2]
    assert "event: y\n{\n  &#34;b&#34;: &#34;&lt;b&gt;&#34;\n}" in pretty
    for query in (f"at={last}&byte=999999", "at=nobody"):
        assert (await browser.get(f"/s/{session_id}/bytes?{query}"))[0] in (400, 404)


async def test_a_long_body_is_shown_in_pages(shown: Any) -> None:
    browser, session_id, opened = shown
    last = (await opened.messages(session_id))[-1].id
    request = json.dumps(["é" * 50_000 + str(n) for n in range(3)], ensure_ascii=False).encode()
    opened.add_wire_bodies(
        [WireBody(id=last, session_id=session_id, provider="p", path="/", request=request)]
    )
    await until_stored(opened, session_id, last)
    shown_text, path = "", f"/s/{session_id}/bytes?at={last}"
    while path:
        page = (await browser.get(path))[2]
        shown_text += "".join(re.findall(r"</a></td><td>(.*?)</td></tr>", page))
        more = re.search(r"&amp;from=(\d+)\">Later", page)
        path = f"/s/{session_id}/bytes?at={last}&from={more[1]}" if more else ""
    assert html.unescape(shown_text) == request.decode()


async def test_without_bytes_the_request_is_written_again(shown: Any) -> None:
    browser, session_id, opened = shown
    last = (await opened.messages(session_id))[-1].id
    assert "are not stored" in (await browser.get(f"/s/{session_id}/turn?at={last}"))[2]
    assert (await browser.get(f"/s/{session_id}/request?at={last}"))[2].startswith('{"')
    assert "are not stored" in (await browser.get(f"/s/{session_id}/bytes?at={last}"))[2]


async def test_branches_forks_and_sub_agents_are_a_tree(shown: Any) -> None:
    browser, session_id, opened = shown
    messages = await opened.messages(session_id)
    start, call = messages[0], messages[1].content[2].id
    now = datetime.now(UTC)
    follow: dict[str, Any] = {"at": now, "parents": (start.id,)}
    again = message(session_id, Role.ASSISTANT, TextBlock("a second try"), **follow, **answered())
    await opened.append(again)
    follow["parents"] = (again.id,)
    edited = message(session_id, Role.USER, TextBlock(f"edited {HOSTILE}"), **follow)
    await opened.append(edited)
    await opened.append(message(session_id, Role.USER, TextBlock("edited twice"), **follow))
    fork = await opened.fork(session_id, at=messages[1].id)
    worker = await opened.create_session()
    parent = {"session_id": session_id, "tool_use_id": call}
    fields: dict[str, Any] = {
        "session_id": worker.id,
        "created_at": now,
        "kind": PARENT_KIND,
        "data": parent,
    }
    await opened.record(SidecarEntry(id=new_ulid(), **fields))
    await opened.append(message(worker.id, Role.USER, TextBlock("the work"), at=now))
    page = (await browser.get(f"/s/{session_id}/tree"))[2]
    rows = re.findall(r'<li class="row (.*?)">(.*?)</li>\n', page, re.DOTALL)
    assert [kind for kind, _ in rows] == ["d0", "d1", "d1", "d2", "d2 now"]
    assert "answered again" in rows[2][1]
    assert "another prompt" in rows[4][1]
    assert "the conversation goes on here" in rows[4][1]
    # Both began in the branch of the first answer.
    assert f'fork: <a href="/s/{fork.id}"' in rows[1][1]
    assert f'sub-agent: <a href="/s/{worker.id}">the work' in rows[1][1]
    assert "<script>alert" not in page
    branch = (await browser.get(f"/s/{session_id}?branch={edited.id}"))[2]
    assert "a second try" in branch
    assert "edited twice" not in branch
    assert "edited &lt;script" in branch


async def test_a_deep_tree_is_listed_without_recursion(shown: Any) -> None:
    browser, _, opened = shown
    session = await opened.create_session()
    at = datetime.now(UTC)
    parent = message(session.id, Role.USER, TextBlock("start"), at=at)
    messages = [parent]
    for number in range(700):
        follow: dict[str, Any] = {"at": at, "parents": (parent.id,)}
        pair = [
            message(session.id, Role.USER, TextBlock(f"{number}{side}"), **follow) for side in "ab"
        ]
        messages += pair
        parent = pair[0]
    await opened.append_all(messages)
    page = (await browser.get(f"/s/{session.id}/tree"))[2]
    assert page.count('<li class="row ') == 500
    assert "More branches" in page


async def test_calls_that_a_fork_copied_are_counted_once(shown: Any) -> None:
    browser, session_id, opened = shown
    await opened.fork(session_id)
    assert "$0.0066" in (await browser.get("/cost"))[2]
    assert "anthropic:claude-sonnet-4-6,2,2000" in (await browser.get("/cost.csv?by=model"))[2]
    assert "Forked from" in (await browser.get(await newest(browser)))[2]


async def test_the_filters_offer_the_values_of_the_conversations(shown: Any) -> None:
    browser, _, opened = shown
    page = (await browser.get("/"))[2]
    assert '<select name="model"><option value="">all</option><option>anthropic:' in page
    index = ViewerIndex(opened)
    await index.refresh()
    assert (await index.choices())["model"] != []
    # Who has no conversation here learns nothing of those of others.
    assert not any((await index.choices("another")).values())
    for record in await opened.sessions():
        await opened.delete(record.id)
    await index.refresh()
    assert not any((await index.choices()).values())
    index.close()


async def newest(browser: Any) -> str:
    found = re.search(r"/s/sess_\w+", (await browser.get("/"))[2])
    assert found is not None
    return found[0]


def test_each_store_has_an_index_file_of_its_name(tmp_path: Path) -> None:
    names = ["/home/ann/work/metis.db", "/home/bob/work/metis.db", "/metis.db"]
    assert len({index_path(name, tmp_path) for name in names}) == len(names)
    assert index_path(names[0], tmp_path) == index_path(names[0], tmp_path)


async def test_what_is_dated_before_the_newest_is_read_as_well(shown: Any) -> None:
    _, session_id, opened = shown
    late = await opened.create_session()
    index = ViewerIndex(opened)
    await index.refresh()
    # Another process commits with a date that has passed.
    await opened.append(message(late.id, Role.USER, TextBlock("late owl"), at=datetime.now(UTC)))
    await opened.restore_session(
        replace(
            late, updated_at=(await opened.session(session_id)).updated_at - timedelta(seconds=9)
        )
    )
    assert await index.refresh() >= 1
    assert (await index.column("title", [late.id]))[late.id] == "late owl"
    index.close()


async def test_what_follows_within_a_second_of_the_date_is_read(shown: Any) -> None:
    _, session_id, opened = shown
    index = ViewerIndex(opened)
    await index.refresh()
    before = (await opened.session(session_id)).updated_at
    await opened.append(message(session_id, Role.USER, TextBlock("more"), at=datetime.now(UTC)))
    await opened.restore_session(replace(await opened.session(session_id), updated_at=before))
    await index.refresh()
    rows = await index.select("SELECT messages FROM conversations WHERE id = ?", (session_id,))
    assert rows[0][0] == 5
    index.close()


async def test_the_first_byte_of_an_exchange_is_that_of_its_response(shown: Any) -> None:
    _, _, opened = shown
    session = await opened.create_session()
    exchange_id = new_ulid()
    record = {"id": exchange_id, "timings": {"first_byte_ms": 321}}
    row = ExchangeRow(exchange_id, session.id, "/ann", json.dumps(record))
    response = message(
        session.id,
        Role.ASSISTANT,
        TextBlock("hi"),
        at=datetime.now(UTC),
        external={EXTERNAL_KEY: exchange_id},
        **answered(),
    )
    await opened.add_exchanges([ExchangeJob(row, (prepare_message(response),))])
    index = ViewerIndex(opened)
    await index.refresh()
    rows = await index.select("SELECT first_ms FROM calls WHERE id = ?", (response.id,))
    assert [row[0] for row in rows] == [321]
    index.close()


async def test_forks_are_children_until_they_are_deleted(shown: Any) -> None:
    browser, session_id, opened = shown
    fork = await opened.fork(session_id)
    await browser.get("/")
    assert "Forks and sub-agents (1)" in (await browser.get(f"/s/{session_id}"))[2]
    await opened.delete(fork.id)
    index = ViewerIndex(opened)
    await index.refresh()
    assert await index.select("SELECT * FROM links") == []
    index.close()


class Tail:
    """A page that follows a conversation; `leave` closes it."""

    def __init__(self, viewer: Viewer, target: str) -> None:
        path, _, query = target.partition("?")
        self._parts: asyncio.Queue[bytes] = asyncio.Queue()
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1"), (b"cookie", f"{COOKIE}={TOKEN}".encode())],
        }
        self.task = asyncio.create_task(viewer(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, object]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: dict[str, Any]) -> None:
        if event.get("body"):
            await self._parts.put(event["body"])

    async def wait_for(self, text: str) -> str:
        async with asyncio.timeout(60):
            while text not in (part := (await self._parts.get()).decode()):
                pass
        return part

    async def leave(self) -> None:
        self._left.set()
        async with asyncio.timeout(60):
            await self.task


async def test_a_tail_shows_what_follows_within_a_second_of_the_last_message(shown: Any) -> None:
    _, session_id, opened = shown
    viewer = Viewer(opened, TokenAccess(TOKEN))
    tail = Tail(viewer, f"/s/{session_id}/live?after=4")
    await tail.wait_for("retry")
    for number in range(3):
        await opened.append(
            message(
                session_id, Role.USER, TextBlock(f"line {number} {HOSTILE}"), at=datetime.now(UTC)
            )
        )
        part = await tail.wait_for(f"line {number}")
        assert "<script>alert" not in part
    await tail.leave()


async def test_tails_share_one_query_and_end_with_their_pages(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, session_id, opened = shown
    viewer = Viewer(opened, TokenAccess(TOKEN))
    tails = [Tail(viewer, f"/s/{session_id}/live?after=4") for _ in range(live.MAX_TAILS)]
    for tail in tails:
        await tail.wait_for("retry")
    refused = Tail(viewer, f"/s/{session_id}/live?after=4")
    await refused.wait_for("too many")
    await refused.leave()
    # Nothing happens in the conversation, yet pages that were left free their places.
    for tail in tails[1:]:
        await tail.leave()
    reads = 0
    newest = live._read_newest  # pyright: ignore[reportPrivateUsage] - to count

    def count(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return newest(*arguments)

    monkeypatch.setattr(live, "_read_newest", count)
    again = [Tail(viewer, f"/s/{session_id}/live?after=4") for _ in range(50)]
    for tail in again:
        await tail.wait_for("retry")
    await opened.append(message(session_id, Role.USER, TextBlock("news"), at=datetime.now(UTC)))
    for tail in (tails[0], *again):
        await tail.wait_for("news")
    assert reads < 50
    for tail in (tails[0], *again):
        await tail.leave()
