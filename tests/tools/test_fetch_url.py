"""fetch_url with a server on loopback, which must be allowed explicitly."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import ResolveResult

from metis.canonical import ImageBlock, Message
from metis.tools import ErrorClass, error_class
from metis.tools import web as web_tools
from metis.tools.builtin import FetchUrl
from metis.tools.html_text import html_to_text
from metis.tools.web import is_public_address
from tool_helpers import result_of, result_text, run_one, tool_context

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


PAGE = """<html><head><title>t</title><script>evil()</script></head><body><h1>Hello &amp; you</h1>
<p>Go <a href="https://example.com/x">there</a><br>now</p><style>p{}</style></body></html>"""


async def _serve(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/page":
            return web.Response(text=PAGE, content_type="text/html")
        case "/png":
            return web.Response(body=b"\x89PNG\r\n\x1a\nrest", content_type="image/png")
        case "/big":
            return web.Response(body=b"x" * 3000)
        case "/packed":
            return web.Response(body=b"x", headers={"Content-Encoding": "gzip"})
        case "/binary":
            return web.Response(body=b"a\0b")
        case "/to":
            raise web.HTTPFound(request.query["url"])
        case "/loop":
            raise web.HTTPFound("/loop")
        case "/head":
            return web.Response(text=request.headers.get("Cookie", "none"))
        case _:
            raise web.HTTPNotFound


@asynccontextmanager
async def server_url() -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_get("/{rest:.*}", _serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def fetch(url: str, *, raw: bool = False, **settings: Any) -> Message:
    settings = {"allowed_hosts": ("127.0.0.1",), **settings}
    return await run_one(lambda: FetchUrl(**settings), tool_context(), url=url, raw=raw)


async def test_page_is_returned_as_text_or_raw() -> None:
    async with server_url() as base:
        page = await fetch(f"{base}/page")
        assert result_text(page) == "Hello & you\nGo [https://example.com/x] there\nnow"
        assert result_text(await fetch(f"{base}/page", raw=True)) == PAGE
        block = result_of(await fetch(f"{base}/png")).content[0]
        assert isinstance(block, ImageBlock)
        missing = await fetch(f"{base}/nothing")
        assert result_text(missing).startswith("[status 404]")
        assert result_of(missing).is_error


async def test_responses_are_bounded() -> None:
    async with server_url() as base:
        assert "more than 1000 bytes" in result_text(await fetch(f"{base}/big", max_bytes=1000))
        assert "packed" in result_text(await fetch(f"{base}/packed"))
        assert "binary" in result_text(await fetch(f"{base}/binary"))
        assert "redirects" in result_text(await fetch(f"{base}/loop"))


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:{port}/page", "http://localhost:{port}/page", "http://127.1:{port}/"),
        *("http://2130706433:{port}/", "http://0x7f000001:{port}/", "http://[::1]:{port}/"),
        *("http://[::ffff:127.0.0.1]:{port}/", "http://0.0.0.0:{port}/", "http://10.0.0.1/"),
        *("http://169.254.169.254/latest/meta-data/", "http://192.168.1.1/", "http://100.64.0.1/"),
        *("http://[fe80::1]/", "http://[fd00::1]/", "http://127.0.0.01:{port}/"),
        *("file:///etc/passwd", "ftp://example.com/", "http:///x", "http://me:word@example.com/"),
        *(
            "http://①②⑦.⓪.⓪.①:{port}/page",
            "http://127.0.0.1.:{port}/page",
            "http://LOCALHOST:{port}/page",
        ),
        *("gopher://127.0.0.1/", "not an address", "http://[zz]/"),
    ],
)
async def test_private_addresses_are_refused(url: str) -> None:
    async with server_url() as base:
        port = base.rpartition(":")[2]
        message = await fetch(url.format(port=port), allowed_hosts=())
    assert result_of(message).is_error
    assert "Hello" not in result_text(message)
    refused = {ErrorClass.PERMISSION_DENIED, ErrorClass.EXECUTION_ERROR}
    assert error_class(message) in refused
    if "127.0.0.1:" in url or url.startswith(("file", "http://169", "http://10.")):
        assert error_class(message) is ErrorClass.PERMISSION_DENIED


async def test_a_redirect_is_checked_again() -> None:
    async with server_url() as base:
        port = base.rpartition(":")[2]
        for target in (f"http://localhost:{port}/page", "file:///etc/passwd", "http://10.0.0.1/"):
            message = await fetch(f"{base}/to?url={target}")
            assert error_class(message) is ErrorClass.PERMISSION_DENIED, target
        for target in ("http://user:word@example.org/", "http://2130706433/", "http://0x7f.1/"):
            message = await fetch(f"{base}/to?url={target}")
            assert error_class(message) is ErrorClass.PERMISSION_DENIED, target
        assert "redirects" in result_text(await fetch(f"{base}/loop"))
        assert result_of(await fetch(f"{base}/to?url=http://[zz]/")).is_error
        message = await fetch(f"{base}/to?url=/page")
        assert "Hello" in result_text(message)


async def test_host_name_is_resolved_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[str] = []
    resolve = web_tools.resolve_public

    async def counted(host: str, port: int, allowed: Any) -> list[ResolveResult]:
        looked_up.append(host)
        return await resolve("127.0.0.1", port, ("127.0.0.1",))

    monkeypatch.setattr(web_tools, "resolve_public", counted)
    async with server_url() as base:
        port = base.rpartition(":")[2]
        # Only the checked look-up resolves this name.
        message = await fetch(f"http://no-such-host.invalid:{port}/page")
    assert "Hello" in result_text(message)
    assert looked_up == ["no-such-host.invalid"]


async def test_unknown_host_is_an_error_result() -> None:
    assert "was not found" in result_text(await fetch("http://no-such-host.invalid/"))
    assert "was not reached" in result_text(await fetch("http://127.0.0.1:1/"))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("64:ff9b:1::7f00:1", False),
        ("2606:2800:220:1:0:5efe:10.0.0.1", False),
        ("fec0::1", False),
        ("fe80::1%eth0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("0.0.0.0", False),  # noqa: S104 - an address to refuse
        ("::", False),
    ],
)
def test_address_classification(address: str, *, expected: bool) -> None:
    assert is_public_address(address) is expected


def test_non_html_page_is_returned_unchanged() -> None:
    assert html_to_text("a < b") == "a < b"
    assert html_to_text("<script>x</b></script>y") == "y"
