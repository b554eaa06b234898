"""Connections: one session with a server, kept by a task of its own.

The official package opens and closes a session in one task. So a task opens it, waits until it is
told to stop, and closes it; calls may come from any other task.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from metis.canonical.errors import ToolError
from metis.tools.mcp.where import Where, package
from metis.tools.tool import ToolFailedError, log

START_S = 30.0
"""How long a server may take to start."""

_CLOSED = -32000
"""The number of the error that the package gives for a connection which ended."""


class Connection:
    """A session with a server."""

    def __init__(self, name: str, where: Where) -> None:
        self._name = name
        self._where = where
        self._stop = asyncio.Event()
        self._is_broken = False
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep())

    @classmethod
    async def open(cls, name: str, where: Where) -> "Connection":
        """Start a server, or reach it, and greet it."""
        package("mcp")
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

    def is_dead(self) -> bool:
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

    async def page_of_tools(self, cursor: str | None) -> Mapping[str, Any]:
        """One page of the list of tools, as it stands on the wire."""
        params = package("mcp.types").PaginatedRequestParams(cursor=cursor) if cursor else None
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
                session = package("mcp").ClientSession(reads, writes)
                await stack.enter_async_context(session)
                await session.initialize()
                self._ready.set_result(session)
                await self._stop.wait()
        except ToolError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever ends a server, it is only gone
            log.warning("the MCP server %s ended: %s", self._name, type(error).__name__)
