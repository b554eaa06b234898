"""The tools of a session: what is offered to models, and how the calls of a response are run."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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
from metis.session.options import Toolbox, TurnRef
from metis.session.prompt import Skill, skill_version
from metis.session.response import ABORTED, tool_calls_of
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


class ToolRunner:
    """Runs the calls of the answers of one turn."""

    def __init__(
        self,
        toolbox: Toolbox | None,
        calling: ModelCaller,
        session_id: str,
        telling: TurnReporter,
    ) -> None:
        self.result_count = 0
        """How many calls have a result."""
        self._toolbox = toolbox
        self._calling = calling
        self._turn = TurnRef(session_id=session_id, turn_id=telling.turn_id)
        self._telling = telling

    async def run(self, answer: Message) -> None:
        """Run the calls of an answer, and store a result for each, also when this is cancelled."""
        calls, calling = tool_calls_of(answer), self._calling
        if self._toolbox is None:
            await calling.store_messages(
                calling.error_results(calls, _NO_TOOLS, OutcomeStatus.ERROR)
            )
            return
        watch = _Watch(self._telling, calling.parent_event)
        try:
            await self._toolbox.run(calls, self._turn, watch)
        finally:
            self.result_count += len(watch.answers)
            calling.parent_event = watch.last
            aborted = calling.error_results(calls, ABORTED, OutcomeStatus.ABORTED)
            await calling.store_messages(
                [
                    watch.answers.get(call.id, rest)
                    for call, rest in zip(calls, aborted, strict=True)
                ]
            )


class _Watch:
    """Passes on what the dispatcher tells of the calls of one answer."""

    def __init__(self, telling: TurnReporter, after: Event | None) -> None:
        self.answers: dict[str, Message] = {}
        self.last = after
        """What the next call of the model comes of."""
        self._telling = telling
        self._trace = telling.trace
        self._after = after
        self._called: dict[str, Event | None] = {}
        self._asked: dict[str, tuple[str, Event | None]] = {}

    def on_invalid_arguments(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        """The arguments of a call do not match its schema."""
        self._trace.emit(tool_input_invalid(call, problems), parent=self._after)

    def on_question(self, question: Question) -> None:
        """Somebody is asked whether a call may run."""
        own = new_ulid()
        event = self._trace.emit(confirmation_requested(question, own), parent=self._after)
        self._asked[question.call.id] = own, event

    def on_answer(self, question: Question, answer: Answer | None) -> None:
        """Somebody has said whether a call may run."""
        own, event = self._asked[question.call.id]
        is_denied = answer is not None and answer.verdict is Verdict.DENY
        lasts = answer is not None and answer.verdict is Verdict.ALLOW_FOR_SESSION
        resolved = ToolConfirmationResolved(
            tool_use_id=question.call.id,
            confirmation_request_id=own,
            decision="timeout" if answer is None else "deny" if is_denied else "allow",
            scope="session" if lasts else "once",
        )
        self._trace.emit(resolved, parent=event, actor=Actor.USER)

    def on_call_started(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        """A call starts to run."""
        self._telling.send(ToolStarted(turn_id=self._telling.turn_id, call=call))
        called = tool_called(call, definition.side_effects)
        self._called[call.id] = self._trace.emit(called, parent=self._after)

    def on_call_ended(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        """A call has its answer."""
        self.answers[call.id] = message
        cause = self._called.get(call.id) or self._after
        ended = tool_ended(message, latency_ms)
        self.last = self._trace.emit(ended, parent=cause, actor=Actor.TOOL) or self.last


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


TOOL_TIMEOUTS_S = {**TIMEOUTS_S, "delegate": 600.0}
"""How long calls may take; a worker ends itself before that."""


class SessionTools:
    """A dispatcher, with the workspace in which its tools work."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        layered: "MergedRegistry",
        servers: McpServers,
        workspace: Workspace | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._layered = layered
        self._servers = servers
        self._offered: tuple[str, ...] = ()
        self._workspace = workspace

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """What models are told of."""
        return tuple(self._layered.tools.values())

    async def offer(self, servers: Sequence[str]) -> None:
        """Offer the tools of these servers beside the others, and of no more servers.

        Raises:
            UnknownServerError: there is no server of one of these names.
        """
        if tuple(servers) != self._offered:
            self._layered.offer(await self._servers.tools(servers))
            self._offered = tuple(servers)

    async def run(self, calls: Sequence[ToolUseBlock], turn: TurnRef, watcher: Watcher) -> None:
        """Run calls; every one is answered by one TOOL message, also when this is cancelled."""
        context = ToolContext(
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            cancel=asyncio.Event(),
            workspace=self._workspace,
        )
        await self._dispatcher.run(calls, context, watcher)


class MergedRegistry(Registry):
    """The tools that somebody registered, also later on, those of the house, and of servers."""

    def __init__(self, given: Registry, house: Iterable[Factory]) -> None:
        super().__init__(*house)
        self._given = given
        self._offered = Registry()
        self._merged: tuple[ToolSet, ToolSet] | None = None

    def offer(self, tools: Iterable[Factory]) -> None:
        """Put these tools below the others, in the place of those that were there."""
        self._offered = Registry(*tools)
        self._merged = None

    @property
    def tools(self) -> ToolSet:
        """All definitions; of two with one name the registered one counts."""
        above = self._given.tools
        if self._merged is None or self._merged[0] is not above:
            below = {**self._offered.tools, **super().tools}
            free = (below[name] for name in below if name not in above)
            self._merged = above, ToolSet([*above.values(), *free])
        return self._merged[1]

    def get(self, name: str) -> RegisteredTool | None:
        """The tool of that name, if there is one."""
        return self._given.get(name) or super().get(name) or self._offered.get(name)

    def near(self, name: str) -> list[str]:
        """Names that somebody who wrote this one may have meant."""
        return [
            *self._given.similar_names(name),
            *super().similar_names(name),
            *self._offered.similar_names(name),
        ]

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def __iter__(self) -> Iterator[str]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)


def make_session_tools(
    registry: Registry,
    house: Iterable[Factory],
    confirmation: Confirmation | None,
    workspace: Workspace | None,
    servers: McpServers | None = None,
) -> SessionTools:
    """The tools of a session: what somebody registered, the tools of the house, and of servers."""
    layered = MergedRegistry(registry, house)
    dispatcher = Dispatcher(layered, confirmation, timeouts_s=TOOL_TIMEOUTS_S)
    return SessionTools(dispatcher, layered, servers or McpServers(), workspace)


class LoadSkillArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What load_skill takes."""

    name: str


class LoadSkill:
    """Gives the text of a skill."""

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
        """Read the skill."""
        asked = read_arguments(LoadSkillArguments, arguments)
        skill = self._skills.get(asked.name)
        if skill is None:
            known = ", ".join(self._skills)
            text = f"There is no skill named {asked.name!r}; there are: {known}."
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
        """Nothing is left behind."""
        return False
