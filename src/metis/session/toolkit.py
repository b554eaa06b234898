"""Toolkit: the tools of one session, run by the dispatcher inside a workspace."""

import asyncio
from collections.abc import Sequence

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import ToolDefinition
from metis.session.setup import TurnRef
from metis.tools import Dispatcher, ToolContext, Watcher, Workspace


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
