"""The server around the gateway: sockets, limits of connections, signals, workers."""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from metis.canonical.errors import MetisError
from metis.gateway.app import Gateway
from metis.gateway.config import GatewayConfig, Limits
from metis.transport.sockets import send_parts_at_once

log = logging.getLogger("metis.gateway")

_BACKLOG = 2048
_IDLE_S = 75
_WRITE_S = 300.0
_MAX_PARTS = 10_000
"""How many parts one message of a WebSocket may have."""
_MIN_LIFE_S = 2.0
_MAX_EARLY_ENDS = 3
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_HEADERS_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\n"
    b"connection: close\r\n\r\n"
)

LoadConfig = Callable[[], GatewayConfig]
"""Reads the settings anew, as at the start."""
OnReady = Callable[[GatewayConfig, int, Gateway | None], None]
"""Called with the settings and the port once clients can connect."""


class GatewayProtocol(HttpToolsProtocol):
    """Bounds the size and the time of headers, and the time that a client may not read."""

    limits = Limits()
    _header_bytes = 0
    _unparsed_bytes = 0
    _is_in_headers = False
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._header_timer = self.loop.call_later(self.limits.header_s, self._close_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the call that was answered on the connection."""
        super().connection_lost(exc)
        self._stop(self._header_timer)
        self._stop(self._write_timer)
        if self.cycle and not self.cycle.response_complete:
            task = self.cycle.scope.get("metis.task")
            if task is not None:
                task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse data; headers must be complete in time."""
        is_in_headers = self._is_in_headers
        super().data_received(data)
        if is_in_headers and self._is_in_headers:
            # The parser holds a header that does not end, and counts nothing.
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > self.limits.header_bytes:
                self._refuse_headers()
        if self._header_bytes and self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.header_s, self._close_slow)

    def on_message_begin(self) -> None:
        """Begin to count what comes before a body."""
        super().on_message_begin()
        self._is_in_headers, self._unparsed_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the URL."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of headers."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Begin the call."""
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        self._header_bytes = 0
        self._is_in_headers = False
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Bound how long a client may not read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stop(self._write_timer)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.limits.header_bytes:
            self._refuse_headers()

    def _refuse_headers(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_HEADERS_TOO_LARGE)
            self.transport.close()

    def _close_slow(self) -> None:
        self._header_timer = None
        self.transport.close()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class GatewaySocketProtocol(WebSocketsSansIOProtocol):
    """Bounds what a client of a WebSocket can make the gateway hold in memory."""

    _write_timer: asyncio.TimerHandle | None = None
    _part_count = 0

    def pause_writing(self) -> None:
        """Bound how long a client may not read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_timer()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client does not read: answers would fill the memory."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # the protocol allows to leave pings unanswered

    def handle_cont(self, event: Frame) -> None:
        """Add a part of a message: the bytes of all are bounded, but parts may be empty."""
        self._part_count = 0 if event.fin else self._part_count + 1
        if self._part_count > _MAX_PARTS:
            self.transport.abort()
        else:
            super().handle_cont(event)

    def _stop_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def http_protocol(limits: Limits) -> type[GatewayProtocol]:
    """Return the HTTP protocol with limits; uvicorn makes one object for each connection."""
    return type("LimitedProtocol", (GatewayProtocol,), {"limits": limits})


_M_ARENA_MAX = -8


def _use_one_heap() -> None:
    """Let all threads allocate from one heap, where the C library has several.

    The threads of store and trace free little of what they get in heaps of their own: ten
    megabytes after some minutes of load.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready, and reloads on SIGHUP."""

    def __init__(
        self, config: uvicorn.Config, gateway: Gateway, load: LoadConfig, on_ready: OnReady | None
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._load = load
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, freeze the startup objects, and report that the server is ready."""
        await super().startup(sockets)
        if self.should_exit or not self.servers:
            return
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
            if self._on_ready is None:
                # A worker ignores the signal until here: the settings may have changed meanwhile.
                self._reload(is_quiet=True)
        # Tables and modules stay for ever: a collection must not look at them again.
        gc.collect()
        gc.freeze()
        _use_one_heap()
        if self._on_ready is not None:
            port = self.servers[0].sockets[0].getsockname()[1]
            self._on_ready(self._gateway.config, port, self._gateway)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let responses end that have begun."""
        self._gateway.is_draining = True
        await super().shutdown(sockets)
        # uvicorn would raise the signals again, and the exit code would be that of a kill.
        captured: list[int] = getattr(self, "_captured_signals", [])
        captured.clear()

    def _reload(self, *, is_quiet: bool = False) -> None:
        try:
            self._gateway.load(self._load())
        except MetisError as error:
            log.error("the settings were not reloaded: %s", error)  # noqa: TRY400 - a line is enough
        else:
            log.log(logging.DEBUG if is_quiet else logging.WARNING, "the settings were reloaded")


def make_server(gateway: Gateway, load: LoadConfig, on_ready: OnReady | None) -> uvicorn.Server:
    """Return a server for a gateway; a signal ends it, and responses that have begun may end."""
    limits = gateway.config.limits
    return _Server(
        uvicorn.Config(
            gateway,
            http=http_protocol(limits),
            loop="uvloop",
            ws=GatewaySocketProtocol,
            ws_max_size=limits.body_bytes,
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=limits.connections,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=round(limits.drain_s),
        ),
        gateway,
        load,
        on_ready,
    )


def listening_socket(config: GatewayConfig, *, shares_port: bool = False) -> socket.socket:
    """Return a bound socket; with `shares_port` the kernel spreads connections over several."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    send_parts_at_once(sock)
    if shares_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((config.host.strip("[]"), config.port))
    sock.setblocking(False)  # noqa: FBT003 - the standard library has no keyword here
    return sock


class Workers:
    """Worker processes on one port; one that ends is started again.

    A worker also ends when this process is killed: it holds one end of a pipe that then closes.
    """

    def __init__(self, count: int, run: Callable[[], None]) -> None:
        self._count = count
        self._run = run
        self._started: dict[int, float] = {}
        self._is_ending = False
        self._lifeline = os.pipe()

    def serve(self) -> int:
        """Run until a signal ends it; returns the exit code."""
        for number in _SIGNALS:
            signal.signal(number, self._forward)
        for _ in range(self._count):
            self._start()
        early_ends = 0
        while self._started:
            try:
                pid, _ = os.wait()
            except ChildProcessError:
                break
            began = self._started.pop(pid, None)
            if began is None or self._is_ending:
                continue
            early_ends = early_ends + 1 if time.monotonic() - began < _MIN_LIFE_S else 0
            if early_ends >= _MAX_EARLY_ENDS:
                log.error("the workers end at once; the gateway stops")
                self._forward(signal.SIGTERM)
                continue
            self._start()
        return 0 if self._is_ending and early_ends < _MAX_EARLY_ENDS else 1

    def _start(self) -> None:
        # A signal between the fork and the note of its process would not reach the worker, which
        # would serve for ever; it waits until both have happened.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if self._is_ending:
                return
            pid = os.fork()
            if pid == 0:
                self._work(mask)
            self._started[pid] = time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _work(self, mask: Iterable[int]) -> None:
        """Serve in a worker process; it does not return."""
        code = 1
        try:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server can reload
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(self._lifeline[1])
            threading.Thread(target=_end_with, args=(self._lifeline[0],), daemon=True).start()
            self._run()
            code = 0
        except BaseException:
            log.exception("a worker failed")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _forward(self, number: int, _: object = None) -> None:
        if number != signal.SIGHUP:
            self._is_ending = True
        for pid in list(self._started):
            try:
                os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)
            except ProcessLookupError:
                continue


def _end_with(lifeline: int) -> None:
    """End this process in order once the other end of a pipe is closed."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)
