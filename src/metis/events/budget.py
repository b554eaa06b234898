"""Budgets: limits on spending, and whether the next model call is allowed."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, localcontext

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.catalog.currency import EXACT_CONTEXT
from metis.events.event import Event
from metis.events.system_events import BudgetExceeded, BudgetScope, BudgetWarned
from metis.events.turn_events import LlmCallCompleted, LlmCallFailed, SessionCompacted

SCOPES: tuple[BudgetScope, ...] = ("session", "day", "month")


class Budget(Struct, frozen=True, kw_only=True):
    """Limits in US dollars; None stands for no limit. Days and months are those of UTC."""

    session_usd: Decimal | None = None
    day_usd: Decimal | None = None
    month_usd: Decimal | None = None
    warn_at: tuple[Decimal, ...] = (Decimal("0.8"), Decimal("0.95"))
    """The fractions of a limit at which a warning is given."""

    def __post_init__(self) -> None:
        """Refuse negative limits and warning levels outside of 0 to 1."""
        for scope in SCOPES:
            limit = self.limit(scope)
            if limit is not None and not (limit.is_finite() and limit >= 0):
                raise InvalidValueError(f"{limit} is not a valid limit", path=f"$.{scope}_usd")
        for level in self.warn_at:
            if not 0 < level < 1:
                raise InvalidValueError(f"{level} is not between 0 and 1", path="$.warn_at")

    def limit(self, scope: BudgetScope) -> Decimal | None:
        """Return the limit of a scope."""
        return {"session": self.session_usd, "day": self.day_usd, "month": self.month_usd}[scope]


class Spending(Struct, frozen=True, kw_only=True):
    """What was spent so far, in US dollars."""

    session_usd: Decimal = Decimal(0)
    day_usd: Decimal = Decimal(0)
    month_usd: Decimal = Decimal(0)

    def amount(self, scope: BudgetScope) -> Decimal:
        """Return the amount of a scope."""
        return {"session": self.session_usd, "day": self.day_usd, "month": self.month_usd}[scope]


class BudgetVerdict(Struct, frozen=True, kw_only=True):
    """Whether the next call is allowed, with event payloads that are ready to be emitted."""

    exceeded: tuple[BudgetExceeded, ...] = ()
    warnings: tuple[BudgetWarned, ...] = ()

    @property
    def is_allowed(self) -> bool:
        """Whether the next call is allowed."""
        return not self.exceeded


def check_budget(
    budget: Budget, spending: Spending, *, warned: Mapping[BudgetScope, Decimal] | None = None
) -> BudgetVerdict:
    """Compare spending with a budget, before a call.

    A limit that is reached stops the call. Of the warning levels that are passed only the highest
    is reported, once: `warned` holds the level that was reported last for each scope.
    """
    exceeded: list[BudgetExceeded] = []
    warnings: list[BudgetWarned] = []
    for scope in SCOPES:
        limit, amount = budget.limit(scope), spending.amount(scope)
        if limit is None:
            continue
        if amount >= limit:
            exceeded.append(BudgetExceeded(scope=scope, limit_usd=limit, spent_usd=amount))
            continue
        reported = (warned or {}).get(scope, Decimal(0))
        passed = [level for level in budget.warn_at if amount >= level * limit and level > reported]
        if passed:
            warnings.append(
                BudgetWarned(scope=scope, level=max(passed), limit_usd=limit, spent_usd=amount)
            )
    return BudgetVerdict(exceeded=tuple(exceeded), warnings=tuple(warnings))


def spending_of(events: Iterable[Event], *, session_id: str, now: datetime) -> Spending:
    """Sum the costs of the calls among events: of a session, this UTC day, this UTC month."""
    # Limits must not depend on the time zone of the machine.
    today = now.astimezone(UTC).date()
    session = day = month = Decimal(0)
    with localcontext(EXACT_CONTEXT):
        for event in events:
            if not isinstance(event.payload, LlmCallCompleted | LlmCallFailed | SessionCompacted):
                continue
            amount, at = event.payload.cost_usd, event.timestamp.astimezone(UTC).date()
            session += amount if event.session_id == session_id else 0
            day += amount if at == today else 0
            month += amount if (at.year, at.month) == (today.year, today.month) else 0
    return Spending(session_usd=session, day_usd=day, month_usd=month)
