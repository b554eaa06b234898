"""The base of every error, and those that name places."""

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


class ProblemsError(MetisError, ValueError):
    """An error that lists every problem found, each with its path."""

    def __init__(self, subject: str, problems: "Sequence[Problem]") -> None:
        self.subject = subject
        self.problems = tuple(problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{subject}:{lines}")
