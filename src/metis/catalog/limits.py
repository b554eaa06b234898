"""Ranges and limits of requests, as data: values that a host rejects although it has the option.

`data/limits.toml` has one row per rule, each with its source. For each option, the first row that
matches host and model applies.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError, Problem

SHARED_LIMITS = frozenset(
    {
        "call_id",
        "max_output_tokens",
        "stop_sequences",
        "temperature",
        "tool_name",
        "tools",
        "top_k",
        "top_p",
    }
)
"""The names that a row may limit; any other name is the path of a native key."""


class LimitRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one option at some hosts."""

    hosts: tuple[str, ...]
    """Patterns of provider names; * matches any text."""
    models: tuple[str, ...] = ("*",)
    """Patterns of canonical model ids; * matches any text."""
    option: str
    """A shared option, `tools`, `tool_name`, `call_id`, or the path of a native key."""
    least: float | None = None
    most: float | None = None
    """The range of a number; a value outside of it is replaced by the nearest one inside."""
    max_items: int | None = None
    """The most items of a list or an object."""
    max_length: int | None = None
    """The most characters of a text, or of each text in a list or an object."""
    max_key_length: int | None = None
    """The most characters of a key of an object."""
    pattern: str | None = None
    """A regular expression that the whole text must match."""
    visible: bool = False
    """Whether a text without a visible character is rejected."""
    not_empty: bool = False
    """Whether an empty text is rejected."""
    source: str
    """The documentation of the rule, or a report of a rejected request."""

    def applies_to(self, host: str, model: str) -> bool:
        """Whether the rule applies to a model at a host."""
        return _matches(host, self.hosts) and _matches(model, self.models)

    def nearest(self, value: float) -> float:
        """Return the number within the range that is nearest to a value."""
        if self.least is not None and value < self.least:
            return int(self.least) if self.least.is_integer() else self.least
        if self.most is not None and value > self.most:
            return int(self.most) if self.most.is_integer() else self.most
        return value

    def accepts(self, text: str) -> bool:
        """Whether a text satisfies the maximum length and the pattern."""
        is_short = self.max_length is None or len(text) <= self.max_length
        return is_short and (self.pattern is None or bool(re.fullmatch(self.pattern, text)))

    @property
    def range_text(self) -> str:
        """The range as text, such as `0 to 1`."""
        if self.most is None:
            return f"{self.least:g} or more"
        return f"{self.least or 0:g} to {self.most:g}"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class LimitTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of all hosts, and the models whose context window includes the output limit."""

    rules: tuple[LimitRule, ...] = ()
    output_within_window: tuple[str, ...] = ()
    """Models that reject a request if prompt and output limit together exceed the window."""

    def limits_for(self, host: str, model: str) -> Mapping[str, LimitRule]:
        """Return the rules of a model at a host by option; the first row of an option applies."""
        rules: dict[str, LimitRule] = {}
        for rule in self.rules:
            if rule.option not in rules and rule.applies_to(host, model):
                rules[rule.option] = rule
        return rules

    def counts_output(self, model: str) -> bool:
        """Whether prompt and output limit of a model must fit into its window together."""
        return _matches(model, self.output_within_window)


def read_limits(data: Mapping[str, object]) -> LimitTable:
    """Read the limits from the data of a TOML file."""
    try:
        return msgspec.convert(data, LimitTable)
    except msgspec.ValidationError as error:
        problem = Problem("$", "T213", str(error))
        raise CatalogDataError("the limits cannot be used", [problem]) from None
