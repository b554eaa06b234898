"""Tools that a model may call: definitions, confirmation, execution and results."""

from metis.tools.confirmation import Answer, Ask, Confirmation, Question, Rule, Verdict
from metis.tools.dispatch import Dispatcher, Watcher, error_class
from metis.tools.function import FunctionTool, tool
from metis.tools.media import embed
from metis.tools.registry import Factory, Registry, plugin_tools
from metis.tools.tool import ErrorClass, Tool, ToolContext, ToolFailedError, ToolOutput
from metis.tools.walk import WorkspaceError
from metis.tools.workspace import Workspace

__all__ = [
    "Answer",
    "Ask",
    "Confirmation",
    "Dispatcher",
    "ErrorClass",
    "Factory",
    "FunctionTool",
    "Question",
    "Registry",
    "Rule",
    "Tool",
    "ToolContext",
    "ToolFailedError",
    "ToolOutput",
    "Verdict",
    "Watcher",
    "Workspace",
    "WorkspaceError",
    "embed",
    "error_class",
    "plugin_tools",
    "tool",
]
