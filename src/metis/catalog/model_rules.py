"""Rules for single models: output formats, reasoning levels and refused options.

Each table is a list of rules with model patterns; the first rule that matches a model applies.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError, Problem

OutputKind = Literal["schema", "object"]
"""JSON that keeps to a schema, or any JSON object."""
SchemaDialect = Literal["json", "openapi"]
"""JSON Schema, or the dialect of OpenAPI with types in capitals."""


class OutputRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What some models can be told of their answer."""

    models: tuple[str, ...] = ()
    takes: tuple[OutputKind, ...] = ()
    """What they are made to write by the provider itself."""
    keeps_to_schemas: bool = True
    """Whether they can be made to keep to a schema where that is said with a flag."""
    beside_tools: bool = True
    """Whether they take that in a request with tools, too."""
    dialect: SchemaDialect = "json"
    """How a schema is written for them."""
    wants_word: bool = False
    """Whether the conversation must speak of JSON when any object is asked for."""


ALL_OUTPUTS = OutputRule(takes=("schema", "object"))
"""Both, with tools and without."""
OBJECT_OUTPUTS = OutputRule(takes=("object",))
"""Any object, but no schema."""


class OutputTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of all models; the first that fits a model holds for it."""

    rules: tuple[OutputRule, ...] = ()

    def rule_for(self, model: str) -> OutputRule | None:
        """The rule of a model, given by its canonical id."""
        return next((rule for rule in self.rules if _is_output_rule_for(rule, model)), None)


def _is_output_rule_for(rule: OutputRule, model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in rule.models)


def read_output_rules(data: Mapping[str, object]) -> OutputTable:
    """Read the rules from plain data, as a TOML file gives them."""
    try:
        return msgspec.convert(data, OutputTable)
    except msgspec.ValidationError as error:
        problem = Problem("$", "T117", str(error))
        raise CatalogDataError("the rules of output cannot be used", [problem]) from None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model shall think, from not at all to all it can."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""The words, from the least to the most."""

ReasoningForm = Literal[
    "adaptive", "between", "budget", "default", "effort", "level", "reasoning", "think", "thinking"
]
"""How a request says it; a model without a form cannot be told."""

EFFORT_BUDGETS: Mapping[Effort, int] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 65_536,
}
"""About how many tokens a word is worth, where a model counts them."""


class ReasoningRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the thinking of some models."""

    models: tuple[str, ...]
    form: ReasoningForm | None = None
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
    def enabling_efforts(self) -> tuple[Effort, ...]:
        """The words that make it think."""
        return tuple(word for word in self.efforts if word != "none")

    @property
    def can_disable(self) -> bool:
        """Whether it can be told not to think."""
        return "none" in self.efforts

    def nearest_effort(self, effort: Effort) -> Effort:
        """The word that it takes for another one; of two that are equally near the higher.

        Who asks for thinking gets some, and who asks for none the least that there is.
        """
        if effort in self.efforts:
            return effort
        place = EFFORTS.index(effort)
        return min(
            self.enabling_efforts,
            key=lambda word: (abs(EFFORTS.index(word) - place), -EFFORTS.index(word)),
        )


def effort_for(budget_tokens: int) -> Effort:
    """The word that comes near a number of tokens."""
    if budget_tokens <= 0:
        return "none"
    for word, worth in EFFORT_BUDGETS.items():
        if budget_tokens <= worth:
            return word
    return "max"


class ReasoningTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of all models; the first that fits a model holds for it."""

    rules: tuple[ReasoningRule, ...] = ()

    def rule_for(self, model: str) -> ReasoningRule | None:
        """The rule of a model, given by its canonical id."""
        return next((rule for rule in self.rules if _holds(rule, model)), None)


def _holds(rule: ReasoningRule, model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in rule.models)


def read_reasoning_rules(data: Mapping[str, object]) -> ReasoningTable:
    """Read the rules from plain data, as a TOML file gives them."""
    try:
        return msgspec.convert(data, ReasoningTable)
    except msgspec.ValidationError as error:
        problem = Problem("$", "T206", str(error))
        raise CatalogDataError("the rules of thinking cannot be used", [problem]) from None


class _Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule: the options, and the models that it holds for."""

    models: tuple[str, ...]
    options: tuple[str, ...]
    excluded: tuple[str, ...] = msgspec.field(default=(), name="except")

    def holds_for(self, model: str) -> bool:
        return _matches(model, self.models) and not _matches(model, self.excluded)


def _matches(model: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)


class _Least(Struct, frozen=True, forbid_unknown_fields=True):
    """How long a prefix some models keep at least."""

    models: tuple[str, ...]
    tokens: int


class OptionRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What models refuse, and which options exclude each other."""

    refuses: tuple[_Row, ...] = ()
    conflicts: tuple[_Row, ...] = ()
    least_cached: tuple[_Least, ...] = ()

    def refused_options(self, model: str) -> frozenset[str]:
        """The options that a model, given by its canonical id, does not take."""
        rows = (row for row in self.refuses if row.holds_for(model))
        return frozenset(option for row in rows for option in row.options)

    def min_cached_tokens(self, model: str) -> int:
        """How many tokens a prefix needs for a model to keep it; 0 if that is not known."""
        fitting = (row.tokens for row in self.least_cached if _matches(model, row.models))
        return next(fitting, 0)

    def exclusive_options(self, model: str) -> tuple[tuple[str, ...], ...]:
        """Options of which a model takes one only: the first of each group that is stated."""
        return tuple(row.options for row in self.conflicts if row.holds_for(model))


def read_option_rules(data: Mapping[str, object]) -> OptionRules:
    """Read the rules from plain data, as a TOML file gives them."""
    try:
        return msgspec.convert(data, OptionRules)
    except msgspec.ValidationError as error:
        problem = Problem("$", "T183", str(error))
        raise CatalogDataError("the refusals cannot be used", [problem]) from None
