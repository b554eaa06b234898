"""The gateway as an ASGI application: it routes every call to its handler."""

from collections.abc import Awaitable, Callable
from typing import Any

from metis.canonical.errors import ProviderError
from metis.gateway.client_call import ClientCall, Receive, Scope, Send
from metis.gateway.core import Core
from metis.gateway.endpoints import match_path
from metis.gateway.side import SideEndpoints, refuse
from metis.gateway.websocket import serve_socket

VIEWER_PATH = "/ui"


class Gateway(Core):
    """Serves every protocol to clients, and calls any provider."""

    def __init__(self, *parts: Any, **named_parts: Any) -> None:
        super().__init__(*parts, **named_parts)
        self._side = SideEndpoints(self)
        self.viewer: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
        """The pages under `/ui`, which check the keys themselves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case _:
                await serve_socket(self, scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if self.viewer is not None and (path == VIEWER_PATH or path.startswith(f"{VIEWER_PATH}/")):
            await self.viewer(scope, receive, send)
            return
        if not self.keys.is_open and any(name == b"origin" for name, _ in scope["headers"]):
            # A web page with a key of its own, such as an editor in a browser.
            send = _for_pages(send)
            if method == "OPTIONS":
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        endpoint = match_path(method, path)
        if endpoint is None or endpoint.action != "answer":
            await self._side.serve(scope, receive, send, endpoint)
            return
        try:
            key = self.keys.authenticate(scope["headers"], scope["query_string"])
        except ProviderError as error:
            await refuse(send, error, endpoint)
            return
        call = ClientCall(scope, receive, send, endpoint, key)
        await self.guarded(call, self.answer)


_PAGE_HEADERS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-expose-headers", b"*"),
    (b"access-control-max-age", b"600"),
)


def _for_pages(send: Send) -> Send:
    """Return a `send` that lets browsers show responses to pages of any origin.

    A page has no cookie here and needs a key like every program, so that its origin is of no
    account; a gateway without keys refuses pages of other origins instead.
    """

    async def send_with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [h for h in message["headers"] if not h[0].startswith(b"access-control-")]
            message = {**message, "headers": [*headers, *_PAGE_HEADERS]}
        await send(message)

    return send_with_headers
