"""Room: what is done so that a question fits into the window of a model."""

import logging

from metis.canonical.errors import ContextOverflowError, ProviderError
from metis.session.calling import Calling
from metis.session.compaction import Compaction, Trigger
from metis.session.conversation import Conversation
from metis.session.models import Served
from metis.session.setup import Setup
from metis.session.telling import Telling
from metis.session.told import Told

log = logging.getLogger("metis.session")

_ATTEMPTS = 2
"""A refused history is summed up with its newest part left, and then without."""


class Room:
    """Makes room for the questions of one turn."""

    def __init__(
        self,
        setup: Setup,
        conversation: Conversation,
        told: Told,
        telling: Telling,
        calling: Calling,
    ) -> None:
        self._setup = setup
        self._told = told
        self._telling = telling
        self._calling = calling
        self._compaction = Compaction(
            setup, conversation, told, telling.trace, calling.check_budget
        )

    async def make(self, served: Served) -> None:
        """Sum up what is old if the next question comes too near to the limit of the model.

        If that fails, the question is asked all the same: there may be room enough, or another
        model may have to step in.
        """
        if not self._compaction.is_due(served):
            return
        try:
            await self._compact(served, "limit")
            if not self._compaction.fits(served):
                await self._compact(served, "limit", tightly=True)
        except ProviderError as error:
            log.warning("the history was not summed up: %s", type(error).__name__)

    async def make_after(self, error: ContextOverflowError, served: Served, overflows: int) -> None:
        """Sum up what is old because the model did not take it all.

        Raises:
            ContextOverflowError: what is to be answered now is too long by itself.
        """
        self._told.overflowed(served, error, self._calling.tokens(served))
        if self._setup.compact_at is None:
            raise error
        for attempt in range(overflows, _ATTEMPTS + 1):
            if await self._compact(served, "overflow", tightly=attempt > 1):
                return
        raise _too_long(error, served, self._told.window(served)) from error

    async def _compact(self, served: Served, trigger: Trigger, *, tightly: bool = False) -> int:
        count = await self._compaction.run(served, trigger, tightly=tightly)
        if count:
            full = "full" if trigger == "overflow" else "nearly full"
            text = f"the window is {full}: {count} messages were summed up"
            self._telling.warn("compacted", text)
        return count


def _too_long(
    error: ContextOverflowError, served: Served, window_tokens: int
) -> ContextOverflowError:
    text = (
        f"{error.text} (what is to be answered now does not fit into the {window_tokens} tokens of "
        f"{served.id}, even if all that is older is summed up: ask for less at once, or take a "
        "model with a larger window)"
    )
    return ContextOverflowError(
        text, provider=error.provider, status=error.status, code=error.code, kind=error.kind
    )
