"""The viewer: who may look, what pages show, and that nothing in a conversation becomes markup."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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
from metis.store.append import prepare_message
from metis.store.exchanges import EXTERNAL_KEY, ExchangeJob, ExchangeRow
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
        *("/what-if", "/resume", "/export", "/replay?at=x", "/older?before=9"),
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
    assert "No message has" in (await browser.get("/?q=zebra"))[2]
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


async def test_the_bytes_around_a_place(shown: Any) -> None:
    browser, session_id, opened = shown
    last = (await opened.messages(session_id))[-1].id
    whole = (await browser.get(f"/s/{session_id}/request?at={last}"))[2]
    part = (await browser.get(f"/s/{session_id}/request?at={last}&byte=300"))[2]
    assert whole.startswith('{"')
    assert part == whole[100:4300]


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
    assert "1 forks and sub-agents" in (await browser.get(f"/s/{session_id}"))[2]
    await opened.delete(fork.id)
    index = ViewerIndex(opened)
    await index.refresh()
    assert await index.select("SELECT * FROM links") == []
    index.close()
