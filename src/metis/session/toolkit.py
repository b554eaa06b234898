"""Toolkit: the tools of one session, run by the dispatcher inside a workspace."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import ToolDefinition, ToolSet
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

    def __init__(self, dispatcher: Dispatcher, workspace: Workspace | None = None) -> None:
        self._dispatcher = dispatcher
        self._workspace = workspace

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """What models are told of."""
        return tuple(self._dispatcher.registry.tools.values())

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
    """The tools that somebody registered, also later on, and those of the house below them."""

    def __init__(self, given: Registry, house: Iterable[Factory]) -> None:
        super().__init__(*house)
        self._given = given
        self._merged: tuple[ToolSet, ToolSet] | None = None

    @property
    def tools(self) -> ToolSet:
        """All definitions; of two with one name the registered one counts."""
        above = self._given.tools
        if self._merged is None or self._merged[0] is not above:
            below = super().tools
            free = (below[name] for name in below if name not in above)
            self._merged = above, ToolSet([*above.values(), *free])
        return self._merged[1]

    def get(self, name: str) -> Entry | None:
        """The tool of that name, if there is one."""
        return self._given.get(name) or super().get(name)

    def near(self, name: str) -> list[str]:
        """Names that somebody who wrote this one may have meant."""
        return [*self._given.near(name), *super().near(name)]

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
) -> Toolkit:
    """The tools of a session: what somebody registered, and the tools of the house."""
    layered = Layered(registry, house)
    return Toolkit(Dispatcher(layered, confirmation, timeouts_s=TIMES_S), workspace)
