"""The state of a chat: its session, screen and keyboard, and the status line."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from decimal import Decimal

from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import MetisError
from metis.canonical.metadata import MessageStatus, RoutingDecisionRecord, RoutingMode
from metis.cli.chat.keyboard import keyboard_of
from metis.cli.chat.screen import Screen, is_cancelling
from metis.cli.chat.turn_parts import LossKey
from metis.cli.chat.turn_view import STOPPED, TurnDisplay, TurnView
from metis.cli.default_model import ModelChoice
from metis.cli.error_text import chat_error_text
from metis.cli.startup import StartedSession, delete_if_empty
from metis.cli.text import cell_width, format_usd, one_line, short_count
from metis.session import Session, TurnEvent, WindowUse
from metis.session.history import PastTurn
from metis.settings.settings import format_thinking

log = logging.getLogger("metis.chat")

YOUR_CHOICE = "your choice"
_REASONS = {
    RoutingMode.MANUAL: YOUR_CHOICE,
    RoutingMode.OVERRIDE: "for one message",
    RoutingMode.DEFAULT: "default",
    RoutingMode.PATTERN: "learned",
    RoutingMode.DELEGATE: "for a worker",
}


def routing_reason(record: RoutingDecisionRecord) -> str:
    """Return why a model was chosen, in a word or two."""
    if record.mode is RoutingMode.RULE:
        return f"rule {record.rule_name}" if record.rule_name else "a rule"
    return _REASONS.get(record.mode, str(record.mode))


def window_share(used_tokens: int, window_tokens: int) -> str:
    """Return how full a context window is.

    >>> window_share(12, 200_000), window_share(50_000, 200_000)
    ('<1% of 200k', '25% of 200k')
    """
    percent = 100 * used_tokens // window_tokens if window_tokens else 0
    return f"{percent or '<1'}% of {short_count(window_tokens)}"


def join_fitting(parts: list[str], width: int) -> str:
    """Join parts on one line; the last ones are left out if they do not fit."""
    shown = [part for part in parts if part]
    while len(shown) > 1 and cell_width(" · ".join(shown)) > width:
        shown.pop()
    return one_line(" · ".join(shown), width)


def has_failed(turn: PastTurn) -> bool:
    """Return whether a turn has no response, or one that an error broke off."""
    response = turn.response
    return response is None or response.metadata.status is MessageStatus.ERROR


class ChatState:
    """A session on a screen; commands may switch to another session."""

    def __init__(self, started: StartedSession, screen: Screen) -> None:
        self.library = started.library
        self.opener = started.opener
        self.chooser = started.chooser
        self.loaded = started.loaded
        self.screen = screen
        self.keyboard = keyboard_of(screen)
        self.display = TurnDisplay(screen)
        self.shows_thinking = False
        self.previous_model: str | None = None
        """The model before the last swap."""
        self.reported_losses: set[LossKey] = set()
        """Losses that a swap has shown, and that its turns need not show again."""
        self.window: WindowUse | None = None
        """How full the context window of the next model is."""
        self.decision: RoutingDecisionRecord | None = None
        """Which model answered last, and why."""
        self.attachments: list[ContentBlock] = []
        """What goes with the next prompt."""
        self.draft = ""
        """The text with which the next prompt begins."""
        self._session = started.session
        self._turn_usd = Decimal(0)
        self._started_here: set[str] = set()
        self.refresh()

    @property
    def session(self) -> Session:
        """The current session."""
        return self._session

    @property
    def model(self) -> str | None:
        """The model that answers next; None if no model is chosen yet."""
        return None if self.window is None else self.window.model

    async def start_new(self, model: str | None) -> None:
        """Switch to a new session."""
        session = await self.library.session(model=model)
        self._started_here.add(session.id)
        await self.switch_to(session)

    async def switch_to(self, session: Session) -> None:
        """Switch to another session."""
        if session.id != self._session.id:
            await self.discard_if_empty()
        self._session = session
        self._turn_usd = Decimal(0)
        self.refresh()

    async def use_library(self, choice: ModelChoice) -> None:
        """Open the library that a model needs, and continue the session in it."""
        self.library = await self.opener.open(choice)
        self._session = await self.library.resume(self._session.id)
        self.refresh()

    async def discard_if_empty(self) -> None:
        """Delete the current session if it was started in this chat and is empty."""
        if self._session.id in self._started_here:
            await delete_if_empty(self.library, self._session.id)

    def refresh(self) -> None:
        """Look up the next model, the last decision, and how full the window is."""
        self.window = self._session.context()
        why = self._session.why()
        self.decision = None if why is None else why.record

    async def send(self, prompt: Sequence[ContentBlock], *, model: str | None = None) -> None:
        """Send a prompt and show the turn; a failed turn with the same prompt is taken back."""
        turns = self._session.turns
        if turns and turns[-1].prompt.content == tuple(prompt) and has_failed(turns[-1]):
            await self._session.undo()
        await self.show_turn(self._session.send(prompt, model=model))

    async def show_turn(self, events: AsyncGenerator[TurnEvent]) -> None:
        """Show a turn; an error becomes a note under it."""
        started_s = time.monotonic()
        view = TurnView(
            self.screen,
            shows_thinking=self.shows_thinking,
            model=self.model or "",
            reported_losses=self.reported_losses,
        )
        try:
            await self.display.show(view, events)
        except asyncio.CancelledError:
            view.end(STOPPED)
            # Ctrl-C cancels only the turn; SIGTERM cancels the chat, so the error is raised again.
            if is_cancelling():
                raise
        except Exception as error:
            if not isinstance(error, MetisError | OSError):
                log.exception("a turn failed")
            view.end(chat_error_text(error), "red")
        else:
            view.end()
        self._turn_usd = Decimal(0) if view.ended is None else view.ended.cost_usd
        self.refresh()
        limit_s = self.loaded.settings.notify_after_s
        if limit_s and time.monotonic() - started_s >= limit_s and not self.screen.is_plain:
            # OSC 9 is a desktop notification in many terminals; others ring the bell.
            self.screen.send_sequence("\x1b]9;metis: the answer is complete\x07\x07")

    def status(self) -> str:
        """Return the line under the prompt."""
        window = self.window
        if window is None:
            return "no model yet · /model NAME chooses one"
        reason, cost = self._reason(window.model), self._session.cost()
        reasoning = self._session.reasoning
        unpriced = " + unpriced" if cost.unpriced_models else ""
        model = f"{window.model} [simulated]" if self.library.options.simulate else window.model
        parts = [
            f"{model} ({reason})" if reason else model,
            window_share(window.tokens, window.window_tokens),
            f"{format_usd(cost.total_usd)} session{unpriced}",
            "" if reasoning is None else f"thinking {format_thinking(reasoning)}",
            f"{format_usd(self._turn_usd)} turn" if self._turn_usd else "",
        ]
        return join_fitting(parts, self.screen.width - 1)

    def _reason(self, model: str) -> str:
        """Return why a model answers next."""
        if self._session.model is not None:
            return YOUR_CHOICE
        decision = self.decision
        return routing_reason(decision) if decision and decision.chosen_model == model else ""
