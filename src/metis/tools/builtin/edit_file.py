"""edit_file: one text in place of another, where it is found exactly once."""

import asyncio
import difflib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.tool import (
    ErrorClass,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    boolean_property,
    object_schema,
    read_arguments,
    require_workspace,
    string_property,
    text_output,
)
from metis.tools.workspace import Workspace

MAX_FILE_BYTES = 10_000_000
_MAX_DIFF_LINES = 2_000


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What edit_file takes."""

    path: str
    old_text: str
    new_text: str
    replace_all: bool = False


class EditFile:
    """Changes a file of the workspace."""

    definition = ToolDefinition(
        name="edit_file",
        description=(
            "Replace a text in a file of the workspace. The old text has to stand in the file "
            "exactly as given, and only once unless replace_all is set."
        ),
        input_schema=object_schema(
            ("path", "old_text", "new_text"),
            path=string_property("The path, relative to the workspace."),
            old_text=string_property("The text to replace, with enough around it to be unique."),
            new_text=string_property("The text to put there."),
            replace_all=boolean_property("Replace the text everywhere; false unless given."),
        ),
        side_effects=SideEffects.WRITE,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Change the file."""
        asked = read_arguments(Arguments, arguments)
        return await asyncio.to_thread(_edit, asked, require_workspace(context))

    def cancel(self) -> bool:
        """A change that has begun is finished, so that the answer is true."""
        return True


def _edit(asked: Arguments, workspace: Workspace) -> ToolOutput:
    before = workspace.read_bytes(asked.path, MAX_FILE_BYTES)
    old, new = asked.old_text.encode("utf-8", "replace"), asked.new_text.encode("utf-8", "replace")
    count = _require_found(before, old, asked)
    after = before.replace(old, new)
    path = workspace.write_bytes(asked.path, after, expected=before)
    places = "once" if count == 1 else f"{count} times"
    ui = {"kind": "diff", "path": path, "diff": _diff(before, after, path)}
    return text_output(f"Replaced {places} in {path}.", files_modified=(path,), ui=ui)


def _require_found(content: bytes, old: bytes, asked: Arguments) -> int:
    if not old:
        raise ToolFailedError("old_text is empty.", ErrorClass.VALIDATION_ERROR)
    count = content.count(old)
    if count == 0:
        raise ToolFailedError(f"The text does not stand in {asked.path!r}; read the file again.")
    if count > 1 and not asked.replace_all:
        text = f"The text stands {count} times in {asked.path!r}; give more of what is around it."
        raise ToolFailedError(text)
    return count


def _diff(before: bytes, after: bytes, path: str) -> str | None:
    """What changed, for a screen; None where that would take long."""
    old, new = (data.decode("utf-8", "replace").splitlines() for data in (before, after))
    if max(len(old), len(new)) > _MAX_DIFF_LINES:
        return None
    return "\n".join(difflib.unified_diff(old, new, path, path, lineterm=""))
