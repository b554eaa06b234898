"""Connections to MCP servers, each with its own task.

The official package must open and close a session in the same task. So a task opens it, waits until
it is stopped, and closes it; calls may come from any other task.
"""

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from metis.canonical.errors import ToolError
from metis.canonical.urls import shown_address
from metis.tools.process import child_environment, supervised
from metis.tools.tool import ToolFailedError, log

START_TIMEOUT_S = 30.0
"""How long a server may take to start."""

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""The maximum size of one HTTP response of a server, which may be a stream of events."""

Streams = tuple[Any, Any]
"""The stream that a session reads from, and the one that it writes to."""

# The error code of the official package for a connection that was closed.
_CONNECTION_CLOSED = -32000


class StdioServer(Struct, frozen=True):
    """A program that is started by metis and speaks over its standard input and output."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    """Variables beside those that every program needs, such as PATH; no others are passed on."""
    cwd: Path | None = None

    def __repr__(self) -> str:
        # Arguments and environment may contain keys.
        return f"StdioServer({self.command!r})"

    async def streams(self, stack: AsyncExitStack) -> Streams:
        """Start the program; it ends with the stack."""
        stdio = import_mcp("mcp.client.stdio")
        # The standard error of a server is for its developers, and may contain secrets.
        errors = stack.enter_context(Path(os.devnull).open("w"))  # noqa: ASYNC230, SIM115 - the stack closes it
        command, *arguments = supervised([self.command, *self.arguments])
        program = stdio.StdioServerParameters(
            command=command,
            args=arguments,
            env={**child_environment(), **self.environment},
            cwd=self.cwd,
        )
        streams = await stack.enter_async_context(stdio.stdio_client(program, errors))
        return streams[0], streams[1]


class HttpServer(Struct, frozen=True):
    """A server at a URL that speaks streamable HTTP."""

    url: str
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"HttpServer({shown_address(self.url)!r})"

    async def streams(self, stack: AsyncExitStack) -> Streams:
        """Connect to the URL; the connection ends with the stack."""
        http = import_mcp("mcp.client.streamable_http")
        client = http.create_mcp_http_client(headers=dict(self.headers))
        # No redirects: one to another origin would get the headers, and so the key. The package
        # itself follows redirects within an origin, up to `max_redirects`.
        client.follow_redirects, client.max_redirects = False, 0
        client.headers["accept-encoding"] = "identity"
        client.event_hooks["response"].append(_bound_response)
        await stack.enter_async_context(client)
        transport = http.streamable_http_client(self.url, http_client=client)
        streams = await stack.enter_async_context(transport)
        return streams[0], streams[1]


async def _bound_response(response: Any) -> None:
    """Limit the size of one response, because the package collects it in memory."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":  # it could decompress to any size
        raise ToolFailedError(f"The MCP server sends compressed content ({encoding[:20]!r}).")
    # The module of the HTTP client that the package uses, httpx or its successor.
    client = importlib.import_module(type(response).__module__.partition(".")[0])
    response.stream = _bounded_stream(response.stream, client)


def _bounded_stream(stream: Any, client: Any) -> Any:
    class BoundedStream(client.AsyncByteStream):
        """A body that ends with an error if it is too long."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > MAX_RESPONSE_BYTES:
                    raise client.ReadError(f"more than {MAX_RESPONSE_BYTES:,} bytes")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return BoundedStream()


ServerAddress = StdioServer | HttpServer


def import_mcp(name: str) -> Any:
    """Import a module of the official package, which is an optional dependency."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ToolError("MCP needs the package mcp; install metis-llm[mcp]") from None


class Connection:
    """A session with a server."""

    def __init__(self, name: str, address: ServerAddress) -> None:
        self._name = name
        self._address = address
        self._stop = asyncio.Event()
        self._is_broken = False
        self._session: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold_open())

    @classmethod
    async def open(cls, name: str, address: ServerAddress) -> "Connection":
        """Start or reach a server, and initialise a session."""
        import_mcp("mcp")
        connection = cls(name, address)
        try:
            await connection._wait_until_ready()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _wait_until_ready(self) -> None:
        await asyncio.wait(
            {self._session, self._task},
            timeout=START_TIMEOUT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not self._session.done():
            raise ToolFailedError(f"The MCP server {self._name!r} could not be started.")

    def is_closed(self) -> bool:
        """Return whether the connection can no longer be used."""
        return self._is_broken or self._task.done()

    async def close(self) -> None:
        """End the session, and the program if it was started for it."""
        self._stop.set()
        # Before the session exists, the task does not wait for the stop event.
        if not self._session.done():
            self._task.cancel()
        await asyncio.wait({self._task})

    async def call(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Call a tool; return the result as JSON."""
        return await self._request(self._session.result().call_tool(tool, arguments))

    async def list_tools_page(self, cursor: str | None) -> Mapping[str, Any]:
        """Return one page of the tool list as JSON."""
        params = import_mcp("mcp.types").PaginatedRequestParams(cursor=cursor) if cursor else None
        return await self._request(self._session.result().list_tools(params=params))

    async def _request(self, awaitable: Awaitable[Any]) -> Mapping[str, Any]:
        """Wait for the response, or for the end of the server."""
        response = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait({response, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if response.done():
                return response.result().model_dump(mode="json", by_alias=True, exclude_none=True)
        except Exception as error:  # noqa: BLE001 - the package raises many types of errors
            raise self._failure(error) from None
        finally:
            response.cancel()
        raise self._closed_error()

    def _failure(self, error: Exception) -> ToolFailedError:
        details = getattr(error, "error", None)
        if details is not None and details.code != _CONNECTION_CLOSED:
            return ToolFailedError(f"The MCP server {self._name!r} says: {details.message}")
        log.info("%s: %s", self._name, type(error).__name__)
        return self._closed_error()

    def _closed_error(self) -> ToolFailedError:
        self._is_broken = True
        text = f"The MCP server {self._name!r} has stopped; the next call starts it again."
        return ToolFailedError(text)

    async def _hold_open(self) -> None:
        """Open the session, wait until it is stopped, and close it."""
        try:
            async with AsyncExitStack() as stack:
                reader, writer = await self._address.streams(stack)
                session = import_mcp("mcp").ClientSession(reader, writer)
                await stack.enter_async_context(session)
                await session.initialize()
                self._session.set_result(session)
                await self._stop.wait()
        except ToolError:
            raise
        except Exception as error:  # noqa: BLE001 - any error closes the connection
            log.warning("the MCP server %s ended: %s", self._name, type(error).__name__)
