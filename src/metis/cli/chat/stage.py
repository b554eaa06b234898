"""Stage: the turn that is being shown, which can be stopped, paused and drawn anew."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing

from metis.cli.chat.screen import Screen
from metis.cli.chat.turn import TurnView
from metis.session import TurnEvent

TICK_S = 1.0
"""How often the seconds of a turn are told."""


class Stage:
    """Shows one turn after the other on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._view: TurnView | None = None
        self._task: asyncio.Task[None] | None = None

    async def play(self, view: TurnView, events: AsyncGenerator[TurnEvent]) -> None:
        """Draw what happens until the turn ends; whoever calls says how it ended."""
        self._view = view
        self._task = asyncio.create_task(_watch(view, events))
        ticking = asyncio.create_task(_tick(view))
        try:
            await self._task
        finally:
            ticking.cancel()
            self._view = self._task = None

    def stop(self) -> bool:
        """End the turn that runs, if there is one; what has come is kept."""
        return self._task is not None and self._task.cancel()

    def resized(self) -> None:
        """Draw what is not finished anew, for the terminal has another size."""
        self._screen.resized()
        if self._view is not None:
            self._view.draw()

    @contextlib.contextmanager
    def paused(self, call_id: str) -> Generator[None]:
        """Have the screen for a question about a call."""
        view = self._view
        if view is not None:
            view.pause(call_id)
        try:
            yield
        finally:
            if view is not None:
                view.go_on()


async def _watch(view: TurnView, events: AsyncGenerator[TurnEvent]) -> None:
    async with aclosing(events) as told:
        async for event in told:
            view.take(event)


async def _tick(view: TurnView) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        view.draw()
