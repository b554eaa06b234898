"""Thinking: how much models shall think, in the words that people use for it."""

from metis.canonical.errors import InvalidValueError
from metis.catalog.reasoning import EFFORTS
from metis.wire.reasoning import OFF, Reasoning

AUTO = "auto"
"""The word that leaves it to the model, as if nothing was said."""
LEVELS = ("off", "on", *EFFORTS[1:])
"""The other words."""


def read_thinking(words: str) -> Reasoning | None:
    """How much to think: a word, or a number of tokens; None is what the model does by itself.

    >>> read_thinking("high"), read_thinking("4000"), read_thinking("auto")
    (Reasoning(effort='high', budget_tokens=None), Reasoning(effort=None, budget_tokens=4000), None)

    Raises:
        InvalidValueError: it is neither.
    """
    word = words.strip().lower()
    if word == AUTO:
        return None
    if word in {"off", "none"}:
        return OFF
    if word == "on":
        return Reasoning()
    for effort in EFFORTS:
        if word == effort:
            return Reasoning(effort)
    if word.isascii() and word.isdigit() and int(word):
        return Reasoning(None, int(word))
    known = ", ".join((*LEVELS, AUTO))
    raise InvalidValueError(f"thinking is one of {known}, or a number of tokens, not {words!r}")


def told_thinking(reasoning: Reasoning | None) -> str:
    """The same for people.

    >>> told_thinking(Reasoning("high")), told_thinking(Reasoning(None, 4000)), told_thinking(None)
    ('high', '4000 tokens', 'auto')
    """
    if reasoning is None:
        return AUTO
    if reasoning.is_off:
        return "off"
    if reasoning.budget_tokens is not None:
        return f"{reasoning.budget_tokens} tokens"
    return reasoning.effort or "on"
