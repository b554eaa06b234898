"""Notices: what a turn tells beside the stream of its answers."""

from decimal import Decimal
from typing import ClassVar, Literal

from msgspec import Struct

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.message import Message
from metis.canonical.metadata import RoutingDecisionRecord, StopReason
from metis.projection.loss import Loss
from metis.streaming import StreamEvent


class Notice(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all notices share: the turn that they belong to."""

    turn_id: str


class TurnStarted(Notice, frozen=True, kw_only=True, tag="turn_started"):
    """The words of the user are stored."""

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    message: Message


class Routed(Notice, frozen=True, kw_only=True, tag="routed"):
    """A model was chosen: once at the start of a turn, and again if another has to step in."""

    type: ClassVar[Literal["routed"]] = "routed"
    record: RoutingDecisionRecord


class Lost(Notice, frozen=True, kw_only=True, tag="lost"):
    """Parts of the history do not reach the model as they are; each is told once."""

    type: ClassVar[Literal["lost"]] = "lost"
    model: str
    losses: tuple[Loss, ...]


class Stored(Notice, frozen=True, kw_only=True, tag="stored"):
    """A message of the turn is in the store: an answer with its cost, or the result of a call."""

    type: ClassVar[Literal["stored"]] = "stored"
    message: Message


class ToolStarted(Notice, frozen=True, kw_only=True, tag="tool_started"):
    """A call is being run."""

    type: ClassVar[Literal["tool_started"]] = "tool_started"
    call: ToolUseBlock


class CallFailed(Notice, frozen=True, kw_only=True, tag="call_failed"):
    """An attempt to reach a model failed; `next_in_s` is the wait before the next, if any."""

    type: ClassVar[Literal["call_failed"]] = "call_failed"
    model: str
    error_class: str
    attempt: int
    next_in_s: float | None = None


WarningCode = Literal[
    "budget", "compacted", "empty_answer", "fallback", "outage", "repaired", "rules_invalid"
]
"""What a warning is about."""


class Warned(Notice, frozen=True, kw_only=True, tag="warned"):
    """Something that a person should know, and that stops nothing."""

    type: ClassVar[Literal["warned"]] = "warned"
    code: WarningCode
    text: str


class TurnEnded(Notice, frozen=True, kw_only=True, tag="turn_ended"):
    """The turn is over; what it cost, over all its calls."""

    type: ClassVar[Literal["turn_ended"]] = "turn_ended"
    stop_reason: StopReason
    cost_usd: Decimal
    message: Message | None = None
    """The last answer, if there was one."""


TurnEvent = (
    StreamEvent
    | TurnStarted
    | Routed
    | Lost
    | Stored
    | ToolStarted
    | CallFailed
    | Warned
    | TurnEnded
)
"""Everything that comes while a turn runs."""
