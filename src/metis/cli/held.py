"""Held: with whom a conversation was held, as far as its messages tell."""

from collections.abc import Sequence

from msgspec import Struct

from metis import adapters
from metis.canonical.message import Message, Role
from metis.catalog.model_id import ModelId, is_model_id
from metis.session.models import LOCAL

SIM = "sim-"
"""How the names of the simulator's own models begin."""


class Held(Struct, frozen=True):
    """The model of a conversation, and whether the simulator stood in for it."""

    model: str
    is_simulated: bool = False


def held_with(pinned: str | None, messages: Sequence[Message]) -> Held | None:
    """Who goes on with a conversation: the model that it was set to, else who answered last.

    None if nobody is known yet.
    """
    answers = (each for each in reversed(messages) if each.role is Role.ASSISTANT)
    answer = next((each for each in answers if each.metadata.model), None)
    model = pinned or (None if answer is None else answer.metadata.model)
    if model is None:
        return None
    return Held(model, is_simulated(model) or (answer is not None and _is_stood_in(answer)))


def is_simulated(model: str) -> bool:
    """Whether a model is one of the simulator's own."""
    return model.partition(":")[2].startswith(SIM)


def _is_stood_in(answer: Message) -> bool:
    """Whether the answer of a model that costs money cost nothing: the simulator gave it."""
    usage, model = answer.metadata.usage, answer.metadata.model or ""
    if usage is None or usage.pricing_version != LOCAL or not is_model_id(model):
        return False
    provider = ModelId.parse(model).provider
    return provider in adapters.names() and adapters.profile_of(provider).auth.variable is not None
