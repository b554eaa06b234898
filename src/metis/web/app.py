"""The viewer as an ASGI application: routes, access control, and security headers.

Pages are read with GET. The one action, a replay, is a POST with a token that only the viewer's
pages contain. An `Access` decides who may read: by the token that `metis web` prints, or by the
keys of the gateway. Either becomes a cookie at once, so that it is in no link, log or Referer.
"""

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from typing import Protocol, cast
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FunctionLoader, StrictUndefined

from metis.canonical.errors import MetisError, UnknownSessionError
from metis.events.trace import TraceStore
from metis.store import Store
from metis.web.index import ViewerIndex
from metis.web.live import LiveTails
from metis.web.pages import Pages
from metis.web.statistics import Content, number
from metis.web.turns import Replayer

log = logging.getLogger("metis.web")

Scope = Mapping[str, object]
Send = Callable[[dict[str, object]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, object]]]

COOKIE = "metis_viewer"
MAX_FORM_BYTES = 64 * 1024
_LOCAL_HOST = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_STATIC = {
    "style.css": "text/css",
    "viewer.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "LICENSES.txt": "text/plain",
}
_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    # Nothing is loaded from other hosts and no page can be framed. Content of models, tools and
    # files is escaped in the pages; this policy limits the damage of a missed escape.
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Browsers send Origin with forms only if the policy reveals it to the same site.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Page(Exception):  # noqa: N818 - raised to end a request early, such as a redirect
    """A response: status, body, media type and additional headers."""

    def __init__(
        self,
        body: str | bytes,
        status: int = 200,
        media_type: str = "text/html",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.body = body if isinstance(body, bytes) else body.encode("utf-8", "replace")
        self.status = status
        self.media_type = media_type
        self.headers = headers
        super().__init__()


class Request:
    """A request of a browser: path, query, headers, cookies and form."""

    def __init__(self, scope: Scope, base: str) -> None:
        path = str(scope["path"])
        self.method = str(scope["method"])
        self.path = path.removeprefix(base) if base else path
        self.query = dict(parse_qsl(_text(scope["query_string"]), keep_blank_values=True))
        listed = cast("Sequence[tuple[bytes, bytes]]", scope["headers"])
        self.headers = {_text(name).lower(): _text(value) for name, value in listed}
        self.form: dict[str, str] = {}
        self.cookies: dict[str, str] = {}
        for part in self.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            self.cookies[name] = value


class Access(Protocol):
    """Decides which conversations a request may read."""

    def check(self, request: Request, base: str) -> tuple[str | None, str]:
        """Return the tenant whose conversations may be read (None for all), and a session secret.

        Raises:
            Page: the response for a browser that must log in or may not read.
        """
        ...


class TokenAccess:
    """Grants everything to the holder of the start token; only loopback host names are served."""

    def __init__(self, token: str) -> None:
        self._token = token

    def check(self, request: Request, base: str) -> tuple[str | None, str]:
        """Grant access to everything, or raise the page that the browser gets instead."""
        # DNS rebinding: a page of another site whose name resolves to 127.0.0.1 has another Host.
        if not _LOCAL_HOST.fullmatch(request.headers.get("host", "")):
            raise Page("this address is not the one that the viewer was started with", 403)
        token = request.query.pop("token", None)
        if token is not None and _is_equal(token, self._token):
            query = urlencode(request.query)
            path = quote(request.path)  # ASGI paths are decoded and may contain line breaks
            target = f"{path}?{query}" if query else path
            # A path that begins with `//` would redirect to another host.
            raise _redirect(f"{base}/{target.lstrip('/')}", self._token, base)
        if not _is_equal(request.cookies.get(COOKIE, ""), self._token):
            raise Page("open the address that `metis web` printed: it has the token", 401)
        return None, self._token


class KeyAccess:
    """Grants the holder of a gateway key the conversations of its tenant.

    The cookie is an HMAC with the digest of the key: every worker process can check it without
    shared state, and it becomes invalid when the key is removed from the settings.
    """

    def __init__(self, tenants: Callable[[], Mapping[bytes, str]]) -> None:
        self._tenants = tenants
        """Returns the tenants by the SHA-256 digests of their keys, as the settings are now."""

    def check(self, request: Request, base: str) -> tuple[str | None, str]:
        """Return the tenant of the key, or raise the page that asks for the key."""
        tenants = self._tenants()
        if not tenants:
            raise Page("the viewer needs a key: start the gateway with --key NAME=KEY", 403)
        if request.method == "POST" and request.path == "/login":
            digest = hashlib.sha256(request.form.get("key", "").encode()).digest()
            if digest in tenants:
                raise _redirect(f"{base}/", _cookie_of(digest), base)
        cookie = request.cookies.get(COOKIE, "")
        for digest, tenant in tenants.items():
            if _is_equal(cookie, _cookie_of(digest)):
                return tenant, cookie
        raise Page("login", 401)


def _cookie_of(key_digest: bytes) -> str:
    return hmac.new(key_digest, b"metis viewer", hashlib.sha256).hexdigest()


def _is_equal(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode())


def _redirect(location: str, secret: str, base: str) -> Page:
    cookie = f"{COOKIE}={secret}; HttpOnly; SameSite=Strict; Path={base or '/'}"
    headers = ((b"location", location.encode()), (b"set-cookie", cookie.encode()))
    return Page("", 303, headers=headers)


def _load_template(name: str) -> str:
    return (files("metis.web") / "templates" / name).read_text(encoding="utf-8")


class Viewer:
    """Shows a store in a browser."""

    def __init__(  # noqa: PLR0913 - what it shows and may do, all by name
        self,
        store: Store,
        access: Access,
        *,
        index: ViewerIndex | None = None,
        base: str = "",
        replayer: Replayer | None = None,
        trace: TraceStore | None = None,
    ) -> None:
        self._store = store
        self._access = access
        self._index = index or ViewerIndex(store)
        self._base = base
        self._replayer = replayer
        self._trace = trace
        self._pages: dict[str | None, Pages] = {}
        self._tails = LiveTails(store)
        self._templates = Environment(
            loader=FunctionLoader(_load_template), autoescape=True, undefined=StrictUndefined
        )
        cast("dict[str, object]", self._templates.globals)["base"] = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, self._base)
        try:
            page = await self._answer(request, receive)
        except Page as early:
            page = self._framed(early)
        except UnknownSessionError as error:
            page = self._error(404, str(error))
        except MetisError as error:
            page = self._error(400, str(error))
        except Exception:
            log.exception("a page could not be rendered")
            page = self._error(500, "internal error in metis; see its log")
        if isinstance(page, Page):
            await _send_page(page, send, is_head=request.method == "HEAD")
        else:
            await self._send_stream(page, receive, send)

    async def _answer(self, request: Request, receive: Receive) -> Page | AsyncGenerator[bytes]:  # noqa: PLR0911 - one for each kind of answer
        parts = [part for part in request.path.split("/") if part]
        if request.method == "POST":
            self._check_origin(request)
            request.form = await _read_form(receive)
        elif request.method not in ("GET", "HEAD"):
            return self._error(405, "this viewer is read-only")
        if len(parts) == 2 and parts[0] == "static":  # noqa: PLR2004 - a directory and a name
            return _static_file(parts[1])
        tenant, secret = self._access.check(request, self._base)
        pages = self._pages.get(tenant)
        if pages is None:
            pages = Pages(
                self._store, self._index, tenant=tenant, replayer=self._replayer, trace=self._trace
            )
            self._pages[tenant] = pages
        if request.method == "POST":
            return await self._act(request, parts, pages, secret)
        match parts:
            case ["s", session_id, "live"]:
                await pages.check_access(session_id)
                return self._live(pages, session_id, number(request.query.get("after")))
            case ["s", session_id, *rest] if page := pages.of_session.get("/".join(rest)):
                await pages.check_access(session_id)
                content = await page(session_id, request.query)
                return await asyncio.to_thread(self._render, content, secret)
            case _ if listing := pages.listings.get("/".join(parts)):
                content = await listing(request.query)
                return await asyncio.to_thread(self._render, content, secret)
            case _:
                return self._error(404, "there is no such page")

    async def _act(self, request: Request, parts: Sequence[str], pages: Pages, secret: str) -> Page:
        # Against cross-site requests: a cookie does not prove that a viewer page sent the form.
        if not _is_equal(request.form.pop("csrf", ""), _form_token(secret)):
            return self._error(403, "the form has expired; open the page again")
        match parts:
            case ["s", session_id, "replay"]:
                await pages.check_access(session_id)
                content = await pages.comparisons.replay(session_id, request.form)
                return await asyncio.to_thread(self._render, content, secret)
            case _:
                return self._error(405, "this page is read-only")

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin", "")
        site = request.headers.get("sec-fetch-site", "same-origin")
        host = request.headers.get("host", "")
        if site not in ("same-origin", "none") or origin not in (
            *(f"http://{host}", f"https://{host}"),
            "",
        ):
            raise Page("this form came from another site", 403)

    # Answers

    def _render(self, content: Content, secret: str) -> Page:
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if content.file_name:
            disposition = f'attachment; filename="{content.file_name}"'.encode()
            headers = ((b"content-disposition", disposition),)
        if not content.template:
            return Page(content.data, media_type=content.media_type, headers=headers)
        template = self._templates.get_template(content.template)
        html = template.render(**content.values, csrf=_form_token(secret))
        return Page(html, media_type=content.media_type, headers=headers)

    def _framed(self, page: Page) -> Page:
        """Return an early answer as a page that people can read."""
        text = page.body.decode()
        if page.status == 401 and text == "login":  # noqa: PLR2004 - Unauthorized
            html = self._templates.get_template("login.html").render(title="Key")
            return Page(html, 401)
        return self._error(page.status, text) if text else page

    def _error(self, status: int, text: str) -> Page:
        html = self._templates.get_template("error.html").render(title=f"{status}", text=text)
        return Page(html, status)

    async def _live(self, pages: Pages, session_id: str, after: int) -> AsyncGenerator[bytes]:
        """Yield what is added to a conversation, as server-sent events of HTML."""
        if self._tails.is_full:
            yield b"event: busy\ndata: too many pages follow conversations\n\n"
            return
        yield b"retry: 2000\n\n"
        template = self._templates.get_template("items.html")
        async with aclosing(self._tails.changes(session_id)) as changes:
            async for _ in changes:
                content, last = await pages.conversation_pages.newer(session_id, after)
                if content.values["items"]:
                    after = last
                    text = template.render(**content.values)
                    lines = "".join(f"data: {line}\n" for line in text.splitlines())
                    yield f"id: {after}\n{lines}\n".encode("utf-8", "replace")

    async def _send_stream(
        self, parts: AsyncGenerator[bytes], receive: Receive, send: Send
    ) -> None:
        headers = [(b"content-type", b"text/event-stream"), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.ensure_future(_send_parts(parts, send))
        # Without this, the tail of a closed page would poll until the next message.
        disconnection = asyncio.ensure_future(_wait_for_end(receive))
        try:
            await asyncio.wait((sending, disconnection), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            disconnection.cancel()
            await asyncio.gather(sending, disconnection, return_exceptions=True)
            await parts.aclose()
        await send({"type": "http.response.body", "body": b""})


async def _send_parts(parts: AsyncGenerator[bytes], send: Send) -> None:
    try:
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except MetisError as error:
        log.info("a live tail ended: %s", error)


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_page(page: Page, send: Send, *, is_head: bool) -> None:
    headers = [
        (b"content-type", f"{page.media_type}; charset=utf-8".encode()),
        (b"content-length", str(len(page.body)).encode()),
        *_HEADERS,
        *page.headers,
    ]
    await send({"type": "http.response.start", "status": page.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else page.body})


async def _read_form(receive: Receive) -> dict[str, str]:
    body = b""
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise Page("the form did not arrive", 400)
        body += cast("bytes", event.get("body", b""))
        if len(body) > MAX_FORM_BYTES:
            raise Page("the form is too large", 413)
        if not event.get("more_body"):
            return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _form_token(secret: str) -> str:
    return hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()


def _static_file(name: str) -> Page:
    media_type = _STATIC.get(name)
    if media_type is None:
        return Page("not found", 404, "text/plain")
    return Page((files("metis.web") / "static" / name).read_bytes(), media_type=media_type)


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else ""
