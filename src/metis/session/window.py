"""Window: how much of a model's window a conversation takes, and why that model was chosen."""

from msgspec import Struct

from metis.canonical.errors import CatalogError, RoutingError
from metis.canonical.metadata import RoutingDecisionRecord
from metis.routing import ChainEntry
from metis.session.conversation import Conversation
from metis.session.facts import estimate, facts_of
from metis.session.inherited import sticky
from metis.session.models import Served
from metis.session.setup import Setup
from metis.session.told import Told


class WindowUse(Struct, frozen=True, kw_only=True):
    """How full the window of a model is; the tokens are an estimate."""

    model: str
    tokens: int
    window_tokens: int

    @property
    def part(self) -> float:
        """The part of the window that is taken, from 0; more than 1 does not fit."""
        return self.tokens / self.window_tokens


class Why(Struct, frozen=True, kw_only=True):
    """Why a model was chosen."""

    record: RoutingDecisionRecord
    chain: tuple[ChainEntry, ...] = ()
    """Every slot that was asked, the winner last; empty for a turn of an earlier run."""


def use_of(
    setup: Setup, conversation: Conversation, told: Told, model: str | None
) -> WindowUse | None:
    """How full the window of a model is, or of the one that would answer next."""
    served = _served(setup, conversation, model)
    if served is None:
        return None
    tokens = estimate(conversation.messages, setup.tools, served)
    return WindowUse(model=served.id, tokens=tokens, window_tokens=told.window(served))


def why(told: Told, conversation: Conversation) -> Why | None:
    """The reason of the last turn: of this run, or as its last answer tells it."""
    if told.record is not None:
        return Why(record=told.record, chain=told.chain)
    for message in reversed(conversation.path):
        if message.metadata.routing is not None:
            return Why(record=message.metadata.routing)
    return None


def _served(setup: Setup, conversation: Conversation, model: str | None) -> Served | None:
    models = setup.models
    if model is not None:
        return models.served(models.resolve(model))
    try:
        named = sticky(setup, conversation)
        if named is not None:
            return models.served(named)
        facts = facts_of(conversation.seen, setup.tools, setup.now())
        return models.served(setup.router.decide(facts).require())
    except (CatalogError, RoutingError):
        return None
