"""Connections to MCP servers, each held open by a task of its own.

The official package opens and closes a session in one task. So a task opens it, waits until it is
stopped, and closes it; calls may come from any other task.
"""

import asyncio
import importlib
import os
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from metis.canonical.errors import ToolError
from metis.tools.process import without_secrets
from metis.tools.tool import ToolFailedError, log

Streams = tuple[Any, Any]
"""What a session reads from and writes to."""

_NOTHING: Mapping[str, str] = {}


class StdioServer(Struct, frozen=True):
    """A program that is started here and spoken to over its input and output."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = _NOTHING
    """Variables beside those of ours that are no secrets."""
    cwd: Path | None = None

    def __repr__(self) -> str:
        return f"StdioServer({self.command!r})"

    async def streams(self, stack: AsyncExitStack) -> Streams:
        """Start the program; it ends with the stack."""
        stdio = import_mcp("mcp.client.stdio")
        # What a server says beside the protocol is for its own developers, and may hold anything.
        errors = stack.enter_context(Path(os.devnull).open("w"))  # noqa: ASYNC230, SIM115 - the stack closes it
        program = stdio.StdioServerParameters(
            command=self.command,
            args=list(self.arguments),
            env={**without_secrets(), **self.environment},
            cwd=self.cwd,
        )
        opened = await stack.enter_async_context(stdio.stdio_client(program, errors))
        return opened[0], opened[1]


class HttpServer(Struct, frozen=True):
    """A server that is spoken to over streamable HTTP."""

    url: str
    headers: Mapping[str, str] = _NOTHING

    def __repr__(self) -> str:
        return f"HttpServer({self.url!r})"

    async def streams(self, stack: AsyncExitStack) -> Streams:
        """Make a client for the address; it is closed with the stack."""
        http = import_mcp("mcp.client.streamable_http")
        client = http.create_mcp_http_client(headers=dict(self.headers))
        await stack.enter_async_context(client)
        transport = http.streamable_http_client(self.url, http_client=client)
        opened = await stack.enter_async_context(transport)
        return opened[0], opened[1]


ServerAddress = StdioServer | HttpServer


def import_mcp(name: str) -> Any:
    """A module of the official package, which is an extra of ours."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ToolError("MCP needs the package mcp; install metis-llm[mcp]") from None


START_S = 30.0
"""How long a server may take to start."""

_CLOSED = -32000
"""The number of the error that the package gives for a connection which ended."""


class Connection:
    """A session with a server."""

    def __init__(self, name: str, where: ServerAddress) -> None:
        self._name = name
        self._where = where
        self._stop = asyncio.Event()
        self._is_broken = False
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep())

    @classmethod
    async def open(cls, name: str, where: ServerAddress) -> "Connection":
        """Start a server, or reach it, and greet it."""
        import_mcp("mcp")
        connection = cls(name, where)
        try:
            await connection._greeted()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _greeted(self) -> None:
        await asyncio.wait(
            {self._ready, self._keeper}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not self._ready.done():
            raise ToolFailedError(f"The MCP server {self._name!r} could not be started.")

    def is_closed(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._is_broken or self._keeper.done()

    async def close(self) -> None:
        """End the session, and the program if it was started for it."""
        self._stop.set()
        if not self._ready.done():
            self._keeper.cancel()
        await asyncio.wait({self._keeper})

    async def call(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Call a tool; gives the result as it stands on the wire."""
        return await self._ask(self._ready.result().call_tool(tool, arguments))

    async def list_tools_page(self, cursor: str | None) -> Mapping[str, Any]:
        """One page of the list of tools, as it stands on the wire."""
        params = import_mcp("mcp.types").PaginatedRequestParams(cursor=cursor) if cursor else None
        return await self._ask(self._ready.result().list_tools(params=params))

    async def _ask(self, question: Awaitable[Any]) -> Mapping[str, Any]:
        """The answer to a question; a server that dies meanwhile is an answer too."""
        asked = asyncio.ensure_future(question)
        try:
            await asyncio.wait({asked, self._keeper}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result().model_dump(mode="json", by_alias=True, exclude_none=True)
        except Exception as error:  # noqa: BLE001 - the package raises many kinds, all of them answers
            raise self._failure(error) from None
        finally:
            asked.cancel()
        raise self._died()

    def _failure(self, error: Exception) -> ToolFailedError:
        """What the server says, or that it is gone."""
        told = getattr(error, "error", None)
        if told is not None and told.code != _CLOSED:
            return ToolFailedError(f"The MCP server {self._name!r} says: {told.message}")
        log.info("%s: %s", self._name, type(error).__name__)
        return self._died()

    def _died(self) -> ToolFailedError:
        self._is_broken = True
        text = (
            f"The MCP server {self._name!r} is not there any more; it is started again when asked."
        )
        return ToolFailedError(text)

    async def _keep(self) -> None:
        """Open the session, keep it until told to stop, and close it."""
        try:
            async with AsyncExitStack() as stack:
                reads, writes = await self._where.streams(stack)
                session = import_mcp("mcp").ClientSession(reads, writes)
                await stack.enter_async_context(session)
                await session.initialize()
                self._ready.set_result(session)
                await self._stop.wait()
        except ToolError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever ends a server, it is only gone
            log.warning("the MCP server %s ended: %s", self._name, type(error).__name__)
