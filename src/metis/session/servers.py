"""Servers: the MCP servers that threads may name, each asked for its tools once."""

from collections.abc import Iterable, Sequence

from metis.canonical.errors import InvalidValueError, UnknownServerError
from metis.tools import Factory
from metis.tools.mcp import McpServer


class Servers:
    """MCP servers by name; none is started before a thread names it."""

    def __init__(self, servers: Iterable[McpServer] = ()) -> None:
        self._servers: dict[str, McpServer] = {}
        self._tools: dict[str, list[Factory]] = {}
        for server in servers:
            if server.name in self._servers:
                fault = f"two servers are named {server.name!r}"
                raise InvalidValueError(fault, path="$.servers")
            self._servers[server.name] = server

    def __len__(self) -> int:
        return len(self._servers)

    async def tools(self, names: Sequence[str]) -> list[Factory]:
        """The tools of some of the servers.

        Raises:
            UnknownServerError: there is no server of one of these names.
        """
        unknown = next((name for name in names if name not in self._servers), None)
        if unknown is not None:
            raise UnknownServerError(unknown, tuple(self._servers))
        for name in names:
            if name not in self._tools:
                self._tools[name] = await self._servers[name].tools()
        return [tool for name in dict.fromkeys(names) for tool in self._tools[name]]

    async def close(self) -> None:
        """End all of them."""
        self._tools.clear()
        for server in self._servers.values():
            await server.close()
