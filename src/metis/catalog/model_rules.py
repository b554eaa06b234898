"""Rules for single models: output formats, reasoning levels and rejected options.

Each table is a list of rules with patterns of canonical model ids. For output and reasoning, the
first rule that matches a model applies.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError, Problem

OutputKind = Literal["schema", "object"]
"""JSON that matches a schema, or any JSON object."""
SchemaDialect = Literal["json", "openapi"]
"""JSON Schema, or the OpenAPI dialect with upper-case types."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks, from not at all to the maximum."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""The levels in ascending order."""
ReasoningForm = Literal[
    "adaptive", "between", "budget", "default", "effort", "level", "reasoning", "think", "thinking"
]
"""The form of the level in a request; models without a form do not accept one."""
EFFORT_BUDGETS: Mapping[Effort, int] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 65_536,
}
"""The token budgets for the levels, for models that accept only a budget."""

_Table = TypeVar("_Table", bound=Struct)


def _matches(model: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)


class OutputRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The structured output that some models support."""

    models: tuple[str, ...] = ()
    supports: tuple[OutputKind, ...] = ()
    """The kinds of output that the provider enforces."""
    strict_schemas: bool = True
    """Whether the flag that enforces a schema is supported, if the API has one."""
    with_tools: bool = True
    """Whether structured output is supported in a request with tools."""
    dialect: SchemaDialect = "json"
    """The dialect of schemas for these models."""
    needs_json_mention: bool = False
    """Whether the conversation must contain the word JSON when any object is requested."""


ALL_OUTPUTS = OutputRule(supports=("schema", "object"))
"""Schemas and objects, with tools and without."""
OBJECT_OUTPUTS = OutputRule(supports=("object",))
"""Any object, but no schema."""


class OutputTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output rules of all models."""

    rules: tuple[OutputRule, ...] = ()

    def rule_for(self, model: str) -> OutputRule | None:
        """Return the first rule that matches a canonical model id."""
        return next((rule for rule in self.rules if _matches(model, rule.models)), None)


class ReasoningRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reasoning option of some models, and what they reject while thinking."""

    models: tuple[str, ...]
    form: ReasoningForm | None = None
    efforts: tuple[Effort, ...] = ()
    """The accepted levels, with `none` if thinking can be switched off."""
    budget: tuple[int, int] | None = None
    """The smallest and the largest thinking budget in tokens."""
    budget_below_max_tokens: bool = False
    """Whether a budget must be smaller than the output limit of the request."""
    on_by_default: bool = False
    """Whether the model thinks if the request does not set the option."""
    refused_options: tuple[str, ...] = ()
    """Options that are rejected while the model thinks."""
    forced_tools: bool = True
    """Whether a tool call can be forced while the model thinks."""
    no_tools_in: tuple[str, ...] = ()
    """The protocols in which the model cannot think in a request with tools."""
    needs_thinking_before_calls: bool = False
    """Whether a tool call in the history must follow a thinking block."""

    @property
    def enabling_efforts(self) -> tuple[Effort, ...]:
        """The levels that switch thinking on."""
        return tuple(effort for effort in self.efforts if effort != "none")

    @property
    def can_disable(self) -> bool:
        """Whether thinking can be switched off."""
        return "none" in self.efforts

    def nearest_effort(self, effort: Effort) -> Effort:
        """Return the accepted level that is nearest to another one; of two, the higher.

        A level other than `none` never becomes `none`; `none` may become the lowest level.
        """
        # Providers reject a level that the model does not have with 400.
        if effort in self.efforts:
            return effort
        rank = EFFORTS.index(effort)
        return min(
            self.enabling_efforts,
            key=lambda other: (abs(EFFORTS.index(other) - rank), -EFFORTS.index(other)),
        )


def effort_for(budget_tokens: int) -> Effort:
    """Return the lowest level whose budget is at least a number of tokens; at most `max`."""
    if budget_tokens <= 0:
        return "none"
    for effort, budget in EFFORT_BUDGETS.items():
        if budget_tokens <= budget:
            return effort
    return "max"


class ReasoningTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reasoning rules of all models."""

    rules: tuple[ReasoningRule, ...] = ()

    def rule_for(self, model: str) -> ReasoningRule | None:
        """Return the first rule that matches a canonical model id."""
        return next((rule for rule in self.rules if _matches(model, rule.models)), None)


class _OptionRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule: options, and patterns of the models that it applies to."""

    models: tuple[str, ...]
    options: tuple[str, ...]
    excluded: tuple[str, ...] = msgspec.field(default=(), name="except")

    def applies_to(self, model: str) -> bool:
        return _matches(model, self.models) and not _matches(model, self.excluded)


class _CacheRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The shortest prefix that some models cache."""

    models: tuple[str, ...]
    tokens: int


class OptionRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that single models reject, although the API of their provider has them."""

    refuses: tuple[_OptionRow, ...] = ()
    conflicts: tuple[_OptionRow, ...] = ()
    least_cached: tuple[_CacheRow, ...] = ()

    def refused_options(self, model: str) -> frozenset[str]:
        """Return the options that a model rejects."""
        rows = (row for row in self.refuses if row.applies_to(model))
        return frozenset(option for row in rows for option in row.options)

    def min_cached_tokens(self, model: str) -> int:
        """Return the shortest prefix, in tokens, that a model caches; 0 if it is unknown."""
        return next((r.tokens for r in self.least_cached if _matches(model, r.models)), 0)

    def exclusive_options(self, model: str) -> tuple[tuple[str, ...], ...]:
        """Return groups of options of which a model accepts only one; the first one is sent."""
        return tuple(row.options for row in self.conflicts if row.applies_to(model))


def read_output_rules(data: Mapping[str, object]) -> OutputTable:
    """Read the output rules from the data of a TOML file."""
    return _convert(data, OutputTable, "T117", "the output rules cannot be used")


def read_reasoning_rules(data: Mapping[str, object]) -> ReasoningTable:
    """Read the reasoning rules from the data of a TOML file."""
    return _convert(data, ReasoningTable, "T206", "the reasoning rules cannot be used")


def read_option_rules(data: Mapping[str, object]) -> OptionRules:
    """Read the option rules from the data of a TOML file."""
    return _convert(data, OptionRules, "T183", "the option rules cannot be used")


def _convert(data: Mapping[str, object], kind: type[_Table], rule: str, subject: str) -> _Table:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise CatalogDataError(subject, [Problem("$", rule, str(error))]) from None
