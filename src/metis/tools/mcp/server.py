"""MCP servers and their tools; a server is started when it is first needed."""

import asyncio
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    TextBlock,
)
from metis.canonical.schema.widen import widen_schema
from metis.canonical.tools import MAX_NAME_LENGTH, SideEffects, ToolDefinition
from metis.tools.mcp.connection import Connection, ServerAddress, StdioServer
from metis.tools.registry import Factory
from metis.tools.tool import ToolContext, ToolOutput

SEPARATOR = "___"
"""Three, so that a name tells where it is cut: names of servers and tools have single ones only."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FOREIGN = re.compile(r"[^a-z0-9]+")
_MARK_LENGTH = 6


def tool_name(server: str, tool: str, taken: Collection[str] = ()) -> str:
    """`server___tool` in our alphabet; a mark is added where the name is too long or taken."""
    name = f"{snake_case(server)}{SEPARATOR}{snake_case(tool)}"
    if len(name) <= MAX_NAME_LENGTH and name not in taken:
        return name
    mark = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_MARK_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - _MARK_LENGTH - 1].rstrip('_')}_{mark}"


def snake_case(name: str) -> str:
    """A name of any kind in small letters, digits and single underscores, a letter first."""
    plain = _FOREIGN.sub("_", _HUMP.sub("_", name).lower()).strip("_")
    return plain if plain[:1].isalpha() else f"x_{plain}".rstrip("_")


def side_effects(
    annotations: Mapping[str, Any] | None, *, is_trusted: bool, otherwise: SideEffects
) -> SideEffects:
    """The strongest effect of a tool: its hints if the server is trusted, else the worst."""
    if not is_trusted or annotations is None:
        return otherwise
    if annotations.get("readOnlyHint") is True:
        return SideEffects.READ
    return SideEffects.WRITE if annotations.get("openWorldHint") is False else otherwise


_PDF = "application/pdf"


def tool_output(result: Mapping[str, Any]) -> ToolOutput:
    """The result of a call as it came over the wire, as an output."""
    parts: Sequence[Mapping[str, Any]] = result.get("content") or ()
    value = result.get("structuredContent", UNSET)
    return ToolOutput(
        content=tuple(content_block(part) for part in parts),
        success=not result.get("isError", False),
        value=value,
    )


def content_block(part: Mapping[str, Any]) -> ContentBlock:
    """One part of a result; a kind that is not known is told in words."""
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return ImageBlock(ImageSource(kind="base64", data=data), media_type=kind)
        case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
            return AudioBlock(MediaSource(kind="base64", data=data), media_type=kind)
        case {"type": "resource", "resource": {"uri": _}}:
            return _resource(part["resource"])
        case {"type": "resource_link", "uri": uri}:
            name, description = part.get("name"), part.get("description")
            words = [str(word) for word in (name, uri, description) if word]
            return TextBlock(f"[resource] {': '.join(words)}")
        case _:
            return TextBlock(f"[a part of the kind {part.get('type')!r}, which is not known]")


def _resource(resource: Mapping[str, Any]) -> ContentBlock:
    uri = str(resource.get("uri", ""))
    kind = str(resource.get("mimeType") or "application/octet-stream")
    if "text" in resource:
        return TextBlock(f"[{uri}]\n{resource['text']}")
    data = str(resource.get("blob", ""))
    if kind.startswith("image/"):
        return ImageBlock(ImageSource(kind="base64", data=data), media_type=kind)
    source = MediaSource(kind="base64", data=data)
    if kind == _PDF:
        return DocumentBlock(source, media_type=kind, name=uri)
    return ArtifactBlock(source, media_type=kind, name=uri)


_MAX_PAGES = 100


class McpServer:
    """One server and its tools.

    Its hints about what a tool can do are believed only if it `is_trusted`; else each of its tools
    counts as able to do the worst.
    """

    def __init__(self, name: str, where: ServerAddress, *, is_trusted: bool = False) -> None:
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
            if self._connection is None or self._connection.is_closed():
                await self.close()
                self._connection = await Connection.open(self.name, self._where)
            return self._connection

    async def _listed(self) -> list[Mapping[str, Any]]:
        connection = await self._connected()
        found: list[Mapping[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await connection.list_tools_page(cursor)
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
            input_schema=widen_schema(tool.get("inputSchema") or {}),
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
