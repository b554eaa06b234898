"""Errors of tools."""

from collections.abc import Sequence

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


class UnknownServerError(ToolError, LookupError):
    """A server that a thread names and nobody has set up."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        self.name = name
        self.known = tuple(known)
        there = ", ".join(self.known) or "none"
        super().__init__(
            f"no MCP server is named {name!r}; there are: {there}. "
            "Set it up, or say which servers the thread has from here on"
        )


class UnknownToolError(ToolError, LookupError):
    """A tool name that no definition carries."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no tool is named {name!r}")
