"""Budgets: limits on spending, and whether the next model call is allowed."""

from collections.abc import Mapping
from decimal import Decimal

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.events.system_events import BudgetExceeded, BudgetScope, BudgetWarned

SCOPES: tuple[BudgetScope, ...] = ("session", "day", "month")


class Budget(Struct, frozen=True, kw_only=True):
    """Limits in US dollars; None is no limit. Days and months are those of UTC."""

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
    """The amounts spent so far, in US dollars."""

    session_usd: Decimal = Decimal(0)
    day_usd: Decimal = Decimal(0)
    month_usd: Decimal = Decimal(0)

    def amount(self, scope: BudgetScope) -> Decimal:
        """Return the amount of a scope."""
        return {"session": self.session_usd, "day": self.day_usd, "month": self.month_usd}[scope]


class BudgetVerdict(Struct, frozen=True, kw_only=True):
    """The result of a check, as event payloads; the call is allowed if no limit is exceeded."""

    exceeded: tuple[BudgetExceeded, ...] = ()
    warnings: tuple[BudgetWarned, ...] = ()


def check_budget(
    budget: Budget, spending: Spending, *, warned: Mapping[BudgetScope, Decimal] | None = None
) -> BudgetVerdict:
    """Compare spending with a budget, before a call.

    A limit that is reached stops the call. Of the warning levels that are reached only the highest
    is reported, once: `warned` has the level that was last reported for each scope.
    """
    exceeded: list[BudgetExceeded] = []
    warnings: list[BudgetWarned] = []
    for scope in SCOPES:
        limit, amount = budget.limit(scope), spending.amount(scope)
        if limit is None:
            continue
        # Spending that equals the limit stops the call, because its cost would exceed the limit.
        if amount >= limit:
            exceeded.append(BudgetExceeded(scope=scope, limit_usd=limit, spent_usd=amount))
            continue
        reported = (warned or {}).get(scope, Decimal(0))
        new_levels = [
            level for level in budget.warn_at if amount >= level * limit and level > reported
        ]
        if new_levels:
            warnings.append(
                BudgetWarned(scope=scope, level=max(new_levels), limit_usd=limit, spent_usd=amount)
            )
    return BudgetVerdict(exceeded=tuple(exceeded), warnings=tuple(warnings))
