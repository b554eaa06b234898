"""write_file: a whole file, new or in place of another."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.arguments import read, schema, string, workspace_of
from metis.tools.tool import ToolContext, ToolOutput, said


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
        input_schema=schema(
            ("path", "content"),
            path=string("The path, relative to the workspace."),
            content=string("Everything that the file is to hold."),
        ),
        side_effects=SideEffects.WRITE,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Write the file."""
        asked = read(Arguments, arguments)
        data = asked.content.encode("utf-8", "replace")
        path = await asyncio.to_thread(workspace_of(context).write_bytes, asked.path, data)
        return said(f"Wrote {len(data)} bytes to {path}.", files_modified=(path,))

    def cancel(self) -> bool:
        """A write that has begun is finished, so that the answer is true."""
        return True
