"""list_files: what lies in a folder."""

import asyncio
import fnmatch
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.arguments import boolean, read, schema, string, workspace_of
from metis.tools.tool import ToolContext, ToolOutput, said
from metis.tools.tree import SKIPPED, Deadline, Node, nodes
from metis.tools.workspace import Workspace

MAX_ENTRIES = 1_000
MAX_SECONDS = 10.0


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What list_files takes."""

    path: str = "."
    recursive: bool = False
    pattern: str | None = None


class ListFiles:
    """Lists a folder of the workspace."""

    definition = ToolDefinition(
        name="list_files",
        description=(
            f"List what lies in a folder of the workspace, {MAX_ENTRIES} entries at most. A folder "
            "ends with a slash, a link with an at sign. "
            f"Not gone into: {', '.join(sorted(SKIPPED))}."
        ),
        input_schema=schema(
            (),
            path=string("The folder, relative to the workspace; the workspace itself by default."),
            recursive=boolean("Also list what lies below; false unless given."),
            pattern=string("Only names or paths that match, such as *.py."),
        ),
        side_effects=SideEffects.READ,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """List the folder."""
        asked = read(Arguments, arguments)
        return await asyncio.to_thread(_list, asked, workspace_of(context), context)

    def cancel(self) -> bool:
        """The search looks at the event of its context."""
        return True


def _list(asked: Arguments, workspace: Workspace, context: ToolContext) -> ToolOutput:
    deadline = Deadline(MAX_SECONDS)
    lines: list[str] = []
    with workspace.folder(asked.path) as folder:
        for node in nodes(folder, is_deep=asked.recursive):
            if len(lines) == MAX_ENTRIES or deadline.is_over() or context.cancel.is_set():
                lines.append("[more was left out: name a folder or a pattern]")
                break
            if _matches(node, asked.pattern):
                lines.append(node.path + _SIGNS.get(node.kind, ""))
    return said("\n".join(lines) or "(nothing)")


_SIGNS = {"folder": "/", "link": "@"}


def _matches(node: Node, pattern: str | None) -> bool:
    if pattern is None:
        return True
    return fnmatch.fnmatchcase(node.name, pattern) or fnmatch.fnmatchcase(node.path, pattern)
