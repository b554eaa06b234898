"""Servers: programs that offer tools, started when they are first needed."""

import asyncio
from collections.abc import Mapping
from typing import Any

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.mcp.connection import Connection
from metis.tools.mcp.content import tool_output
from metis.tools.mcp.naming import side_effects, tool_name
from metis.tools.mcp.schema import relaxed
from metis.tools.mcp.where import StdioServer, Where
from metis.tools.registry import Factory
from metis.tools.tool import ToolContext, ToolOutput

_MAX_PAGES = 100


class McpServer:
    """One server and its tools.

    Its hints about what a tool can do are believed only if it `is_trusted`; else each of its tools
    counts as able to do the worst.
    """

    def __init__(self, name: str, where: Where, *, is_trusted: bool = False) -> None:
        self.name = name
        self._where = where
        self._is_trusted = is_trusted
        self._connection: Connection | None = None
        self._starting = asyncio.Lock()

    async def tools(self) -> list[Factory]:
        """A factory for each tool of the server, to be registered; this starts the server."""
        taken: set[str] = set()
        factories: list[Factory] = []
        for tool in await self._listed():
            definition = self._definition(tool, taken)
            taken.add(definition.name)
            factories.append(_factory(self, definition, str(tool["name"])))
        return factories

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool by the server's own name for it."""
        connection = await self._connected()
        return tool_output(await connection.call(tool, dict(arguments)))

    async def close(self) -> None:
        """End the connection, and the program if we started it."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _connected(self) -> Connection:
        async with self._starting:
            if self._connection is None or self._connection.is_dead():
                await self.close()
                self._connection = await Connection.open(self.name, self._where)
            return self._connection

    async def _listed(self) -> list[Mapping[str, Any]]:
        connection = await self._connected()
        found: list[Mapping[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await connection.page_of_tools(cursor)
            found += page.get("tools", [])
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return found

    def _definition(self, tool: Mapping[str, Any], taken: set[str]) -> ToolDefinition:
        is_local = isinstance(self._where, StdioServer)
        return ToolDefinition(
            name=tool_name(self.name, str(tool["name"]), taken),
            description=str(tool.get("description") or tool.get("title") or tool["name"]),
            input_schema=relaxed(tool.get("inputSchema") or {}),
            side_effects=side_effects(
                tool.get("annotations"),
                is_trusted=self._is_trusted,
                otherwise=SideEffects.EXECUTE if is_local else SideEffects.NETWORK,
            ),
            requires_workspace=False,
        )


class McpTool:
    """A tool of a server, under our name for it."""

    def __init__(self, server: McpServer, definition: ToolDefinition, name: str) -> None:
        self.definition = definition
        self._server = server
        self._name = name

    async def execute(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext,  # noqa: ARG002 - the interface
    ) -> ToolOutput:
        """Call the server."""
        return await self._server.call(self._name, arguments)

    def cancel(self) -> bool:
        """The call ends with its task; the server is told."""
        return False


def _factory(server: McpServer, definition: ToolDefinition, name: str) -> Factory:
    return lambda: McpTool(server, definition, name)
