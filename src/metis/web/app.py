"""The viewer as an ASGI application: routes, the start token, and headers that browsers obey.

Every page is read only: there is no request that changes anything. Who has the token of the start
may look; the token becomes a cookie at once, so that it is in no link, log or Referer header.
"""

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import cast
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FunctionLoader, StrictUndefined

from metis.canonical.errors import MetisError, UnknownSessionError
from metis.interchange.export import Conversation
from metis.interchange.html import write_html
from metis.store import Store
from metis.web import views

log = logging.getLogger("metis.web")

Scope = Mapping[str, object]
Send = Callable[[dict[str, object]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, object]]]

COOKIE = "metis_viewer"
_LOCAL_HOST = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_STATIC = {"style.css": "text/css", "viewer.js": "text/javascript"}
_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    # Nothing is loaded from elsewhere and no page can be put into a frame; content of models,
    # tools and files is text in these pages, and this is the second line of defence.
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Page(Exception):  # noqa: N818 - the answer to a request that ends early
    """An answer: status, body, type and more headers."""

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


def _load_template(name: str) -> str:
    return (files("metis.web") / "templates" / name).read_text(encoding="utf-8")


class Viewer:
    """Shows a store; `token` is what a browser must know once."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token
        self._templates = Environment(
            loader=FunctionLoader(_load_template), autoescape=True, undefined=StrictUndefined
        )
        self._pages = {"": self._list, "cost": self._cost, "cost.csv": self._cost_csv}
        self._session_pages = {
            "": self._conversation,
            "requests": self._requests,
            "losses": self._losses,
            "export.html": self._export,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del receive  # no request has a body that counts
        if scope["type"] != "http":
            return
        try:
            page = await self._answer(scope)
        except Page as early:
            page = early
        except UnknownSessionError as error:
            page = self._error(404, str(error))
        except MetisError as error:
            page = self._error(400, str(error))
        except Exception:
            log.exception("a page could not be made")
            page = self._error(500, "an error in metis; the log says more")
        headers = [
            (b"content-type", f"{page.media_type}; charset=utf-8".encode()),
            (b"content-length", str(len(page.body)).encode()),
            *_HEADERS,
            *page.headers,
        ]
        await send({"type": "http.response.start", "status": page.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else page.body
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope) -> Page:
        path, headers = str(scope["path"]), _header_map(scope)
        query = dict(parse_qsl(_text(scope["query_string"]), keep_blank_values=True))
        if scope["method"] not in ("GET", "HEAD"):
            return self._error(405, "this viewer only shows; nothing can be changed here")
        # A page of another site that resolves its name to this machine has another Host.
        if not _LOCAL_HOST.fullmatch(headers.get("host", "")):
            return self._error(403, "this address is not the one that the viewer was started with")
        self._check_token(path, query, headers)
        match [part for part in path.split("/") if part]:
            case ["static", name]:
                return _static_file(name)
            case ["s", session_id, *rest] if page := self._session_pages.get("/".join(rest)):
                return await page(session_id, query)
            case parts if listing := self._pages.get("/".join(parts)):
                return await listing(query)
            case _:
                return self._error(404, "there is no such page")

    def _check_token(self, path: str, query: dict[str, str], headers: Mapping[str, str]) -> None:
        given = query.pop("token", None)
        if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            rest = urlencode(query)
            cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            target = f"{path}?{rest}" if rest else path
            location = "/" + target.lstrip("/")  # never to another host, as `//host` would be
            redirect = ((b"location", location.encode()), (b"set-cookie", cookie.encode()))
            raise Page("", 303, headers=redirect)
        cookies: dict[str, str] = {}
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            cookies[name] = value
        if not hmac.compare_digest(cookies.get(COOKIE, "").encode(), self._token.encode()):
            raise self._error(401, "open the address that `metis web` printed: it has the token")

    # Pages

    async def _list(self, query: Mapping[str, str]) -> Page:
        words, page = query.get("q", "").strip(), _number(query.get("page"))
        if words:
            matches = await self._store.search(words, limit=views.PAGE)
            return self._page("search.html", title=words, words=words, matches=matches)
        sessions, has_more = await views.list_sessions(self._store, page)
        return self._page(
            "list.html",
            title="Conversations",
            words="",
            sessions=sessions,
            page=page,
            has_more=has_more,
            format_usd=views.format_usd,
        )

    async def _conversation(self, session_id: str, query: Mapping[str, str]) -> Page:
        session = await self._store.session(session_id)
        count = views.PAGE * (1 + _number(query.get("more")))
        messages = await self._store.messages(session_id, newest=count + 1)
        return self._page(
            "conversation.html",
            title=session.id,
            session=session,
            messages=views.message_views(messages[-count:]),
            more=_number(query.get("more")) + 1 if len(messages) > count else 0,
        )

    async def _requests(self, session_id: str, query: Mapping[str, str]) -> Page:
        session = await self._store.session(session_id)
        messages = views.up_to(await self._store.messages(session_id), query.get("at"))
        first = query.get("first") or views.DEFAULT_TARGETS[0]
        second = query.get("second") or views.DEFAULT_TARGETS[1]
        diff, fault = None, ""
        try:
            diff = views.request_diff(messages, first, second)
        except MetisError as error:
            fault = str(error)
        return self._page(
            "requests.html",
            title=f"Requests of {session.id}",
            session=session,
            at=query.get("at", ""),
            first=first,
            second=second,
            targets=views.targets(),
            diff=diff,
            fault=fault,
        )

    async def _losses(self, session_id: str, query: Mapping[str, str]) -> Page:
        session = await self._store.session(session_id)
        chosen = query.get("model", "")
        names = [chosen] if chosen else list(views.DEFAULT_TARGETS)
        rows, others, faults = views.loss_lane(await self._store.messages(session_id), names)
        return self._page(
            "losses.html",
            title=f"Losses of {session.id}",
            session=session,
            names=names,
            chosen=chosen,
            targets=views.targets(),
            rows=rows,
            others=others,
            faults=faults,
        )

    async def _cost(self, query: Mapping[str, str]) -> Page:
        days = min(max(_number(query.get("days"), 30), 1), 3650)
        tables = await views.costs(self._store, days)
        return self._page(
            "cost.html",
            title="Cost",
            days=days,
            tables={name: views.cost_rows(lines) for name, lines in tables.items()},
        )

    async def _cost_csv(self, query: Mapping[str, str]) -> Page:
        days = min(max(_number(query.get("days"), 30), 1), 3650)
        by = query.get("by", "day")
        tables = await views.costs(self._store, days)
        if by not in tables:
            return self._error(400, f"by is one of {', '.join(tables)}")
        lines = ["name,calls,input_tokens,cached_tokens,output_tokens,cost_usd"]
        for row in views.cost_rows(tables[by]):
            # A name that begins like a formula would be run by a spreadsheet.
            name = str(row["name"]).replace('"', '""')
            name = f"'{name}" if name[:1] in "=+-@" else name
            counts = f"{row['calls']},{row['input']},{row['cached']},{row['output']}"
            lines.append(f'"{name}",{counts},{str(row["cost"]).lstrip("$")}')
        return Page("\n".join(lines) + "\n", media_type="text/csv")

    async def _export(self, session_id: str, query: Mapping[str, str]) -> Page:
        del query
        session = await self._store.session(session_id)
        messages = await self._store.messages(session_id)
        exported = write_html(Conversation(session, messages))
        disposition = b'attachment; filename="conversation.html"'
        return Page(exported.data, headers=((b"content-disposition", disposition),))

    def _page(self, template: str, **values: object) -> Page:
        return Page(self._templates.get_template(template).render(**values))

    def _error(self, status: int, text: str) -> Page:
        html = self._templates.get_template("error.html").render(title=f"{status}", text=text)
        return Page(html, status)


def _static_file(name: str) -> Page:
    media_type = _STATIC.get(name)
    if media_type is None:
        return Page("not found", 404, "text/plain")
    return Page((files("metis.web") / "static" / name).read_bytes(), media_type=media_type)


def _header_map(scope: Scope) -> dict[str, str]:
    listed = cast("Sequence[tuple[bytes, bytes]]", scope["headers"])
    return {_text(name).lower(): _text(value) for name, value in listed}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else ""


def _number(text: str | None, default: int = 0) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else default  # noqa: PLR2004 - no page needs more digits
