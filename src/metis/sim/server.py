"""The simulator as an HTTP server on a loopback port."""

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import web

from metis.canonical.urls import foreign_page_fault
from metis.sim.endpoints import HttpReply, HttpRequest
from metis.sim.request import Settings
from metis.sim.responder import Responder
from metis.sim.service import Script, Service

# Only programs of this machine can reach the simulator.
_HOST = "127.0.0.1"
_MAX_BODY_BYTES = 50_000_000
# Limited, because a slow client occupies a connection and memory.
_BODY_TIMEOUT_S = 30.0
_IDLE_TIMEOUT_S = 30.0
# Limited, because the unread part of a reply stays in memory.
_WRITE_TIMEOUT_S = 60.0
# Each request may have a body of the maximum size in memory.
_MAX_REQUESTS = 1000


class Simulator:
    """Serves every protocol on this machine while the context is open.

    It listens on loopback only, on a free port unless one is given. `listening` is a socket that
    already listens, on which clients may be waiting.
    """

    def __init__(
        self,
        *,
        script: Script | None = None,
        responder: Responder | None = None,
        settings: Settings = Settings(),  # noqa: B008 - an immutable value
        port: int = 0,
        listening: socket.socket | None = None,
    ) -> None:
        self.service = Service(script=script, responder=responder, settings=settings)
        self._port = port
        self._listening = listening
        self._runner: web.AppRunner | None = None
        self._request_count = 0

    @property
    def script(self) -> Script:
        """The steps for the next requests."""
        return self.service.script

    @property
    def base_url(self) -> str:
        """The URL of the server."""
        return f"http://{_HOST}:{self._port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start to listen."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=0,
            # Also limits a connection that never sends its headers.
            keepalive_timeout=_IDLE_TIMEOUT_S,
        )
        await self._runner.setup()
        if self._listening is not None:
            await web.SockSite(self._runner, self._listening).start()
        else:
            await web.TCPSite(self._runner, _HOST, self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close every connection and the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = foreign_page_fault(request.headers.get("Host", ""), request.headers.get("Origin"))
        if fault is not None:
            return _refusal(403, fault)
        if self._request_count >= _MAX_REQUESTS:
            return _refusal(503, "too many requests at the same time")
        self._request_count += 1
        try:
            return await self._reply(request)
        except TimeoutError:
            return _refusal(408, "the request came too slowly")
        finally:
            self._request_count -= 1

    async def _reply(self, request: web.Request) -> web.StreamResponse:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            body = await request.read()
        http_request = HttpRequest(
            method=request.method,
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=body,
        )
        reply = self.service.respond(http_request)
        if reply.is_stream or reply.is_cut or reply.pause_s:
            return await _send_chunks(request, reply)
        return web.Response(status=reply.status, headers=dict(reply.headers), body=reply.body)


def _refusal(status: int, text: str) -> web.Response:
    return web.json_response({"error": {"type": "refused", "message": text}}, status=status)


async def _send_chunks(request: web.Request, reply: HttpReply) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=dict(reply.headers))
    response.enable_chunked_encoding()
    with suppress(ConnectionError, TimeoutError):  # the client may close the connection at any time
        await response.prepare(request)
        for chunk in reply.chunks:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await response.write(chunk)
            await asyncio.sleep(reply.pause_s)
        # Without the final chunk, the response is interrupted for the client.
        if reply.is_cut and request.transport is not None:
            request.transport.close()
        else:
            await response.write_eof()
    return response
