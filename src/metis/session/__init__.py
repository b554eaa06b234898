"""Sessions: the loop that routes, asks, streams, stores, runs tools and prices."""

from metis.events import Budget
from metis.session.conversation import ModelUse, SessionCost
from metis.session.events import (
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
from metis.session.history import PastTurn, Position
from metis.session.library import Metis, open_metis
from metis.session.options import Options, Toolbox, TurnRef
from metis.session.route import Preview, Why, WindowUse
from metis.session.session import Session
from metis.session.sync import Reply, SyncMetis, SyncSession, ask, open_sync

__all__ = [
    "Budget",
    "CallFailed",
    "Lost",
    "Metis",
    "ModelUse",
    "Options",
    "PastTurn",
    "Position",
    "Preview",
    "Reply",
    "Routed",
    "Session",
    "SessionCost",
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
