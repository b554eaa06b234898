"""Sessions: conversations that route, call models, stream, run tools, store and count costs.

`Session.send` yields turn events (`TurnStarted`, `Routed`, …, `TurnEnded`) and the stream events of
each response (`TextDelta`, `ToolUseStart`, …). What this package exports is public; its modules
are private.
"""

import logging
from typing import TYPE_CHECKING

from metis.deprecation import renamed_names
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
from metis.session.options import Options
from metis.session.reply import Reply, ReplyStream, SyncReplyStream
from metis.session.response import OutputSchema, text_of
from metis.session.route import Preview, Why, WindowUse
from metis.session.session import Prompt, Session
from metis.session.sync import SyncMetis, SyncSession, ask, open_sync
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)

# A library leaves it to the program what is shown of its log. Without a handler Python would print
# every warning, such as each loss, to standard error; a reply has its losses anyway.
logging.getLogger("metis").addHandler(logging.NullHandler())

__all__ = [
    "BlockAdded",
    "Budget",
    "CallFailed",
    "Lost",
    "MessageComplete",
    "MessageStart",
    "Metis",
    "ModelUse",
    "Options",
    "OutputSchema",
    "PastTurn",
    "Position",
    "Preview",
    "Prompt",
    "Reply",
    "ReplyStream",
    "Routed",
    "Session",
    "SessionCost",
    "Stored",
    "StreamError",
    "StreamEvent",
    "SyncMetis",
    "SyncReplyStream",
    "SyncSession",
    "TextDelta",
    "ThinkingDelta",
    "ToolStarted",
    "ToolUseEnd",
    "ToolUseInputDelta",
    "ToolUseStart",
    "TurnEnded",
    "TurnEvent",
    "TurnStarted",
    "UsageUpdate",
    "Warned",
    "Why",
    "WindowUse",
    "ask",
    "open_metis",
    "open_sync",
    "text_of",
]

if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Place": "Position", "Span": "PastTurn"})
