"""/cost and /budget: what the conversation has cost, and may."""

from decimal import Decimal, InvalidOperation

from msgspec.structs import astuple
from rich.text import Text

from metis.canonical.errors import InvalidValueError
from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import column_rows, table_rows
from metis.cli.chat.state import ChatState
from metis.cli.chat.statusline import format_cost, format_tokens
from metis.events.budget import SCOPES

_HEAD = ("model", "calls", "in", "from cache", "out", "cost")


async def show_cost(talk: ChatState, words: str) -> None:
    """Show tokens and money of the session, by model."""
    del words
    spent = talk.session.cost()
    cells = [[Text(name, "bold") for name in _HEAD]]
    for model, amount in spent.by_model.items():
        told = format_cost(amount) if model not in spent.unpriced_models else "no price known"
        numbers = map(format_tokens, astuple(spent.used[model]))
        cells.append([Text(cell) for cell in (model, *numbers, told)])
    if len(cells) == 1:
        talk.screen.say("Nothing was spent yet.", "dim")
        return
    talk.screen.write(table_rows(cells, talk.screen.width, right=range(1, len(_HEAD))))
    talk.screen.say(
        f"together {format_cost(spent.total_usd)}; `metis cost` tells of all sessions", "dim"
    )


async def show_budget(talk: ChatState, words: str) -> None:
    """Show the limits, or set what this session may cost."""
    if words:
        await talk.session.set_budget(_parse_limit(words))
    limits, spent = talk.session.budget, talk.session.cost().total_usd
    rows = [
        (scope, "no limit" if limit is None else format_cost(limit))
        for scope, limit in ((scope, limits.limit(scope)) for scope in SCOPES)
    ]
    talk.screen.write(column_rows(rows, talk.screen.width, right=(1,)))
    talk.screen.say(f"{format_cost(spent)} of it are spent in this session", "dim")


def _parse_limit(words: str) -> Decimal | None:
    if words in ("none", "off"):
        return None
    try:
        amount = Decimal(words.lstrip("$"))
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or amount < 0:
        told = f"{words!r} is no amount; write one in dollars, such as /budget 0.50, or none"
        raise InvalidValueError(told)
    return amount


COMMANDS = (
    Command(name="cost", help="what this conversation has cost", run=show_cost),
    Command(name="budget", usage="[USD|none]", help="what it may cost at most", run=show_budget),
)
