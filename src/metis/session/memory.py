"""Memory: two small files that models may write to, and the tools with which they do."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.events import Bus
from metis.events.house import MemoryEviction, MemoryUpdated
from metis.session.trace import Trace
from metis.tools import ErrorClass, Tool, ToolContext, ToolFailedError, ToolOutput
from metis.tools.arguments import read, schema, string
from metis.tools.tool import said

Operation = Literal["add", "replace", "consolidate"]


class Bounds(Struct, frozen=True):
    """How large a memory file should be, and how large it may be, in bytes."""

    soft: int
    hard: int


FILES: Mapping[str, Bounds] = {"MEMORY.md": Bounds(2048, 4096), "USER.md": Bounds(1536, 3072)}
"""The memory files."""


class Memory:
    """The memory files of one folder; whoever changes them waits for whoever does."""

    def __init__(self, folder: Path, bus: Bus | None = None) -> None:
        self._folder = folder
        self._bus = bus
        self._lock = asyncio.Lock()

    async def change(
        self, file: str, operation: Operation, make: Callable[[str], str], context: ToolContext
    ) -> str:
        """Write a file anew from its text, and tell it; gives a word for the model.

        Raises:
            ToolFailedError: it would be too large, or `make` refuses; nothing was changed.
        """
        async with self._lock:
            before = await asyncio.to_thread(self._read, file)
            after = make(before)
            bounds, size = FILES[file], len(after.encode())
            if size > bounds.hard:
                text = (
                    f"{file} would have {size} bytes, and {bounds.hard} are the most. "
                    "Write what matters anew and shorter with memory_consolidate."
                )
                raise ToolFailedError(text)
            await asyncio.to_thread(self._write, file, after)
        self._tell(file, operation, before.encode(), after.encode(), context)
        hint = ""
        if size > bounds.soft:
            hint = " It is nearly full: make it shorter with memory_consolidate."
        return f"{file} has {size} of {bounds.hard} bytes now.{hint}"

    def _read(self, file: str) -> str:
        try:
            return (self._folder / file).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ToolFailedError(f"{file} cannot be read: {type(error).__name__}.") from None

    def _write(self, file: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".{file}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(text.encode())
            out.flush()
            os.fsync(out.fileno())
        new.replace(self._folder / file)

    def _tell(
        self, file: str, operation: Operation, before: bytes, after: bytes, context: ToolContext
    ) -> None:
        trace = Trace(self._bus, context.session_id, context.turn_id)
        trace.emit(
            MemoryUpdated(
                file=file,
                operation=operation,
                hash_before=hashlib.sha256(before).hexdigest(),
                hash_after=hashlib.sha256(after).hexdigest(),
                size_before_bytes=len(before),
                size_after_bytes=len(after),
            )
        )
        if len(before) > FILES[file].soft and len(after) < len(before):
            trace.emit(
                MemoryEviction(
                    file=file, size_before_bytes=len(before), size_after_bytes=len(after)
                )
            )


class _Whole(Struct, frozen=True, forbid_unknown_fields=True):
    """What memory_add and memory_consolidate take."""

    file: Literal["MEMORY.md", "USER.md"]
    text: str


class _Exchange(Struct, frozen=True, forbid_unknown_fields=True):
    """What memory_replace takes."""

    file: Literal["MEMORY.md", "USER.md"]
    old: str
    new: str


_FILE: Mapping[str, Any] = {
    "type": "string",
    "enum": sorted(FILES),
    "description": "MEMORY.md for what was learned, USER.md for what is known of the user.",
}


def _definition(name: str, description: str, **properties: Mapping[str, Any]) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        description=description,
        input_schema=schema(("file", *properties), file=_FILE, **properties),
        side_effects=SideEffects.WRITE,
        requires_workspace=False,
    )


class _MemoryTool:
    """What the three tools share."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def cancel(self) -> bool:
        """A write that has begun is finished, so that the answer is true."""
        return True


class MemoryAdd(_MemoryTool):
    """Adds a line to a memory file."""

    definition = _definition(
        "memory_add",
        "Remember something beyond this session: one line is added to a small file.",
        text=string("One plain sentence."),
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Add the line."""
        asked = read(_Whole, arguments)

        def add(text: str) -> str:
            return f"{text.rstrip()}\n{asked.text.strip()}\n".lstrip()

        return said(await self._memory.change(asked.file, "add", add, context))


class MemoryReplace(_MemoryTool):
    """Replaces a text in a memory file."""

    definition = _definition(
        "memory_replace",
        "Correct what is remembered: a text that stands once in the file is replaced.",
        old=string("The text as it stands there; it must stand there exactly once."),
        new=string("What stands there afterwards; empty takes the text out."),
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Replace the text."""
        asked = read(_Exchange, arguments)

        def exchange(text: str) -> str:
            count = text.count(asked.old) if asked.old else 0
            if count != 1:
                raise ToolFailedError(
                    f"The text stands {count} times in {asked.file}.", ErrorClass.VALIDATION_ERROR
                )
            return text.replace(asked.old, asked.new)

        return said(await self._memory.change(asked.file, "replace", exchange, context))


class MemoryConsolidate(_MemoryTool):
    """Writes a memory file anew."""

    definition = _definition(
        "memory_consolidate",
        "Write a memory file anew, shorter: everything that is not in the new text is forgotten.",
        text=string("All that the file is to hold."),
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Write the file."""
        asked = read(_Whole, arguments)
        text = f"{asked.text.strip()}\n" if asked.text.strip() else ""
        told = await self._memory.change(asked.file, "consolidate", lambda _: text, context)
        return said(told)


def memory_tools(memory: Memory) -> tuple[Callable[[], Tool], ...]:
    """The tools that write to a memory."""
    return (
        lambda: MemoryAdd(memory),
        lambda: MemoryReplace(memory),
        lambda: MemoryConsolidate(memory),
    )
