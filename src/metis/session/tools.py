"""The tools of a session: what is offered to models, and how the calls of a response are run."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import InvalidValueError, UnknownServerError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import OutcomeStatus
from metis.canonical.tools import SideEffects, ToolDefinition, ToolSet
from metis.catalog.tables import token_table
from metis.events import Actor, Bus, Event
from metis.events.system_events import SkillLoaded
from metis.events.turn_events import ToolConfirmationResolved
from metis.session.events import (
    ToolStarted,
    Trace,
    TurnReporter,
    confirmation_requested,
    tool_called,
    tool_ended,
    tool_input_invalid,
)
from metis.session.model_call import ModelCaller
from metis.session.options import TurnRef
from metis.session.prompt import Skill, skill_version
from metis.session.response import ABORTED, tool_calls_of
from metis.session.state import TurnContext
from metis.tools import (
    Answer,
    Confirmation,
    Dispatcher,
    ErrorClass,
    Factory,
    Question,
    Registry,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    Verdict,
    Watcher,
    Workspace,
)
from metis.tools.dispatch import TIMEOUTS_S
from metis.tools.mcp import McpServer
from metis.tools.registry import RegisteredTool
from metis.tools.tool import object_schema, read_arguments, string_property, text_output

_NO_TOOLS = "There are no tools here."


class ToolRunner(Struct):
    """Runs the tool calls of the responses of one turn."""

    context: TurnContext
    caller: ModelCaller
    result_count: int = 0

    async def run(self, response: Message) -> None:
        """Run the calls of a response, and store a result for each, also when cancelled."""
        context, caller, calls = self.context, self.caller, tool_calls_of(response)
        reporter, toolbox = context.reporter, context.setup.toolbox
        if toolbox is None:
            results = caller.error_results(calls, _NO_TOOLS, OutcomeStatus.ERROR)
            await caller.store_messages(results)
            return
        turn = TurnRef(session_id=context.conversation.id, turn_id=reporter.turn_id)
        watcher = _CallWatcher(reporter, caller.parent_event)
        try:
            await toolbox.run(calls, turn, watcher)
        finally:
            self.result_count += len(watcher.results)
            caller.parent_event = watcher.last_event
            aborted = caller.error_results(calls, ABORTED, OutcomeStatus.ABORTED)
            await caller.store_messages(
                [
                    watcher.results.get(call.id, missing)
                    for call, missing in zip(calls, aborted, strict=True)
                ]
            )


_DECISIONS: Mapping[Verdict | None, Literal["deny", "timeout"]] = {
    None: "timeout",
    Verdict.DENY: "deny",
}


class _CallWatcher:
    """Reports what the dispatcher does with the calls of one response, and collects results."""

    def __init__(self, reporter: TurnReporter, parent: Event | None) -> None:
        self.results: dict[str, Message] = {}
        self.last_event = parent
        """The cause of the next model call."""
        self._reporter = reporter
        self._trace = reporter.trace
        self._parent = parent
        self._call_events: dict[str, Event | None] = {}
        self._confirmations: dict[str, tuple[str, Event | None]] = {}

    def on_invalid_arguments(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        """Trace arguments that do not match the schema."""
        self._trace.emit(tool_input_invalid(call, problems), parent=self._parent)

    def on_question(self, question: Question) -> None:
        """Trace that a person is asked whether a call may run."""
        request_id = new_ulid()
        event = self._trace.emit(confirmation_requested(question, request_id), parent=self._parent)
        self._confirmations[question.call.id] = request_id, event

    def on_answer(self, question: Question, answer: Answer | None) -> None:
        """Trace the answer; None if nobody answered in time."""
        request_id, event = self._confirmations[question.call.id]
        verdict = None if answer is None else answer.verdict
        resolved = ToolConfirmationResolved(
            tool_use_id=question.call.id,
            confirmation_request_id=request_id,
            decision=_DECISIONS.get(verdict, "allow"),
            scope="session" if verdict is Verdict.ALLOW_FOR_SESSION else "once",
        )
        self._trace.emit(resolved, parent=event, actor=Actor.USER)

    def on_call_started(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        """Report a call that starts to run."""
        self._reporter.send(ToolStarted(turn_id=self._reporter.turn_id, call=call))
        payload = tool_called(call, definition.side_effects)
        self._call_events[call.id] = self._trace.emit(payload, parent=self._parent)

    def on_call_ended(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        """Collect and trace the result of a call."""
        self.results[call.id] = message
        cause = self._call_events.get(call.id) or self._parent
        payload = tool_ended(message, latency_ms)
        event = self._trace.emit(payload, parent=cause, actor=Actor.TOOL)
        self.last_event = event or self.last_event


class McpServers:
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
        """Return the tools of these servers, which are started if need be.

        Raises:
            UnknownServerError: there is no server of one of the names.
        """
        unknown = next((name for name in names if name not in self._servers), None)
        if unknown is not None:
            raise UnknownServerError(unknown, tuple(self._servers))
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
"""How long calls may take; a worker session stops itself earlier."""


class SessionTools:
    """The tools of one session, run by a dispatcher in a workspace."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        registry: "MergedRegistry",
        servers: McpServers,
        workspace: Workspace | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._registry = registry
        self._servers = servers
        self._offered: tuple[str, ...] = ()
        self._workspace = workspace

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """The definitions that models get."""
        return tuple(self._registry.tools.values())

    async def offer(self, servers: Sequence[str]) -> None:
        """Offer the tools of these servers, and of no others, beside the session's own.

        Raises:
            UnknownServerError: there is no server of one of the names.
        """
        if tuple(servers) != self._offered:
            self._registry.offer(await self._servers.tools(servers))
            self._offered = tuple(servers)

    async def run(self, calls: Sequence[ToolUseBlock], turn: TurnRef, watcher: Watcher) -> None:
        """Run calls; each gets one TOOL message, also when this is cancelled."""
        context = ToolContext(
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            cancel=asyncio.Event(),
            workspace=self._workspace,
        )
        await self._dispatcher.run(calls, context, watcher)


class MergedRegistry(Registry):
    """The tools of a caller's registry, then built-in ones, then those of MCP servers.

    Of two tools with one name the first counts. The caller may register more at any time.
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
        if self._merged is None or self._merged[0] is not registered:
            others = {**self._from_servers.tools, **super().tools}
            more = (others[name] for name in others if name not in registered)
            self._merged = registered, ToolSet([*registered.values(), *more])
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


def make_session_tools(
    registry: Registry,
    builtin: Iterable[Factory],
    confirmation: Confirmation | None,
    workspace: Workspace | None,
    servers: McpServers | None = None,
) -> SessionTools:
    """Return the tools of a session: the caller's, the built-in ones, and those of servers."""
    merged = MergedRegistry(registry, builtin)
    dispatcher = Dispatcher(merged, confirmation, timeouts_s=TOOL_TIMEOUTS_S)
    return SessionTools(dispatcher, merged, servers or McpServers(), workspace)


class LoadSkillArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of load_skill."""

    name: str


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
        name = read_arguments(LoadSkillArguments, arguments).name
        skill = self._skills.get(name)
        if skill is None:
            known = ", ".join(self._skills)
            text = f"There is no skill named {name!r}; the skills are: {known}."
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
        """Return False: a cancelled read leaves nothing behind."""
        return False
