"""The tools of a session: those of the caller, built-in ones, and those of MCP servers."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import InvalidValueError, ToolError, UnknownServerError
from metis.canonical.tools import SideEffects, ToolDefinition, ToolSet
from metis.catalog.tables import token_table
from metis.events import Bus
from metis.events.system_events import SkillLoaded
from metis.session.events import Trace
from metis.session.prompt import Skill, skill_version
from metis.tools import (
    Confirmation,
    Dispatcher,
    ErrorClass,
    Factory,
    Registry,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    Watcher,
    Workspace,
)
from metis.tools.dispatch import TIMEOUTS_S
from metis.tools.mcp import McpServer
from metis.tools.registry import RegisteredTool
from metis.tools.tool import object_schema, string_property, text_output


class McpServers:
    """MCP servers by name; a server is started when a thread first names it."""

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
        """Return the tools of these servers; a server that does not run is started.

        Raises:
            UnknownServerError: there is no server of one of the names.
        """
        unknown = next((name for name in names if name not in self._servers), None)
        if unknown is not None:
            raise UnknownServerError(unknown, tuple(self._servers))
        # The tools of a server are listed once; they rarely change while it runs.
        for name in names:
            if name not in self._tools:
                self._tools[name] = await self._servers[name].tools()
        return [tool for name in dict.fromkeys(names) for tool in self._tools[name]]

    async def close(self) -> None:
        """Stop all servers."""
        self._tools.clear()
        for server in self._servers.values():
            await server.close()


TOOL_TIMEOUTS_S = {**TIMEOUTS_S, "delegate": 600.0}
"""How long calls may take, by tool; a worker session stops earlier by its own timeout."""


class SessionTools:
    """The tools of one session, run by a dispatcher in a workspace."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        registry: "MergedRegistry",
        servers: McpServers,
        workspace: Workspace | None,
        default_servers: Sequence[str] = (),
    ) -> None:
        self._default_servers = list(default_servers)
        self._dispatcher = dispatcher
        self._registry = registry
        self._servers = servers
        self._offered: tuple[str, ...] = ()
        self._workspace = workspace
        self.is_enabled = True
        """Whether models get any tools."""

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """The definitions that models get."""
        return tuple(self._registry.tools.values()) if self.is_enabled else ()

    async def offer(self, servers: Sequence[str]) -> None:
        """Offer the tools of exactly these servers, beside those of the session.

        Raises:
            UnknownServerError: there is no server of one of the names.
        """
        # Starting servers and listing their tools is slow, and most turns change nothing.
        if tuple(servers) != self._offered:
            self._registry.offer(await self._servers.tools(servers))
            self._offered = tuple(servers)

    async def offer_default(self) -> list[tuple[str, str]]:
        """Offer the tools of the default servers; return those that failed, with the reason.

        A server that failed is not started again: each turn would wait for it.
        """
        failed: list[tuple[str, str]] = []
        for name in tuple(self._default_servers) if self.is_enabled else ():
            try:
                await self._servers.tools([name])
            except (ToolFailedError, ToolError, UnknownServerError) as error:
                self._default_servers.remove(name)
                failed.append((name, str(error).rstrip(".")))
        await self.offer(self._default_servers if self.is_enabled else ())
        return failed

    async def run(
        self, calls: Sequence[ToolUseBlock], session_id: str, turn_id: str, watcher: Watcher
    ) -> None:
        """Run calls; the watcher gets one TOOL message for each that ended."""
        context = ToolContext(
            session_id=session_id,
            turn_id=turn_id,
            cancel=asyncio.Event(),
            workspace=self._workspace,
        )
        await self._dispatcher.run(calls, context, watcher)


class MergedRegistry(Registry):
    """The tools of a caller's registry, then built-in ones, then those of MCP servers.

    If two tools have the same name, the first is used. The caller may register more at any time.
    """

    def __init__(self, registered: Registry, builtin: Iterable[Factory]) -> None:
        super().__init__(*builtin)
        self._registered = registered
        self._from_servers = Registry()
        self._merged: tuple[ToolSet, ToolSet] | None = None

    def offer(self, tools: Iterable[Factory]) -> None:
        """Replace the tools of MCP servers."""
        self._from_servers = Registry(*tools)
        self._merged = None

    @property
    def tools(self) -> ToolSet:
        """All definitions by name."""
        registered = self._registered.tools
        # A registry builds a new set when a tool is added, so identity shows whether it changed.
        if self._merged is None or self._merged[0] is not registered:
            others = {**self._from_servers.tools, **super().tools}
            unshadowed = (others[name] for name in others if name not in registered)
            self._merged = registered, ToolSet([*registered.values(), *unshadowed])
        return self._merged[1]

    def get(self, name: str) -> RegisteredTool | None:
        """Return the tool of that name, if there is one."""
        return self._registered.get(name) or super().get(name) or self._from_servers.get(name)

    def similar_names(self, name: str) -> list[str]:
        """Return names that are similar to a misspelled one."""
        return [
            *self._registered.similar_names(name),
            *super().similar_names(name),
            *self._from_servers.similar_names(name),
        ]

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def __iter__(self) -> Iterator[str]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)


def make_session_tools(  # noqa: PLR0913, PLR0917 - each is one part of the tools
    registry: Registry,
    builtin: Iterable[Factory],
    confirmation: Confirmation | None,
    workspace: Workspace | None,
    servers: McpServers | None = None,
    default_servers: Sequence[str] = (),
) -> SessionTools:
    """Return the tools of a session: the caller's, the built-in ones, and those of servers."""
    merged = MergedRegistry(registry, builtin)
    dispatcher = Dispatcher(merged, confirmation, timeouts_s=TOOL_TIMEOUTS_S)
    return SessionTools(dispatcher, merged, servers or McpServers(), workspace, default_servers)


class LoadSkill:
    """The tool that returns the text of a skill."""

    definition = ToolDefinition(
        name="load_skill",
        description="Read the text of a skill of the list before you do what it is for.",
        input_schema=object_schema(
            ("name",), name=string_property("The name in the list of skills.")
        ),
        side_effects=SideEffects.READ,
        requires_workspace=False,
    )

    def __init__(self, skills: Sequence[Skill], bus: Bus | None = None) -> None:
        self._skills = {skill.name: skill for skill in skills}
        self._bus = bus

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return the text of the skill."""
        name: str = arguments["name"]
        skill = self._skills.get(name)
        if skill is None:
            # The model reads the error, and can call the tool again with a name of the list.
            names = ", ".join(self._skills)
            text = f"There is no skill named {name!r}; the skills are: {names}."
            raise ToolFailedError(text, ErrorClass.NOT_FOUND)
        body = await asyncio.to_thread(skill.body)
        if not body:
            raise ToolFailedError(f"The skill {skill.name} has no text.")
        version = skill_version(body)
        loaded = SkillLoaded(
            skill_id=skill.name,
            skill_version=version,
            load_reason="on_demand",
            load_size_tokens=round(token_table().rates("").text_tokens(body)),
            source=skill.source,
            triggered_by_tool_use_id=context.tool_use_id or None,
        )
        Trace(self._bus, context.session_id, context.turn_id).emit(loaded)
        return text_output(body, value={"skill": skill.name, "version": version})

    def cancel(self) -> bool:
        """Return False: a cancelled read needs no cleanup."""
        return False
