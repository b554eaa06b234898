"""Memory: the turns of conversations that were sent before, so that a request writes what is new.

Messages never change, so the turns that they became do not either. A conversation is known again by
its messages being the same objects.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from operator import is_

from msgspec import Struct

from metis.adapters.dialect import Dialect
from metis.canonical.message import Message
from metis.projection.loss import Loss
from metis.projection.target import Target
from metis.wire.codec import TurnWriter

CONVERSATIONS = 16
"""How many conversations an adapter remembers; the one that rested longest is forgotten first."""


class Sent(Struct, frozen=True, gc=False):
    """A conversation as far as it was sent to a target."""

    messages: tuple[Message, ...]
    target: Target
    calls: AbstractSet[str] | None
    """The calls in it, if each has its result: then what follows can be projected alone."""
    dialect: Dialect
    losses: list[Loss]
    turns: TurnWriter
    has_large_images: bool = False
    """Whether images are in it that would be too large where there are many (T90)."""


class Memory:
    """The conversations that an adapter sent last."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], Sent] = {}
        self._narrow: dict[Target, Target] = {}

    def find(self, messages: Sequence[Message], target: Target) -> Sent | None:
        """What was sent of a conversation to the same target, if it goes on from there."""
        if not messages:
            return None
        sent = self._sent.get((messages[0].id, target.model))
        if sent is None or sent.target is not target or len(sent.messages) > len(messages):
            return None
        same = map(is_, sent.messages, islice(messages, len(sent.messages)))
        return sent if all(same) else None

    def narrow(self, target: Target, narrow: Target) -> Target:
        """Remember what becomes of a target when there are many images; gives that."""
        return self._narrow.setdefault(target, narrow)

    def narrowed(self, messages: Sequence[Message], target: Target) -> Target:
        """The target of a conversation, which many images had made narrower when it was sent."""
        sent = self._sent.get((messages[0].id, target.model)) if messages else None
        if sent is None or sent.target is target or not self._narrow:
            return target
        narrow = self._narrow.get(target)
        if narrow is None or self.find(messages, narrow) is None:
            return target
        return narrow

    def changed(self, messages: Sequence[Message], model: str) -> Message | None:
        """The first message of a conversation that is not as it was when it was sent."""
        sent = self._sent.get((messages[0].id, model)) if messages else None
        for old, new in zip(() if sent is None else sent.messages, messages, strict=False):
            if old is not new and (old.id != new.id or old.digest() != new.digest()):
                return new
        return None

    def keep(self, sent: Sent) -> None:
        """Remember what was sent."""
        key = (sent.messages[0].id, sent.target.model)
        self._sent.pop(key, None)
        self._sent[key] = sent
        if len(self._sent) > CONVERSATIONS:
            self._sent.pop(next(iter(self._sent), key), None)
