"""Errors of tools."""

from metis.canonical.errors.base import MetisError, ProblemsError


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
