"""Reasoning: how much a model shall think, as one option, and how protocols say it."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.catalog.reasoning import EFFORTS, Effort, Form
from metis.wire.shape import Wire, maybe_count, maybe_object


class Reasoning(Struct, frozen=True):
    """How much a model shall think: a word, or a number of tokens; neither leaves it to the model.

    >>> Reasoning("low")
    Reasoning(effort='low', budget_tokens=None)
    """

    effort: Effort | None = None
    budget_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no provider could be told."""
        if self.effort is not None and self.effort not in EFFORTS:
            fault = f"{self.effort!r} is no effort; there are {', '.join(EFFORTS)}"
            raise InvalidValueError(fault, path="$.effort")
        if self.budget_tokens is not None and self.budget_tokens < 1:
            fault = "a budget is a number of tokens above zero; the effort 'none' is no thinking"
            raise InvalidValueError(fault, path="$.budget_tokens")

    @property
    def is_off(self) -> bool:
        """Whether it shall not think at all."""
        return self.effort == "none"


OFF = Reasoning("none")
"""No thinking."""


class Spoken(Struct, frozen=True):
    """What the keys of a request say of thinking, and which keys say it."""

    reasoning: Reasoning | None = None
    keys: frozenset[str] = frozenset()


SILENT = Spoken()
"""Nothing."""


def _silent(_: Mapping[str, Any]) -> Spoken:
    return SILENT


def _mute(_: Wire, _reasoning: Reasoning | None, _form: Form | None) -> None:
    """Say nothing."""


class ReasoningKeys(Struct, frozen=True):
    """How one protocol says how much a model shall think."""

    decode: Callable[[Mapping[str, Any]], Spoken] = _silent
    spell: Callable[[Wire, Reasoning | None, Form | None], None] = _mute
    """Say it in a request, in one of the forms of the protocol; None takes it out."""

    def write(self, wire: Wire, reasoning: Reasoning | None, *, is_free: bool) -> None:
        """Bring a request in line with the option; a spelling that says the same is kept.

        Without the option a spelling stays where `is_free` says that nobody decoded it.
        """
        if reasoning is None and is_free:
            return
        if reasoning != self.decode(wire).reasoning:
            self.spell(wire, reasoning, None)


def effort_of(value: object) -> Effort | None:
    """The word, if it is one."""
    return value if isinstance(value, str) and value in EFFORTS else None


def budget_of(value: object) -> int | None:
    """The number of tokens, if it is one that a model can be given."""
    return maybe_count(value) or None


def put_inside(wire: Wire, name: str, changes: Mapping[str, Any]) -> None:
    """Set keys of an object in a request, or take them away; an empty one is not sent."""
    inner = dict(maybe_object(wire.get(name)))
    for key, value in changes.items():
        inner.pop(key, None)
        if value is not None:
            inner[key] = value
    wire.pop(name, None)
    if inner:
        wire[name] = inner
