"""Every exception of the package.

::

    MetisError                      all of ours; catch this one
    ├── InvalidValueError           a value that the canonical form cannot hold
    ├── DecodeError                 bytes that are not the canonical form
    │   ├── LimitError              too large or too deep
    │   └── MigrationError          an old version that could not be brought up to date
    ├── EncodeError                 a value that cannot be written
    │   └── NewerVersionError       a changed message of a version that we do not know
    ├── ProblemsError               several problems at once; holds each with its path
    │   └── InvalidMessageError     a message that breaks rules
    ├── ToolError                   a tool that is refused or not there
    │   ├── ToolDefinitionError     bad name or schema; holds every problem
    │   ├── DuplicateToolError      a second tool of the same name
    │   └── UnknownToolError        no tool of that name
    └── CatalogError                what is known of models
        ├── CatalogDataError        a table that cannot be read; holds every problem
        ├── UnknownModelError       a model that is in no table
        ├── UnpricedModelError      a model without a price
        ├── AmbiguousModelError     a short name that fits several models
        └── UnknownPricingError     a pricing version that is in no table

The text of an error is for people; its fields are for programs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metis.canonical.problem import Problem


class MetisError(Exception):
    """The base of every error that metis raises."""


class InvalidValueError(MetisError, ValueError):
    """A value that the canonical form cannot hold, such as a time without a zone."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason if path == "$" else f"{path}: {reason}")


class DecodeError(MetisError, ValueError):
    """Bytes that are not the canonical form: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class LimitError(DecodeError):
    """Input that is larger or nested deeper than the limits allow."""


class MigrationError(DecodeError):
    """A message of an old version that could not be brought up to date."""


class EncodeError(MetisError, ValueError):
    """A value that cannot be written: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class NewerVersionError(EncodeError):
    """A message of a version that we do not know was changed; writing it would lose data."""


class ProblemsError(MetisError, ValueError):
    """An error that lists every problem found, each with its path."""

    def __init__(self, subject: str, problems: "Sequence[Problem]") -> None:
        self.subject = subject
        self.problems = tuple(problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{subject}:{lines}")


class InvalidMessageError(ProblemsError):
    """A message that breaks rules of the canonical form."""


class ToolError(MetisError):
    """A tool that cannot be registered or found."""


class ToolDefinitionError(ToolError, ProblemsError):
    """A tool definition with a bad name or a schema outside of the subset."""


class DuplicateToolError(ToolError):
    """A second tool of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"a tool named {name!r} is registered already; tool names are unique")


class UnknownToolError(ToolError, LookupError):
    """A tool name that no definition carries."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no tool is named {name!r}")


class CatalogError(MetisError):
    """Something about models or prices that the catalogue cannot answer."""


class CatalogDataError(CatalogError, ProblemsError):
    """A model or price table that cannot be used."""


class UnknownModelError(CatalogError, LookupError):
    """A model that is in no table; `hint` says how to add it."""

    def __init__(self, model: str, hint: str) -> None:
        self.model = model
        self.hint = hint
        super().__init__(f"unknown model {model!r}: {hint}")


class UnpricedModelError(CatalogError, LookupError):
    """A model without a price in the table; `hint` says how to add one."""

    def __init__(self, model: str, pricing_version: str, hint: str) -> None:
        self.model = model
        self.pricing_version = pricing_version
        self.hint = hint
        super().__init__(f"no price for {model!r} in price table {pricing_version!r}: {hint}")


class AmbiguousModelError(CatalogError, LookupError):
    """A short model name that fits several models."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        self.name = name
        self.candidates = tuple(candidates)
        super().__init__(f"{name!r} is ambiguous: it could be {', '.join(self.candidates)}")


class UnknownPricingError(CatalogError, LookupError):
    """A pricing version that no table carries."""

    def __init__(self, pricing_version: str, known: Sequence[str]) -> None:
        self.pricing_version = pricing_version
        self.known = tuple(known)
        super().__init__(
            f"no price table has version {pricing_version!r}; there are {', '.join(self.known)}"
        )
