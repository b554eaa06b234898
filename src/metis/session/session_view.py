"""The readable properties of a session: messages, model, cost, context window and settings."""

from collections.abc import Sequence
from typing import Any

from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.events import Budget
from metis.session.conversation import SessionCost
from metis.session.history import PastTurn, past_turns
from metis.session.options import request_options
from metis.session.route import (
    ModelPin,
    Preview,
    Why,
    WindowUse,
    last_routing,
    window_parts,
    window_use,
)
from metis.session.state import TurnContext
from metis.wire.reasoning import Reasoning


class SessionView:
    """The properties of a session, which can be read at any time, also while a turn runs."""

    def __init__(self, context: TurnContext, pin: ModelPin) -> None:
        self._context = context
        self._setup = context.setup
        self._conversation = context.conversation
        self._pin = pin

    def __repr__(self) -> str:
        model = self.model or "chosen by rules"
        return f"<session {self.id}, model {model}, {len(self._conversation.messages)} messages>"

    @property
    def id(self) -> str:
        """The id of the session."""
        return self._conversation.id

    @property
    def model(self) -> str | None:
        """The model that the user set; None leaves the choice to the rules."""
        return self._pin.model

    @property
    def messages(self) -> list[Message]:
        """The history that models get; a summary replaces what was compacted."""
        return list(self._conversation.messages)

    @property
    def turns(self) -> list[PastTurn]:
        """All turns, compacted or not, without those that were undone."""
        return past_turns(self._conversation.path)

    def cost(self) -> SessionCost:
        """Return the exact cost of the session so far, including turns that were undone."""
        return self._conversation.cost()

    def context(self, model: str | None = None) -> WindowUse | None:
        """Return how full the window of a model is, by default of the model of the next turn.

        None if no model can answer the next turn.
        """
        return window_use(self._context, model)

    def context_parts(self, model: str | None = None) -> dict[str, int]:
        """Return how many tokens each kind of block takes in the window, and the tools."""
        return window_parts(self._context, model)

    def why(self) -> Why | None:
        """Return the routing decision of the last turn, with every slot that was tried."""
        return last_routing(self._context)

    def preview_swap(self, model: str) -> Preview:
        """Return whether a model can continue, and every part that it would not get unchanged."""
        return self._pin.preview(model)

    @property
    def budget(self) -> Budget:
        """The spending limits of the session."""
        return self._conversation.budget(self._setup.budget)

    @property
    def reasoning(self) -> Reasoning | None:
        """The reasoning option of the session; None is the model's default."""
        return request_options(self._setup, self._conversation, self.model or "").reasoning

    @property
    def options(self) -> dict[str, Any]:
        """The thread options, merged along the path to the newest message."""
        return dict(self._conversation.thread_options)

    @property
    def bookmarks(self) -> dict[str, str]:
        """The message id of each bookmark."""
        return self._conversation.bookmarks

    @property
    def checkpoints(self) -> dict[int, str | None]:
        """The message id of each checkpoint; None is before the first message."""
        return dict(self._conversation.checkpoints)

    @property
    def checkpoint_names(self) -> dict[str, int]:
        """The numbers of the checkpoints that have a name."""
        return dict(self._conversation.checkpoint_names)

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """The definitions of the tools that models get."""
        return self._setup.tools
