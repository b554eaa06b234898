"""Output: which models can be told what their answer shall be, and in which words."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec import Struct

from metis.canonical.errors import CatalogDataError
from metis.canonical.problem import Problem

OutputKind = Literal["schema", "object"]
"""JSON that keeps to a schema, or any JSON object."""
Dialect = Literal["json", "openapi"]
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
    dialect: Dialect = "json"
    """How a schema is written for them."""
    wants_word: bool = False
    """Whether the conversation must speak of JSON when any object is asked for."""


ALL = OutputRule(takes=("schema", "object"))
"""Both, with tools and without."""
OBJECTS = OutputRule(takes=("object",))
"""Any object, but no schema."""


class OutputTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of all models; the first that fits a model holds for it."""

    rules: tuple[OutputRule, ...] = ()

    def of(self, model: str) -> OutputRule | None:
        """The rule of a model, given by its canonical id."""
        return next((rule for rule in self.rules if _holds(rule, model)), None)


def _holds(rule: OutputRule, model: str) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in rule.models)


def read_output(data: Mapping[str, object]) -> OutputTable:
    """Read the rules from plain data, as a TOML file gives them."""
    try:
        return msgspec.convert(data, OutputTable)
    except msgspec.ValidationError as error:
        problem = Problem("$", "T117", str(error))
        raise CatalogDataError("the rules of output cannot be used", [problem]) from None
