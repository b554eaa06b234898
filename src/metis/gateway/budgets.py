"""Budgets of keys: what a tenant may spend in a day or a month, over every path of the gateway.

A call begins only if what was spent and what the running calls may cost is below the budget; its
true cost replaces the reservation when it ends. With a store, what other workers and earlier
processes spent counts as well: their exchanges are read from it every few seconds.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from msgspec import Struct

from metis.canonical.errors import CatalogError, InvalidValueError, RateLimitError, StoreError
from metis.canonical.ids import int_to_ulid
from metis.canonical.metadata import Usage
from metis.catalog.cost import price
from metis.gateway.client_sessions import tenant_key
from metis.gateway.config import ClientKey, GatewayConfig, KeyBudget
from metis.gateway.exchange import Exchange
from metis.store import Store

_REFRESH_S = 2.0
_SETTLED_AFTER = timedelta(minutes=15)
"""Stored exchanges older than this are final and not read again."""
_RANDOM_BITS = 80
_TOO_MANY = 429


class Reservation(Struct):
    """What a running call may cost, until its true cost is known."""

    account: "_Account"
    amount: Decimal


class _Account(Struct):
    """The spending of one tenant in the current period."""

    start: datetime
    base: Decimal = Decimal(0)
    """The cost of exchanges that are older than the horizon."""
    horizon: str = ""
    recent: Decimal = Decimal(0)
    """The cost of stored exchanges that are newer than the horizon."""
    unstored: dict[str, Decimal] = {}
    """Costs of exchanges of this process that were not read from the store yet."""
    reserved: Decimal = Decimal(0)
    refreshed_s: float = -_REFRESH_S

    @property
    def spent(self) -> Decimal:
        return self.base + self.recent + sum(self.unstored.values(), Decimal(0))


def _now() -> datetime:
    return datetime.now(UTC)


class Budgets:
    """The accounts of all tenants whose key has a budget."""

    def __init__(self, store: Store | None = None, now: Callable[[], datetime] = _now) -> None:
        self._store = store
        self._now = now
        self._accounts: dict[str, _Account] = {}

    async def reserve(self, key: ClientKey, amount: Decimal) -> Reservation | None:
        """Reserve what a call may cost; None if the key has no budget.

        Raises:
            RateLimitError: the budget is used up.
        """
        budget = key.budget
        if budget is None:
            return None
        account = await self._account(tenant_key(key.tenant), budget)
        if account.spent + account.reserved >= budget.usd:
            end = _period(self._now(), budget)[1]
            text = (
                f"the budget of this key is used up: {account.spent:.4f} of {budget.usd} USD "
                f"in this {budget.period} are spent, and {account.reserved:.4f} are reserved"
            )
            seconds = max(1.0, (end - self._now()).total_seconds() // 1)
            raise RateLimitError(
                text, status=_TOO_MANY, code="insufficient_quota", retry_after_s=seconds
            )
        account.reserved += amount
        return Reservation(account, amount)

    def settle(self, reservation: Reservation, exchange_id: str, cost: Decimal) -> None:
        """Replace a reservation by the actual cost of the call."""
        account = reservation.account
        account.reserved -= reservation.amount
        if self._store is None or exchange_id < account.horizon:
            account.base += cost
        else:
            account.unstored[exchange_id] = cost

    async def _account(self, tenant: str, budget: KeyBudget) -> _Account:
        start = _period(self._now(), budget)[0]
        account = self._accounts.get(tenant)
        if account is None or account.start != start:
            reserved = Decimal(0) if account is None else account.reserved
            account = _Account(start, horizon=_first_ulid(start), reserved=reserved)
            self._accounts[tenant] = account
        if self._store is not None and time.monotonic() - account.refreshed_s >= _REFRESH_S:
            account.refreshed_s = time.monotonic()
            await self._refresh(tenant, account, self._store)
        return account

    async def _refresh(self, tenant: str, account: _Account, store: Store) -> None:
        try:
            costs = await store.exchange_costs(tenant, account.horizon)
        except StoreError:
            return  # what this process spent still counts
        horizon = max(account.horizon, _first_ulid(self._now() - _SETTLED_AFTER))
        account.recent = Decimal(0)
        for exchange_id, cost in costs.items():
            account.unstored.pop(exchange_id, None)
            if exchange_id < horizon:
                account.base += cost
            else:
                account.recent += cost
        account.horizon = horizon


def _period(now: datetime, budget: KeyBudget) -> tuple[datetime, datetime]:
    """Return the beginning and the end of the current day or month, in UTC."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.period == "day":
        return day, day + timedelta(days=1)
    month = day.replace(day=1)
    return month, (month + timedelta(days=32)).replace(day=1)


def _first_ulid(at: datetime) -> str:
    """Return the smallest id of a moment: ids begin with their time."""
    return int_to_ulid(int(at.timestamp() * 1000) << _RANDOM_BITS)


def possible_cost(
    exchange: Exchange, size: int, output_tokens: int, config: GatewayConfig
) -> Decimal:
    """Return the estimated cost of a call, from the size of its body and its output limit.

    Raises:
        RateLimitError: the model has no price, and the settings refuse calls without one.
    """
    prices = config.prices.get(exchange.model_id) or config.prices.get(exchange.model)
    tokens = max(1, size // 4)
    if prices is not None:
        amount = tokens * prices.input_per_mtok_usd + output_tokens * prices.output_per_mtok_usd
        return amount / 1_000_000 + prices.per_call_usd
    usage = Usage(
        cost_usd=Decimal(0),
        input_tokens=tokens,
        output_tokens=output_tokens,
        latency_ms=0,
        pricing_version="",
    )
    try:
        return price(usage, exchange.model_id, exchange.started_at).cost_usd
    except (CatalogError, InvalidValueError):
        if config.unpriced == "allow":
            return Decimal(0)
        text = (
            f"there is no price for {exchange.model_id or exchange.path}, and this key has a "
            'budget: state one under [prices], or set unpriced = "allow"'
        )
        raise RateLimitError(text, status=_TOO_MANY, code="insufficient_quota") from None
