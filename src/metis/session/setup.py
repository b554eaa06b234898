"""Setup: what all turns of a session share."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

from msgspec import Struct

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import ToolDefinition
from metis.events import Budget, Bus
from metis.routing import Router, Tier
from metis.session.models import Models
from metis.session.outages import Outages
from metis.session.skills import Skill
from metis.session.spending import Spending
from metis.store import Store
from metis.tools import Watcher, Workspace
from metis.transport import Transport
from metis.wire.call import AdapterOptions

MAX_CALLS = 100
"""How many times a model is asked in one turn at most."""

COMPACT_AT = 0.85
"""The part of a window that may be full before the history is summed up."""


Partial = Literal["all", "text"]
"""What is kept of an answer that was cancelled or broke off: all that has come, or its text."""


class Toolbox(Protocol):
    """The tools of a session, and whoever runs them."""

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """What models are told of."""
        ...

    async def offer(self, servers: Sequence[str]) -> None:
        """Offer the tools of these servers beside the others, and of no more servers."""
        ...

    async def run(self, calls: Sequence[ToolUseBlock], turn: "TurnRef", watcher: Watcher) -> None:
        """Run calls; every one is answered by one TOOL message, also when this is cancelled."""
        ...


class TurnRef(Struct, frozen=True, kw_only=True):
    """Where a call belongs."""

    session_id: str
    turn_id: str


def _now() -> datetime:
    return datetime.now(UTC)


class Setup(Struct, frozen=True, kw_only=True):
    """Everything that a turn works with."""

    store: Store
    transport: Transport
    models: Models
    router: Router
    outages: Outages
    spending: Spending
    budget: Budget = Budget()
    bus: Bus | None = None
    """Who is told what happens."""
    toolbox: Toolbox | None = None
    options: AdapterOptions = AdapterOptions()
    fallbacks: Mapping[str, Sequence[str]] = {}
    """Which models step in, by the id of the one that is down; `*` stands for any."""
    skills: tuple[Skill, ...] = ()
    parent: str | None = None
    """The session that gave this one its task, if it is a worker."""
    tier: Tier | None = None
    """How much thought a worker is to give to it."""
    pointers: Mapping[str, str] = {}
    """Models by the pointers that threads name them with, before those of the house."""
    workspace_path: str = ""
    has_rules: bool = False
    """Whether there may be rules that ask what was spent."""
    compact_at: float | None = COMPACT_AT
    """None never sums up by itself."""
    compact_with: str | None = None
    """The model that writes summaries; None is the one of the turn."""
    max_calls: int = MAX_CALLS
    partial: Partial = "all"
    workspace: Workspace | None = None
    """The folder that files of messages are read from."""
    now: Callable[[], datetime] = _now

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """The tools that models are told of."""
        return () if self.toolbox is None else self.toolbox.tools
