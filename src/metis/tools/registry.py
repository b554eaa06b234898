"""The registry of tools; definitions are checked when a tool is registered."""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from msgspec import Struct

from metis.canonical.errors import (
    DuplicateToolError,
    InvalidValueError,
    Problem,
    ToolError,
    UnknownToolError,
)
from metis.canonical.tools import ToolDefinition, ToolSet
from metis.plugins import TOOLS, Plugin, load_plugins
from metis.tools.function import FunctionTool
from metis.tools.tool import Tool

Factory = Callable[[], Tool]
"""Creates a new tool for one call."""


class RegisteredTool(Struct, frozen=True):
    """The definition of a tool, with its factory and validator."""

    definition: ToolDefinition
    factory: Factory
    validator: ToolSet

    def problems(self, arguments: Mapping[str, Any]) -> list[Problem]:
        """Return the problems of arguments that do not match the schema."""
        return self.validator.check_input(self.definition.name, arguments)


class Registry:
    """Tools by name, from classes or other factories, and from functions (`metis.tool`)."""

    def __init__(self, *factories: Factory | FunctionTool[..., Any]) -> None:
        self._entries: dict[str, RegisteredTool] = {}
        self._tools: ToolSet | None = None
        for factory in factories:
            self.register(factory)

    def register(self, factory: Factory | FunctionTool[..., Any]) -> ToolDefinition:
        """Add a tool and return its definition.

        Raises:
            ToolError: the schema is invalid, the name is in use, or there is no definition.
        """
        if isinstance(factory, FunctionTool):
            factory = factory.make
        # This tool is created for its definition only; each call gets a new one, because tools
        # may have state.
        definition = factory().definition
        if not isinstance(definition, ToolDefinition):  # pyright: ignore[reportUnnecessaryIsInstance] - a factory may be untyped
            raise ToolError(f"a tool needs a ToolDefinition, got {type(definition).__name__}")
        if definition.name in self._entries:
            raise DuplicateToolError(definition.name)
        entry = RegisteredTool(definition, factory, ToolSet([definition]))
        self._entries[definition.name] = entry
        self._tools = None
        return definition

    def remove(self, name: str) -> None:
        """Remove a tool."""
        if self._entries.pop(name, None) is None:
            raise UnknownToolError(name)
        self._tools = None

    @property
    def tools(self) -> ToolSet:
        """All definitions in the order of registration."""
        if self._tools is None:
            self._tools = ToolSet(entry.definition for entry in self._entries.values())
        return self._tools

    def get(self, name: str) -> RegisteredTool | None:
        """Return the tool of that name, if there is one."""
        return self._entries.get(name)

    def similar_names(self, name: str) -> list[str]:
        """Return the registered names that are similar to an unknown one."""
        return difflib.get_close_matches(name, self._entries, n=3)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def make_registry(tools: Iterable[object]) -> Registry:
    """Return a registry of functions, decorated or not, and of classes of tools.

    Raises:
        InvalidValueError: an item of the list is neither.
    """
    registry = Registry()
    for index, item in enumerate(tools):
        registry.register(_registrable(item, f"$.tools[{index}]"))
    return registry


def _registrable(item: object, path: str) -> Factory | FunctionTool[..., Any]:
    if isinstance(item, FunctionTool):
        return cast("FunctionTool[..., Any]", item)
    if inspect.isroutine(item):
        return FunctionTool(cast("Callable[..., Any]", item))
    if isinstance(item, type | partial):
        return cast("Factory", item)
    fault = f"expected a function or a class of a tool, got {type(item).__name__}"
    raise InvalidValueError(fault, path=path)


def plugin_tools(reserved: Collection[str] = ()) -> list[Factory | FunctionTool[..., Any]]:
    """Return the tools of other packages, except those with reserved names.

    A package names functions or classes of tools under the entry point group `metis.tools`. A
    program offers them with `Options(tools=[…, *plugin_tools()])`; the terminal always does.
    """
    return list(load_plugins(TOOLS, _read_tool, reserved=reserved).values())


def _read_tool(plugin: Plugin, value: object) -> Factory | FunctionTool[..., Any]:
    tool = _registrable(value, "$")
    name = Registry().register(tool).name
    if name != plugin.name:
        raise InvalidValueError(f"the tool is named {name!r}", path="$.name")
    return tool
