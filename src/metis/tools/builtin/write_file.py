"""write_file: a whole file, new or in place of another."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.tool import (
    ToolContext,
    ToolOutput,
    object_schema,
    read_arguments,
    require_workspace,
    string_property,
    text_output,
)


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What write_file takes."""

    path: str
    content: str


class WriteFile:
    """Writes a file of the workspace."""

    definition = ToolDefinition(
        name="write_file",
        description=(
            "Write a text file of the workspace as a whole. A file that is there is replaced; "
            "folders that are missing are made."
        ),
        input_schema=object_schema(
            ("path", "content"),
            path=string_property("The path, relative to the workspace."),
            content=string_property("Everything that the file is to hold."),
        ),
        side_effects=SideEffects.WRITE,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Write the file."""
        asked = read_arguments(Arguments, arguments)
        data = asked.content.encode("utf-8", "replace")
        path = await asyncio.to_thread(require_workspace(context).write_bytes, asked.path, data)
        return text_output(f"Wrote {len(data)} bytes to {path}.", files_modified=(path,))

    def cancel(self) -> bool:
        """A write that has begun is finished, so that the answer is true."""
        return True
