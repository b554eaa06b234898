"""Builders of contexts, calls and tools for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from build import call
from metis.canonical import Message, SideEffects, TextBlock, ToolDefinition, ToolResultBlock
from metis.canonical import new_tool_use_id as fresh
from metis.canonical.blocks import ToolUseBlock
from metis.tools import (
    Confirmation,
    Dispatcher,
    Factory,
    Registry,
    Rule,
    ToolContext,
    ToolOutput,
    Workspace,
)

ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}}
ToolFunction = Callable[[Mapping[str, Any], ToolContext], Awaitable[ToolOutput]]


class FunctionTool:
    """A tool that runs a function."""

    def __init__(
        self, definition: ToolDefinition, work: ToolFunction, *, ends_itself: bool = False
    ) -> None:
        self.definition = definition
        self._work = work
        self._ends_itself = ends_itself

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return await self._work(arguments, context)

    def cancel(self) -> bool:
        return self._ends_itself


def define_tool(
    name: str, effects: SideEffects = SideEffects.NONE, **fields: Any
) -> ToolDefinition:
    filled: dict[str, Any] = {"input_schema": ANYTHING, "requires_workspace": False, **fields}
    return ToolDefinition(name=name, description=name, side_effects=effects, **filled)


def tool_factory(
    name: str, work: ToolFunction, effects: SideEffects = SideEffects.NONE, **fields: Any
) -> Factory:
    definition = define_tool(name, effects, **fields)
    return lambda: FunctionTool(definition, work)


def tool_context(workspace: Path | None = None) -> ToolContext:
    return ToolContext(
        session_id="sess_01J00000000000000000000000",
        turn_id="turn_1",
        cancel=asyncio.Event(),
        workspace=Workspace(workspace) if workspace else None,
    )


def tool_call(name: str, /, **arguments: Any) -> ToolUseBlock:
    return call(name, fresh(), **arguments)


def permissive_dispatcher(*factories: Factory, **fields: Any) -> Dispatcher:
    """Return a dispatcher that runs every call without confirmation."""
    rules = dict.fromkeys(SideEffects, Rule.AUTO)
    return Dispatcher(Registry(*factories), Confirmation(rules=rules), **fields)


def result_of(message: Message) -> ToolResultBlock:
    (block,) = message.content
    assert isinstance(block, ToolResultBlock)
    return block


def result_text(message: Message) -> str:
    blocks = result_of(message).content
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


async def run_one(factory: Factory, turn: ToolContext, /, **arguments: Any) -> Message:
    """Return the TOOL message for one call of a tool."""
    name = factory().definition.name
    (message,) = await permissive_dispatcher(factory).run([tool_call(name, **arguments)], turn)
    return message
