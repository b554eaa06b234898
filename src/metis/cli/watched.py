"""Watched: one answer at a terminal, drawn as in a conversation."""

import asyncio
import signal
import sys

from metis.cli.chat.screen import Screen
from metis.cli.chat.stage import Stage
from metis.cli.chat.turn import TurnView
from metis.cli.start import Opened
from metis.session.notices import TurnEnded
from metis.session.session import Said
from metis.tools import Answer, Question


class Watched:
    """Shows a turn to somebody who asked one question, and asks them where a tool has to."""

    def __init__(self, ready: Opened) -> None:
        self._session = ready.session
        self._screen = Screen()
        self._stage = Stage(self._screen)
        if sys.stdin.isatty():
            ready.asking.ask = self._ask

    async def run(self, said: Said) -> TurnEnded | None:
        """Show the answer; gives how it ended."""
        view = TurnView(self._screen, shows_thinking=False, is_alone=True)
        called = {signal.SIGINT: self._stage.stop, signal.SIGWINCH: self._stage.resized}
        loop = asyncio.get_running_loop()
        for number, call in called.items():
            loop.add_signal_handler(number, call)
        try:
            await self._stage.play(view, self._session.send(said))
        except asyncio.CancelledError:
            view.end("stopped · what came is kept")
            raise KeyboardInterrupt from None
        finally:
            for number in called:
                loop.remove_signal_handler(number)
            view.end()
        return view.ended

    async def _ask(self, question: Question) -> Answer:
        """Ask before a tool changes something."""
        # Loaded by the first question: the keyboard takes as long to load as a first answer.
        from metis.cli.chat.confirm import Confirm  # noqa: PLC0415 - the reason stands above
        from metis.cli.chat.keyboard import keyboard_of  # noqa: PLC0415 - the same

        keyboard = keyboard_of(self._screen)
        return await Confirm(self._screen, keyboard, self._stage.paused, self._stage.stop)(question)
