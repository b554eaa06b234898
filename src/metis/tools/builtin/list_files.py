"""list_files: what lies in a folder."""

import asyncio
import fnmatch
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.search import SKIPPED_DIRECTORIES, Deadline, TreeEntry, walk_tree
from metis.tools.tool import (
    ToolContext,
    ToolOutput,
    boolean_property,
    object_schema,
    read_arguments,
    require_workspace,
    string_property,
    text_output,
)
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
            f"Not gone into: {', '.join(sorted(SKIPPED_DIRECTORIES))}."
        ),
        input_schema=object_schema(
            (),
            path=string_property(
                "The folder, relative to the workspace; the workspace itself by default."
            ),
            recursive=boolean_property("Also list what lies below; false unless given."),
            pattern=string_property("Only names or paths that match, such as *.py."),
        ),
        side_effects=SideEffects.READ,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """List the folder."""
        asked = read_arguments(Arguments, arguments)
        return await asyncio.to_thread(_list, asked, require_workspace(context), context)

    def cancel(self) -> bool:
        """The search looks at the event of its context."""
        return True


def _list(asked: Arguments, workspace: Workspace, context: ToolContext) -> ToolOutput:
    deadline = Deadline(MAX_SECONDS)
    lines: list[str] = []
    with workspace.open_directory(asked.path) as folder:
        for node in walk_tree(folder, is_deep=asked.recursive):
            if len(lines) == MAX_ENTRIES or deadline.is_over() or context.cancel.is_set():
                lines.append("[more was left out: name a folder or a pattern]")
                break
            if _matches(node, asked.pattern):
                lines.append(node.path + _SIGNS.get(node.kind, ""))
    return text_output("\n".join(lines) or "(nothing)")


_SIGNS = {"folder": "/", "link": "@"}


def _matches(node: TreeEntry, pattern: str | None) -> bool:
    if pattern is None:
        return True
    return fnmatch.fnmatchcase(node.name, pattern) or fnmatch.fnmatchcase(node.path, pattern)
