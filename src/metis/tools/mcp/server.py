"""MCP servers and their tools; a server is started when it is first needed."""

import asyncio
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
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
from metis.tools.hidden_text import HIDDEN
from metis.tools.mcp.connection import Connection, ServerAddress, StdioServer
from metis.tools.media import PDF
from metis.tools.registry import Factory
from metis.tools.tool import ToolContext, ToolOutput, log

SEPARATOR = "___"
"""The separator of server and tool; neither name has more than one underscore in a row."""
# A hostile server could return a new cursor with every page.
_MAX_PAGES = 100
MAX_TOOLS = 1000
"""How many tools of a server are used; providers accept fewer."""
MAX_DESCRIPTION = 16_384
_CAMEL_CASE_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FOREIGN_CHARACTERS = re.compile(r"[^a-z0-9]+")
_DIGEST_CHARACTERS = 6


class McpServer:
    """One server and its tools.

    The server's annotations of a tool's effects are used only if it `is_trusted`; otherwise every
    tool is assumed to have the strongest effect.
    """

    def __init__(self, name: str, address: ServerAddress, *, is_trusted: bool = False) -> None:
        self.name = name
        self._address = address
        self._is_trusted = is_trusted
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def tools(self) -> list[Factory]:
        """Return a factory for each tool, to be registered; this starts the server."""
        names: set[str] = set()
        factories: list[Factory] = []
        for tool in await self._list_tools():
            definition = self._definition(tool, names)
            names.add(definition.name)
            factories.append(partial(McpTool, self, definition, str(tool["name"])))
        return factories

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool by the server's name for it."""
        connection = await self._connect()
        return tool_output(await connection.call(tool, dict(arguments)))

    async def close(self) -> None:
        """Close the connection, and end the program if it was started for it."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _connect(self) -> Connection:
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                await self.close()
                self._connection = await Connection.open(self.name, self._address)
            return self._connection

    async def _list_tools(self) -> list[Mapping[str, Any]]:
        connection = await self._connect()
        tools: list[Mapping[str, Any]] = []
        cursor: str | None = None
        # Limited, because a server could return cursors endlessly.
        for _ in range(_MAX_PAGES):
            page = await connection.list_tools_page(cursor)
            tools += page.get("tools", [])
            cursor = page.get("nextCursor")
            if not cursor or len(tools) > MAX_TOOLS:
                break
        if len(tools) > MAX_TOOLS:
            log.warning(
                "%s lists more than %d tools; the others are not used", self.name, MAX_TOOLS
            )
        return tools[:MAX_TOOLS]

    def _definition(self, tool: Mapping[str, Any], existing: set[str]) -> ToolDefinition:
        is_local = isinstance(self._address, StdioServer)
        return ToolDefinition(
            name=tool_name(self.name, str(tool["name"]), existing),
            description=_description(tool),
            input_schema=widen_schema(tool.get("inputSchema") or {}),
            side_effects=side_effects(
                tool.get("annotations"),
                is_trusted=self._is_trusted,
                default=SideEffects.EXECUTE if is_local else SideEffects.NETWORK,
            ),
            requires_workspace=False,
        )


def _description(tool: Mapping[str, Any]) -> str:
    """Return the description of a tool, limited in length, because every request has it."""
    text = str(tool.get("description") or tool.get("title") or tool["name"])
    # Invisible characters could contain instructions for a model that a user does not see.
    text = HIDDEN.sub("", text)
    return text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]} […]"


class McpTool:
    """A tool of a server, under the name that models receive."""

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
        """Return false: the call ends with its task, and the package notifies the server."""
        return False


def tool_name(server: str, tool: str, existing: Collection[str] = ()) -> str:
    """Return `server___tool` in snake case, with a digest if it is too long or exists."""
    name = f"{snake_case(server)}{SEPARATOR}{snake_case(tool)}"
    # Two tools may differ only in characters that providers refuse, such as a dot (T13).
    if len(name) <= MAX_NAME_LENGTH and name not in existing:
        return name
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{name[: MAX_NAME_LENGTH - _DIGEST_CHARACTERS - 1].rstrip('_')}_{digest}"


def snake_case(name: str) -> str:
    """Convert a name to lower case, digits and single underscores, with a letter first."""
    plain = _FOREIGN_CHARACTERS.sub("_", _CAMEL_CASE_BORDER.sub("_", name).lower()).strip("_")
    return plain if plain[:1].isalpha() else f"x_{plain}".rstrip("_")


def side_effects(
    annotations: Mapping[str, Any] | None, *, is_trusted: bool, default: SideEffects
) -> SideEffects:
    """Return the strongest effect of a tool, by the annotations of a trusted server."""
    # The annotations of an untrusted server are not used: a malicious tool would claim to be safe.
    if not is_trusted or annotations is None:
        return default
    if annotations.get("readOnlyHint") is True:
        return SideEffects.READ
    return SideEffects.WRITE if annotations.get("openWorldHint") is False else default


def tool_output(result: Mapping[str, Any]) -> ToolOutput:
    """Convert the JSON result of a call."""
    parts: Sequence[Mapping[str, Any]] = result.get("content") or ()
    return ToolOutput(
        content=tuple(content_block(part) for part in parts),
        success=not result.get("isError", False),
        value=result.get("structuredContent", UNSET),
    )


def content_block(part: Mapping[str, Any]) -> ContentBlock:
    """Convert one part of a result; an unknown kind becomes a note."""
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
            facts = (part.get("name"), uri, part.get("description"))
            return TextBlock(f"[resource] {': '.join(str(fact) for fact in facts if fact)}")
        case _:
            return TextBlock(f"[a part of the unknown type {part.get('type')!r}]")


def _resource(resource: Mapping[str, Any]) -> ContentBlock:
    uri = str(resource.get("uri", ""))
    kind = str(resource.get("mimeType") or "application/octet-stream")
    if "text" in resource:
        return TextBlock(f"[{uri}]\n{resource['text']}")
    data = str(resource.get("blob", ""))
    if kind.startswith("image/"):
        return ImageBlock(ImageSource(kind="base64", data=data), media_type=kind)
    source = MediaSource(kind="base64", data=data)
    if kind == PDF:
        return DocumentBlock(source, media_type=kind, name=uri)
    return ArtifactBlock(source, media_type=kind, name=uri)
