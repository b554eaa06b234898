"""The state of a chat: its session, screen and keyboard, and the status line."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from decimal import Decimal

from metis.canonical.errors import MetisError
from metis.canonical.metadata import RoutingDecisionRecord
from metis.cli.chat import statusline
from metis.cli.chat.keyboard import keyboard_of
from metis.cli.chat.screen import Screen, is_cancelling
from metis.cli.chat.turn_parts import LossKey
from metis.cli.chat.turn_view import TurnDisplay, TurnView
from metis.cli.error_text import chat_error_text
from metis.cli.startup import delete_if_empty
from metis.session import Metis, Session, TurnEvent, WindowUse
from metis.session.session import Prompt
from metis.settings.settings import format_thinking

log = logging.getLogger("metis.chat")


class ChatState:
    """A session on a screen; commands may put another session in its place."""

    def __init__(self, library: Metis, session: Session, screen: Screen) -> None:
        self.library = library
        self.screen = screen
        self.keyboard = keyboard_of(screen)
        self.shows_thinking = False
        self.previous_model: str | None = None
        """Who answered before the last swap."""
        self.reported_losses: set[LossKey] = set()
        """What was told when a model was swapped, and need not be told again."""
        self._session = session
        self._turn_usd = Decimal(0)
        self.window: WindowUse | None = None
        """How full the window of the model is that answers next."""
        self.record: RoutingDecisionRecord | None = None
        """Who answered last, and why."""
        self._begun: set[str] = set()
        self.stage = TurnDisplay(screen)
        self.refresh()

    @property
    def session(self) -> Session:
        """The session that is talked in."""
        return self._session

    async def start_new(self, model: str | None) -> None:
        """Go on in a new session."""
        session = await self.library.session(model=model)
        self._begun.add(session.id)
        await self.switch_to(session)

    async def discard_if_empty(self) -> None:
        """Let nothing be kept of a session that was begun here and in which nothing was said."""
        if self._session.id in self._begun:
            await delete_if_empty(self.library, self._session)

    async def switch_to(self, session: Session) -> None:
        """Go on in another session."""
        if session.id != self._session.id:
            await self.discard_if_empty()
        self._session = session
        self._turn_usd = Decimal(0)
        self.refresh()

    @property
    def model(self) -> str | None:
        """Who answers next, as far as one knows."""
        return None if self.window is None else self.window.model

    def refresh(self) -> None:
        """Look again who answers next, who answered last, and how full the window is."""
        self.window = self._session.context()
        why = self._session.why()
        self.record = None if why is None else why.record

    # Turns

    async def send(self, said: Prompt, *, model: str | None = None) -> None:
        """Say something and show what comes."""
        await self.play(self._session.send(said, model=model))

    async def play(self, events: AsyncGenerator[TurnEvent]) -> None:
        """Show a turn; whatever fails is a sentence on the screen."""
        view = TurnView(
            self.screen,
            shows_thinking=self.shows_thinking,
            model=self.model or "",
            reported_losses=self.reported_losses,
        )
        try:
            await self.stage.show(view, events)
        except asyncio.CancelledError:
            view.end("stopped · what came is kept")
            if is_cancelling():
                raise
        except Exception as error:
            if not isinstance(error, MetisError | OSError):
                log.exception("a turn broke")
            view.end(chat_error_text(error), "red")
        else:
            view.end()
        self._remember(view)

    def _remember(self, view: TurnView) -> None:
        self._turn_usd = Decimal(0) if view.ended is None else view.ended.cost_usd
        self.refresh()

    # What is known

    def status(self) -> str:
        """The line under the prompt."""
        window = self.window
        if window is None:
            return "no model yet · /model NAME chooses one"
        reason, cost = self._reason(window.model), self._session.cost()
        unpriced = ", without price in part" if cost.unpriced_models else ""
        parts = [
            f"{window.model} ({reason})" if reason else window.model,
            statusline.window_share(window.tokens, window.window_tokens),
            f"{statusline.format_cost(cost.total_usd)} session{unpriced}",
            self._thinking(),
            f"{statusline.format_cost(self._turn_usd)} turn" if self._turn_usd else "",
        ]
        return statusline.fit_parts(parts, self.screen.width - 1)

    def _thinking(self) -> str:
        """How much is thought, if somebody said it."""
        reasoning = self._session.reasoning
        return "" if reasoning is None else f"thinking {format_thinking(reasoning)}"

    def _reason(self, model: str) -> str:
        """Why a model answers next."""
        if self._session.model is not None:
            return "your choice"
        record = self.record
        return statusline.routing_reason(record) if record and record.chosen_model == model else ""
