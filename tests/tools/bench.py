"""Short words for contexts, calls and tools in tests."""

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
Work = Callable[[Mapping[str, Any], ToolContext], Awaitable[ToolOutput]]


class Made:
    """A tool made of a function."""

    def __init__(
        self, definition: ToolDefinition, work: Work, *, ends_itself: bool = False
    ) -> None:
        self.definition = definition
        self._work = work
        self._ends_itself = ends_itself

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return await self._work(arguments, context)

    def cancel(self) -> bool:
        return self._ends_itself


def defined(name: str, effects: SideEffects = SideEffects.NONE, **fields: Any) -> ToolDefinition:
    filled: dict[str, Any] = {"input_schema": ANYTHING, "requires_workspace": False, **fields}
    return ToolDefinition(name=name, description=name, side_effects=effects, **filled)


def making(
    name: str, work: Work, effects: SideEffects = SideEffects.NONE, **fields: Any
) -> Factory:
    definition = defined(name, effects, **fields)
    return lambda: Made(definition, work)


def context(workspace: Path | None = None) -> ToolContext:
    return ToolContext(
        session_id="sess_01J00000000000000000000000",
        turn_id="turn_1",
        cancel=asyncio.Event(),
        workspace=Workspace(workspace) if workspace else None,
    )


def asking(name: str, /, **arguments: Any) -> ToolUseBlock:
    return call(name, fresh(), **arguments)


def open_to_all(*factories: Factory, **fields: Any) -> Dispatcher:
    """A dispatcher that asks nobody."""
    rules = dict.fromkeys(SideEffects, Rule.AUTO)
    return Dispatcher(Registry(*factories), Confirmation(rules=rules), **fields)


def result_of(message: Message) -> ToolResultBlock:
    (block,) = message.content
    assert isinstance(block, ToolResultBlock)
    return block


def words(message: Message) -> str:
    blocks = result_of(message).content
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


async def answer(factory: Factory, turn: ToolContext, /, **arguments: Any) -> Message:
    """The answer to one call of a tool."""
    name = factory().definition.name
    (message,) = await open_to_all(factory).run([asking(name, **arguments)], turn)
    return message
