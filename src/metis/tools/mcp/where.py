"""Where a server is: a program to start, or an address to ask."""

import importlib
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from metis.canonical.errors import ToolError
from metis.tools.environment import without_secrets

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
        stdio = package("mcp.client.stdio")
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
        http = package("mcp.client.streamable_http")
        client = http.create_mcp_http_client(headers=dict(self.headers))
        await stack.enter_async_context(client)
        transport = http.streamable_http_client(self.url, http_client=client)
        opened = await stack.enter_async_context(transport)
        return opened[0], opened[1]


Where = StdioServer | HttpServer


def package(name: str) -> Any:
    """A module of the official package, which is an extra of ours."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ToolError("MCP needs the package mcp; install metis-llm[mcp]") from None
