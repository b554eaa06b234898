"""The viewer in a real browser: what a person does, and what hostile content must not do."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from metis import store as stores
from metis.canonical import (
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    new_tool_use_id,
)
from viewer_data import MODEL, Part, add_messages, answered, message, wire_body

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
sync_api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
# Assertions wait until they hold: a click does not wait for the page that it opens.
expect.set_options(timeout=60_000)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<svg onload=\"document.title='owned'\"> \u202eevil \x1b]0;owned\x07 \ufffd"
)
PAGES = ("", "cost", "speed", "what-if", "sql?sql=select+count(*)+from+calls", "?q=owl", "nothing")
OF_SESSION = (
    *("", "/requests", "/losses", "/what-if", "/resume", "/export"),
    *("/turn?at={at}", "/replay?at={at}", "/requests?at={at}", "/tree"),
    *("/bytes?at={at}", "/bytes?at={at}&side=response&form=pretty", "?branch={at}"),
)


async def fill(url: str) -> tuple[str, str, str, str]:
    """Store a hostile and a long conversation; return their ids and those of two responses."""
    start = datetime.now(UTC) - timedelta(minutes=30)
    async with stores.open(url) as store:
        one = await store.create_session(workspace_path="/home/someone/project")
        call = new_tool_use_id()
        parts: list[Part] = [
            (Role.USER, (TextBlock(f"owl {HOSTILE}"),), {}),
            (
                Role.ASSISTANT,
                (
                    ThinkingBlock(f"hm {HOSTILE}", signature="sealed", issuer="anthropic"),
                    TextBlock(f"**bold** [x](javascript:alert(3)) {HOSTILE}"),
                    ToolUseBlock(call, "read_file", {"path": HOSTILE}),
                ),
                answered(reason="the default of all sessions"),
            ),
            (
                Role.TOOL,
                (ToolResultBlock(call, (TextBlock(HOSTILE * 20_000),), is_error=True),),
                {"parent_tool_use_id": call},
            ),
            (
                Role.ASSISTANT,
                (TextBlock("done, key sk-ant-0123456789abcdefghij"),),
                answered(reason="the default of all sessions", input_tokens=2100),
            ),
        ]
        messages = await add_messages(store, one.id, start, parts)
        for number in (1, 3):
            request = json.dumps({"messages": [f"owl {HOSTILE}" * 9 * number], "tools": []})
            store.add_wire_bodies([wire_body(messages[number], request.encode())])
        # The second prompt again, and an edited one: two branches and a fork.
        for text in ("owl again", "owl edited"):
            follow: dict[str, Any] = {
                "at": start + timedelta(minutes=1),
                "parents": (messages[0].id,),
            }
            await store.append(message(one.id, Role.USER, TextBlock(text), **follow))
        await store.append(
            message(
                one.id,
                Role.USER,
                TextBlock("and now?"),
                at=start + timedelta(minutes=2),
                parents=(messages[-1].id,),
            )
        )
        long = await store.create_session()
        await store.append_all(
            message(long.id, Role.USER, TextBlock(f"line {n}"), at=start + timedelta(seconds=n))
            for n in range(180)
        )
        return one.id, long.id, messages[-1].id, messages[1].id


class Shown:
    """A running viewer, and pages of a browser that look at it."""

    def __init__(self, address: str, url: str, ids: tuple[str, ...], browser: Any) -> None:
        self.root, self.address = address.partition("?")[0], address
        self.url, self.session, self.long, self.response, self.first = url, *ids
        self.browser = browser
        self.added = ""

    def page(self, **context: Any) -> Any:
        page = self.browser.new_context(**context).new_page()
        page.set_default_timeout(60_000)
        faults: list[str] = []

        def note_error(error: Any) -> None:
            faults.append(str(error))

        def refuse_dialog(dialog: Any) -> None:
            faults.append("a dialog")
            dialog.dismiss()

        def note_request(request: Any) -> None:
            if not request.url.startswith((self.root, "data:")):
                faults.append(f"a request to {request.url}")

        page.faults = faults
        page.on("pageerror", note_error)
        page.on("dialog", refuse_dialog)
        page.on("request", note_request)
        page.goto(self.address)
        return page


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    home = tmp_path_factory.mktemp("viewer")
    url = f"sqlite:///{home}/chats.db"
    ids = asyncio.run(fill(url))
    environment = {**os.environ, "METIS_HOME": str(home)}
    command = [sys.executable, "-m", "metis", "web", "--store", url, "--port", "0"]
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, env=environment, text=True
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, line
        try:
            with sync_api.sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    # A container has no user namespaces for the sandbox; all pages are our own.
                    executable_path=CHROMIUM,
                    args=["--no-sandbox"],
                )
                yield Shown(address.group(), url, ids, browser)
                browser.close()
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()


def test_the_token_is_in_no_address_that_stays(shown: Shown) -> None:
    page = shown.page()
    assert page.url == shown.root
    assert "token" not in page.content()
    assert page.evaluate("document.cookie") == ""
    other = shown.browser.new_context().new_page()
    assert other.goto(shown.root).status == 401


def test_a_person_moves_with_the_keyboard(shown: Shown) -> None:
    page = shown.page()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".current")).to_have_count(1)
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/s/**")
    page.keyboard.press("?")
    expect(page.locator("dialog#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#help")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("input[name=q]")).to_be_focused()
    page.keyboard.type("owl")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=owl**")
    page.locator("h1").click()
    page.keyboard.press("g")
    page.wait_for_url(shown.root)
    assert page.faults == []


def test_filters_select_conversations(shown: Shown) -> None:
    page = shown.page()
    expect(page.locator("#rows .row")).to_have_count(2)
    page.select_option("select[name=model]", MODEL)
    page.click("button:has-text('Show')")
    expect(page.locator("#rows .row")).to_have_count(1)
    page.goto(f"{shown.root}?min_cost=100")
    expect(page.locator("main")).to_contain_text("No conversations here")


def test_hostile_content_is_shown_as_text(shown: Shown) -> None:
    page = shown.page()
    for path in OF_SESSION:
        page.goto(f"{shown.root}s/{shown.session}{path.format(at=shown.response)}")
        assert page.title() != "owned"
        assert page.locator("main script, main svg, main a[href^=javascript]").count() == 0
    page.goto(f"{shown.root}s/{shown.session}")
    expect(page.locator("main")).to_contain_text("<script>document.title")
    assert page.faults == []


def test_older_messages_are_loaded_when_they_are_wanted(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}s/{shown.long}")
    expect(page.locator("article")).to_have_count(50)
    page.click("text=Show older messages")
    expect(page.locator("article .plain")).to_have_text([f"line {n}" for n in range(80, 180)])


def test_what_is_added_appears_by_itself(shown: Shown) -> None:
    page = shown.page()
    with page.expect_response("**/live?**"):
        page.goto(f"{shown.root}s/{shown.long}")

    async def add() -> None:
        async with stores.open(shown.url, recover=False) as store:
            now = datetime.now(UTC)
            await store.append(message(shown.long, Role.USER, TextBlock(f"new {HOSTILE}"), at=now))

    # The browser's driver has an event loop in this thread.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, add()).result()
    expect(page.locator("main")).to_contain_text("new <script>")
    assert page.title() != "owned"
    assert page.faults == []


def test_the_list_says_that_something_changed(shown: Shown) -> None:
    page = shown.page()
    expect(page.locator("#rows")).not_to_contain_text("a late badger")

    async def add() -> None:
        async with stores.open(shown.url, recover=False) as store:
            session = await store.create_session()
            text, at = TextBlock("a late badger"), datetime.now(UTC)
            await store.append(message(session.id, Role.USER, text, at=at))
            shown.added = session.id

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, add()).result()
    page.locator("a:has-text('show')").first.click()
    expect(page.locator("#rows")).to_contain_text("a late badger")

    async def remove() -> None:
        async with stores.open(shown.url, recover=False) as store:
            await store.delete(shown.added)

    # Other tests count the rows.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, remove()).result()
    for _ in range(120):
        page.goto(shown.root)
        if page.locator("#rows", has_text="a late badger").count() == 0:
            break
        page.wait_for_timeout(500)
    expect(page.locator("#rows")).not_to_contain_text("a late badger")
    assert page.faults == []


def test_one_request_for_two_models(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}s/{shown.session}/requests?at={shown.response}")
    page.fill("input[name=second]", "gemini:gemini-3.5-flash")
    page.click("text=Compare")
    expect(page.locator("main")).to_contain_text("generateContent")
    expect(page.locator("table.diff tr.equal, table.diff tr.changed").first).to_be_visible()
    page.goto(f"{shown.root}s/{shown.session}/losses")
    page.fill("input[name=model]", "openai:gpt-5")
    page.click("button:has-text('Show')")
    expect(page.locator("main")).to_contain_text("thinking dropped")
    expect(page.locator("main")).to_contain_text("$")


def test_a_turn_says_why_what_and_how_much(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}s/{shown.session}/turn?at={shown.response}")
    for expected in ("the default of all sessions", "global_default", "2,100", "$0.0063", "bytes"):
        expect(page.locator("main")).to_contain_text(expected)
    page.locator("a:has-text('indented')").first.click()
    expect(page.locator("h1")).to_have_text("The request as it was sent")
    expect(page.locator("pre.wire")).to_contain_text('"tools": []')
    page.get_by_role("link", name="response", exact=True).click()
    expect(page.locator("pre.wire")).to_contain_text("event: message_start")
    page.go_back()
    page.go_back()
    page.click("a:has-text('byte ')")
    expect(page.locator("tr:target mark")).to_contain_text("owl <script>")
    assert page.faults == []


def test_the_branches_of_a_conversation(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}s/{shown.session}")
    page.click("text=Branches")
    rows = page.locator(".tree .row")
    expect(rows).to_have_count(4)
    expect(rows.nth(2)).to_contain_text("another prompt")
    expect(page.locator(".tree .now")).to_have_count(1)
    page.click("text=owl edited")
    expect(page.locator("article")).to_have_count(2)
    expect(page.locator("main")).to_contain_text("owl edited")
    expect(page.locator("main")).not_to_contain_text("owl again")
    assert page.faults == []


def test_another_model_answers_the_same_turn(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}s/{shown.session}/replay?at={shown.first}")
    page.fill("input[name=model]", "sim")
    page.click("button:has-text('Ask')")
    page.locator("table.diff, .error").first.wait_for()
    expect(page.locator("p.error")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("(thinking) hm")
    expect(page.locator("main")).to_contain_text("only one answer has this call")


def test_a_form_of_another_site_is_refused(shown: Shown) -> None:
    page = shown.page()
    answer = page.request.post(
        f"{shown.root}s/{shown.session}/replay",
        form={"at": shown.response, "model": "sim"},
        headers={"origin": "http://evil.example"},
    )
    assert answer.status == 403


def test_what_if_prices_other_models(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}what-if?days=3000")
    expect(page.locator("tbody tr").first).to_contain_text("the models that answered")
    expect(page.locator("tbody tr", has_text="openai:gpt-5")).to_have_count(1)
    page.goto(f"{shown.root}s/{shown.session}/what-if")
    expect(page.locator("main")).to_contain_text("2 calls")


def test_money_and_speed(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}cost")
    page.locator(".plot canvas").wait_for()
    expect(page.locator("main")).to_contain_text("$0.0126")
    with page.expect_download() as download:
        page.locator("text=CSV").first.click()
    assert "cost_usd" in Path(download.value.path()).read_text()
    page.goto(f"{shown.root}speed")
    page.locator(".plot canvas").wait_for()
    expect(page.locator("main")).to_contain_text("read_file")
    assert page.faults == []


def test_an_export_shows_what_redaction_replaces(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}s/{shown.session}/export")
    expect(page.locator("main")).to_contain_text(re.compile("1 . key, first in line"))
    with page.expect_download() as download:
        page.click("text=Redacted file")
    assert "sk-ant-" not in Path(download.value.path()).read_text()


def test_sql_reads_and_nothing_else(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}sql")
    page.fill("textarea", "select model, count(*) from calls group by 1")
    page.click("button:has-text('Run')")
    page.locator(f"tbody:has-text('{MODEL}')").wait_for()
    for bad in (
        "delete from calls",
        "attach database '/tmp/x' as x",
        "pragma user_version = 9",
        "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r",
        "select zeroblob(1000000000)",
        "select load_extension('x')",
    ):
        page.goto(f"{shown.root}sql")
        page.fill("textarea", bad)
        page.click("button:has-text('Run')")
        page.locator(".error").wait_for()


def test_a_conversation_goes_on_elsewhere(shown: Shown) -> None:
    page = shown.page()
    page.goto(f"{shown.root}s/{shown.session}/resume")
    expect(page.locator("main")).to_contain_text(f"metis handoff codex {shown.session} --go")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_pages_are_accessible(shown: Shown, scheme: str, width: int) -> None:
    page = shown.page(
        color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True
    )
    paths = [*PAGES, *(f"s/{shown.session}{each.format(at=shown.response)}" for each in OF_SESSION)]
    for path in paths:
        page.goto(f"{shown.root}{path}")
        page.add_script_tag(path=str(AXE))
        found = page.evaluate("axe.run()")
        serious = [
            (each["id"], each["nodes"][0]["html"][:200])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
