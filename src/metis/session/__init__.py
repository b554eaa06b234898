"""Sessions: the loop that routes, asks, streams, stores, runs tools and prices."""

from metis.session.conversation import SessionCost
from metis.session.library import Metis, Options
from metis.session.notices import (
    CallFailed,
    Lost,
    Routed,
    Stored,
    ToolStarted,
    TurnEnded,
    TurnEvent,
    TurnStarted,
    Warned,
)
from metis.session.session import Session
from metis.session.setup import Toolbox, TurnRef
from metis.session.spending import Budget
from metis.session.swap import Preview

__all__ = [
    "Budget",
    "CallFailed",
    "Lost",
    "Metis",
    "Options",
    "Preview",
    "Routed",
    "Session",
    "SessionCost",
    "Stored",
    "ToolStarted",
    "Toolbox",
    "TurnEnded",
    "TurnEvent",
    "TurnRef",
    "TurnStarted",
    "Warned",
]
