"""The viewer: who may look, what pages show, and that nothing in a conversation becomes markup."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from metis import store as stores
from metis.canonical import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    new_tool_use_id,
    new_ulid,
)
from metis.web.app import COOKIE, TokenAccess, Viewer
from metis.web.index import ViewerIndex

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
        routing = RoutingDecisionRecord(
            mode=RoutingMode.DEFAULT, chosen_model="anthropic:claude-sonnet-4-6", reason="default"
        )
        usage = Usage(
            input_tokens=1000,
            output_tokens=20,
            cost_usd=Decimal("0.0033"),
            pricing_version="2026-05-08",
            latency_ms=5,
        )

        def message(role: Role, *blocks: Any, **metadata: Any) -> Message:
            return Message(
                id=new_ulid(),
                session_id=session.id,
                role=role,
                content=blocks,
                created_at=datetime.now(UTC),
                metadata=MessageMetadata(**metadata),
            )

        answered: dict[str, Any] = {
            "model": "anthropic:claude-sonnet-4-6",
            "provider": "anthropic",
            "routing": routing,
            "usage": usage,
        }
        thinking = ThinkingBlock(f"hm {HOSTILE}", signature="sealed", issuer="anthropic")
        image = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
        page = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", HOSTILE)
        for one in (
            message(Role.USER, TextBlock(f"owl {HOSTILE}"), image, page),
            message(
                Role.ASSISTANT,
                thinking,
                TextBlock(f"**bold** [x](javascript:alert(3)) {HOSTILE}"),
                ToolUseBlock(call, "read_file", {"path": HOSTILE}),
                **answered,
            ),
            message(
                Role.TOOL,
                ToolResultBlock(call, (TextBlock(HOSTILE),), is_error=True),
                parent_tool_use_id=call,
            ),
            message(Role.ASSISTANT, TextBlock("done"), **answered),
        ):
            await opened.append(one)
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
    monkeypatch.setattr("metis.web.pages._REFRESH_S", 0.0)
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
