"""Purse: whether there is money left for the next call, asked before it is made."""

from metis.canonical.errors import BudgetExceededError
from metis.events import Spent, judge
from metis.session.conversation import Conversation
from metis.session.setup import Setup
from metis.session.told import Told
from metis.session.trace import Trace


class Purse:
    """Holds what was spent against the limits of a session, a day and a month."""

    def __init__(self, setup: Setup, conversation: Conversation, told: Told, trace: Trace) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._trace = trace

    async def check(self) -> list[str]:
        """The warnings of limits that are nearly reached, each once.

        Raises:
            BudgetExceededError: a limit is reached.
        """
        budget = self._conversation.budget(self._setup.budget)
        own = self._conversation
        spent = Spent(session_usd=own.cost().total_usd + own.delegated_usd)
        if budget.day_usd is not None or budget.month_usd is not None:
            spent = await self._setup.spending.spent(spent.session_usd)
        verdict = judge(budget, spent, warned=self._told.warned)
        for each in verdict.exceeded:
            self._trace.emit(each)
            raise BudgetExceededError(
                each.scope, limit_usd=each.limit_usd, spent_usd=each.spent_usd
            )
        for each in verdict.warnings:
            self._told.warned[each.scope] = each.level
            self._trace.emit(each)
        return [
            f"{each.spent_usd} of the {each.limit_usd} USD of this {each.scope} are spent"
            for each in verdict.warnings
        ]
