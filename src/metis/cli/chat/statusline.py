"""Statusline: who answers, why, how full the window is and what it has cost."""

from decimal import Decimal

from metis.canonical.metadata import RoutingDecisionRecord, RoutingMode
from metis.cli.text import one_line

_WHY = {
    RoutingMode.MANUAL: "your choice",
    RoutingMode.OVERRIDE: "asked for once",
    RoutingMode.DEFAULT: "default",
    RoutingMode.PATTERN: "learned",
    RoutingMode.DELEGATE: "for a worker",
}
_CENT = Decimal("0.01")
_THOUSAND = 1000


def routing_reason(record: RoutingDecisionRecord) -> str:
    """Why a model was picked, in a word or two."""
    if record.mode is RoutingMode.RULE:
        return f"rule {record.rule_name}" if record.rule_name else "a rule"
    return _WHY.get(record.mode, str(record.mode))


def format_cost(amount: Decimal) -> str:
    """An amount in dollars, with as many digits as it needs to be told from nothing.

    >>> money(Decimal("0.0012345")), money(Decimal("1.5")), money(Decimal(0))
    ('$0.0012', '$1.50', '$0')
    """
    if not amount:
        return "$0"
    if abs(amount) >= _CENT:
        return f"${amount:.2f}"
    digits = 1 - amount.adjusted()
    return f"${amount:.{digits}f}"


def format_tokens(number: int) -> str:
    """A count of tokens in short.

    >>> tokens(812), tokens(15_300), tokens(1_000_000)
    ('812', '15k', '1M')
    """
    if number < _THOUSAND:
        return str(number)
    if number < _THOUSAND**2:
        return (
            f"{number / _THOUSAND:.0f}k"
            if number >= 10 * _THOUSAND
            else f"{number / _THOUSAND:.1f}k"
        )
    return f"{number / _THOUSAND**2:.1f}M".replace(".0M", "M")


def window_share(used: int, window: int) -> str:
    """How full a window is.

    >>> share(12, 200_000), share(50_000, 200_000)
    ('<1% of 200k', '25% of 200k')
    """
    part = 100 * used // window if window else 0
    return f"{part}% of {format_tokens(window)}" if part else f"<1% of {format_tokens(window)}"


def fit_parts(parts: list[str], width: int) -> str:
    """Parts on one line; those at the end give way where there is no room."""
    kept = [part for part in parts if part]
    while len(kept) > 1 and len(" · ".join(kept)) > width:
        kept.pop()
    return one_line(" · ".join(kept), width)
