"""Tools that a model may call: definitions, confirmation, execution and results."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metis.tools.confirmation import Answer, Ask, Confirmation, Question, Rule, Verdict
    from metis.tools.dispatch import Dispatcher, Watcher, error_class
    from metis.tools.media import embed
    from metis.tools.registry import Factory, Registry
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
]

_MODULES = {
    "confirmation": ("Answer", "Ask", "Confirmation", "Question", "Rule", "Verdict"),
    "dispatch": ("Dispatcher", "Watcher", "error_class"),
    "media": ("embed",),
    "registry": ("Factory", "Registry"),
    "tool": ("ErrorClass", "Tool", "ToolContext", "ToolFailedError", "ToolOutput"),
    "walk": ("WorkspaceError",),
    "workspace": ("Workspace",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    # Loaded when used: the search program (see `search`) imports this package and must start fast.
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'metis.tools' has no attribute {name!r}")
    return getattr(import_module(f"metis.tools.{_MODULE_OF[name]}"), name)
