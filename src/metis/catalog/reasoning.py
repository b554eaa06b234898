"""Reasoning: how a model can be told how much to think, and what it refuses while it does."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError
from metis.canonical.problem import Problem

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model shall think, from not at all to all it can."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""The words, from the least to the most."""

Form = Literal[
    "adaptive", "between", "budget", "default", "effort", "level", "reasoning", "think", "thinking"
]
"""How a request says it; a model without a form cannot be told."""

BUDGETS: Mapping[Effort, int] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 65_536,
}
"""About how many tokens a word is worth, where a model counts them."""


class ThinkingRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the thinking of some models."""

    models: tuple[str, ...]
    form: Form | None = None
    efforts: tuple[Effort, ...] = ()
    """The words that it takes; `none` is among them if it can do without thinking."""
    budget: tuple[int, int] | None = None
    """The least and the most tokens that it can be given to think."""
    is_inside: bool = False
    """Whether a budget has to be smaller than the limit of the whole answer."""
    starts: bool = False
    """Whether it thinks unless it is told not to."""
    refuses: tuple[str, ...] = ()
    """Options that it does not take while it thinks."""
    takes_force: bool = True
    """Whether it can be made to call a tool while it thinks."""
    lone_in: tuple[str, ...] = ()
    """The protocols in which it cannot think and have tools at once."""
    begins_loops: bool = False
    """Whether a call that is being answered has to follow a thought."""

    @property
    def words(self) -> tuple[Effort, ...]:
        """The words that make it think."""
        return tuple(word for word in self.efforts if word != "none")

    @property
    def can_rest(self) -> bool:
        """Whether it can be told not to think."""
        return "none" in self.efforts

    def nearest(self, effort: Effort) -> Effort:
        """The word that it takes for another one; of two that are equally near the higher.

        Who asks for thinking gets some, and who asks for none the least that there is.
        """
        if effort in self.efforts:
            return effort
        place = EFFORTS.index(effort)
        return min(
            self.words,
            key=lambda word: (abs(EFFORTS.index(word) - place), -EFFORTS.index(word)),
        )


def effort_for(budget_tokens: int) -> Effort:
    """The word that comes near a number of tokens."""
    if budget_tokens <= 0:
        return "none"
    for word, worth in BUDGETS.items():
        if budget_tokens <= worth:
            return word
    return "max"


class ReasoningTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of all models; the first that fits a model holds for it."""

    rules: tuple[ThinkingRule, ...] = ()

    def of(self, model: str) -> ThinkingRule | None:
        """The rule of a model, given by its canonical id."""
        return next((rule for rule in self.rules if _holds(rule, model)), None)


def _holds(rule: ThinkingRule, model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in rule.models)


def read_reasoning(data: Mapping[str, object]) -> ReasoningTable:
    """Read the rules from plain data, as a TOML file gives them."""
    try:
        return msgspec.convert(data, ReasoningTable)
    except msgspec.ValidationError as error:
        problem = Problem("$", "T206", str(error))
        raise CatalogDataError("the rules of thinking cannot be used", [problem]) from None
