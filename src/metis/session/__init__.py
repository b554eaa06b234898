"""Sessions: the loop that routes, asks, streams, stores, runs tools and prices."""

from metis.events import Budget
from metis.session.conversation import ModelUse, SessionCost
from metis.session.history import Place, Span
from metis.session.library import Metis, open_metis
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
from metis.session.options import Options
from metis.session.session import Session
from metis.session.setup import Toolbox, TurnRef
from metis.session.swap import Preview
from metis.session.sync import Reply, SyncMetis, SyncSession, ask, open_sync
from metis.session.window import Why, WindowUse

__all__ = [
    "Budget",
    "CallFailed",
    "Lost",
    "Metis",
    "ModelUse",
    "Options",
    "Place",
    "Preview",
    "Reply",
    "Routed",
    "Session",
    "SessionCost",
    "Span",
    "Stored",
    "SyncMetis",
    "SyncSession",
    "ToolStarted",
    "Toolbox",
    "TurnEnded",
    "TurnEvent",
    "TurnRef",
    "TurnStarted",
    "Warned",
    "Why",
    "WindowUse",
    "ask",
    "open_metis",
    "open_sync",
]
