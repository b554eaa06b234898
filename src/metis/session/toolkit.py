"""Toolkit: the tools of one session, run by the dispatcher inside a workspace."""

import asyncio
from collections.abc import Iterable, Sequence

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import ToolDefinition
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


def make_toolkit(
    registry: Registry,
    house: Iterable[Factory],
    confirmation: Confirmation | None,
    workspace: Workspace | None,
) -> Toolkit:
    """The tools that somebody registered, and those of the house whose names are free."""
    factories = {name: entry.factory for name in registry if (entry := registry.get(name))}
    for factory in house:
        factories.setdefault(factory().definition.name, factory)
    own = Registry(*factories.values())
    return Toolkit(Dispatcher(own, confirmation, timeouts_s=TIMES_S), workspace)
