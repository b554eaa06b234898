"""Toolkit: the tools of one session, run by the dispatcher inside a workspace."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import ToolDefinition, ToolSet
from metis.session.servers import Servers
from metis.session.setup import TurnRef
from metis.tools import (
    Confirmation,
    Dispatcher,
    Factory,
    Registry,
    ToolContext,
    Watcher,
    Workspace,
)
from metis.tools.dispatch import TIMEOUTS_S
from metis.tools.registry import Entry

TIMES_S = {**TIMEOUTS_S, "delegate": 600.0}
"""How long calls may take; a worker ends itself before that."""


class Toolkit:
    """A dispatcher, with the workspace in which its tools work."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        layered: "Layered",
        servers: Servers,
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


class Layered(Registry):
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

    def get(self, name: str) -> Entry | None:
        """The tool of that name, if there is one."""
        return self._given.get(name) or super().get(name) or self._offered.get(name)

    def near(self, name: str) -> list[str]:
        """Names that somebody who wrote this one may have meant."""
        return [*self._given.near(name), *super().near(name), *self._offered.near(name)]

    def __contains__(self, name: object) -> bool:
        return name in self.tools

    def __iter__(self) -> Iterator[str]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)


def make_toolkit(
    registry: Registry,
    house: Iterable[Factory],
    confirmation: Confirmation | None,
    workspace: Workspace | None,
    servers: Servers | None = None,
) -> Toolkit:
    """The tools of a session: what somebody registered, the tools of the house, and of servers."""
    layered = Layered(registry, house)
    dispatcher = Dispatcher(layered, confirmation, timeouts_s=TIMES_S)
    return Toolkit(dispatcher, layered, servers or Servers(), workspace)
