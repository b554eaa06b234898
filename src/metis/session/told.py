"""Told: what a session remembers of what it has told, so that nothing is told twice."""

from collections.abc import Sequence
from decimal import Decimal

from msgspec.structs import replace

from metis.canonical.errors import ContextOverflowError
from metis.canonical.message import Message
from metis.canonical.metadata import RoutingDecisionRecord, RoutingMode
from metis.canonical.tools import ToolDefinition
from metis.events.house import BudgetScope
from metis.projection.loss import Loss
from metis.routing import ChainEntry
from metis.session.facts import estimate
from metis.session.files import Files
from metis.session.models import Served
from metis.session.repair import Repairs


class Told:
    """The losses, warnings and repairs of a session so far."""

    def __init__(self) -> None:
        self.repairs = Repairs()
        self.files = Files()
        self.record: RoutingDecisionRecord | None = None
        """Why the model of the last turn was chosen."""
        self.chain: tuple[ChainEntry, ...] = ()
        """Every slot that was asked for it."""
        self.swapped_from: str | None = None
        """The model before the last swap, until a turn has told of it."""
        self._losses: set[tuple[str, str, str, str]] = set()
        self._windows: dict[str, int] = {}
        self._counted = ("", 0, 0, "", ""), 0
        self.warned: dict[BudgetScope, Decimal] = {}
        """The part of each budget that was warned of last."""

    def new_losses(self, model: str, losses: Sequence[Loss]) -> tuple[Loss, ...]:
        """Those losses that were not told of this model yet."""
        new: list[Loss] = []
        for loss in losses:
            key = (model, loss.message_id, loss.path, loss.reason)
            if key not in self._losses:
                self._losses.add(key)
                new.append(loss)
        return tuple(new)

    def tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], served: Served
    ) -> int:
        """About how many tokens a request takes; several ask before each question."""
        first, last = (messages[0].id, messages[-1].id) if messages else ("", "")
        key = (served.id, len(messages), len(tools), first, last)
        if self._counted[0] != key:
            self._counted = key, estimate(messages, tools, served)
        return self._counted[1]

    def window(self, served: Served) -> int:
        """How many tokens a model takes: as tables have it, or less if it has refused so many."""
        known = served.adapter.capabilities(served.id).max_context_tokens
        return min(known, self._windows.get(served.id, known))

    def overflowed(self, served: Served, error: ContextOverflowError, tokens: int) -> None:
        """Learn from a refusal how much a model takes; a server of one's own may take less."""
        stated = error.limit_tokens or tokens
        self._windows[served.id] = max(1, min(self.window(served), stated))

    def with_swap(self, record: RoutingDecisionRecord) -> RoutingDecisionRecord:
        """The record of a turn; the first after a swap names it."""
        before, self.swapped_from = self.swapped_from, None
        if before is None or record.mode is not RoutingMode.MANUAL:
            return record
        return replace(record, reason=f"{record.reason}: user swap from {before}")
