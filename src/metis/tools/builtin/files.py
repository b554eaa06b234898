"""Tools that read and change files: read_file, write_file, edit_file."""

import asyncio
import difflib
from collections.abc import Mapping
from typing import Annotated, Any, BinaryIO

from msgspec import Meta, Struct

from metis.canonical.blocks import TextBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.media import MAX_BYTES, media_block, media_type
from metis.tools.tool import (
    ErrorClass,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    boolean_property,
    integer_property,
    object_schema,
    read_arguments,
    require_workspace,
    string_property,
    text_output,
)
from metis.tools.workspace import Workspace

# A longer text would fill the context window; models read larger files in parts.
MAX_LINES = 2_000
MAX_TEXT_BYTES = 200_000
MAX_SKIPPED_BYTES = 200_000_000
MAX_EDITED_BYTES = 10_000_000
_HEAD_BYTES = 8_192
_MAX_DIFF_LINES = 2_000


class ReadArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of read_file."""

    path: str
    offset: Annotated[int, Meta(ge=1)] = 1
    limit: Annotated[int, Meta(ge=1, le=MAX_LINES)] = MAX_LINES


class ReadFile:
    """Reads a file of the workspace: text by lines, an image or a PDF as a block."""

    definition = ToolDefinition(
        name="read_file",
        description=(
            "Read a file of the workspace. Text is returned by lines; images (PNG, JPEG, GIF, "
            f"WebP) and PDFs are shown. At most {MAX_LINES} lines and {MAX_TEXT_BYTES} bytes at "
            "once: read on with offset."
        ),
        input_schema=object_schema(
            ("path",),
            path=string_property("The path, relative to the workspace."),
            offset=integer_property("The line to begin with; the first is 1."),
            limit=integer_property(f"How many lines to read, {MAX_LINES} at most."),
        ),
        side_effects=SideEffects.READ,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Read the file."""
        parsed = read_arguments(ReadArguments, arguments)
        return await asyncio.to_thread(_read, parsed, require_workspace(context))

    def cancel(self) -> bool:
        """Return false: reading is short and needs no cleanup."""
        return False


def _read(arguments: ReadArguments, workspace: Workspace) -> ToolOutput:
    path = arguments.path
    with workspace.open(path) as file:
        head = file.read(_HEAD_BYTES)
        kind = media_type(head)
        if kind is None:
            # Binary data as text would fill the context with useless characters.
            if b"\0" in head:
                raise ToolFailedError(f"{path!r} is a binary file and cannot be read as text.")
            file.seek(0)
            return _read_lines(arguments, file)
    data = workspace.read_bytes(path, MAX_BYTES)
    name = path.rpartition("/")[2]
    note = TextBlock(f"{name}: {kind}, {len(data)} bytes")
    return ToolOutput(content=(note, media_block(data, kind, name)))


def _read_lines(arguments: ReadArguments, file: BinaryIO) -> ToolOutput:
    _skip_lines(arguments.offset, file)
    size, is_cut = 0, False
    lines: list[bytes] = []
    while len(lines) < arguments.limit:
        line = file.readline(MAX_TEXT_BYTES - size)
        if not line:
            break
        lines.append(line)
        size += len(line)
        if size >= MAX_TEXT_BYTES:
            is_cut = not line.endswith(b"\n")
            break
    has_more = bool(file.read(1))
    if not lines:
        is_empty = arguments.offset == 1
        return text_output("(the file is empty)" if is_empty else "(no such line: the file ends)")
    text = b"".join(lines).decode("utf-8", "replace")
    next_line = arguments.offset + len(lines)
    if is_cut and has_more:
        text += f"\n[line {next_line - 1} is cut here: it is too long to be shown]"
    elif has_more:
        text += f"\n[more lines follow: read on with offset {next_line}]"
    return text_output(text)


def _skip_lines(offset: int, file: BinaryIO) -> None:
    """Advance to a line without loading the lines before it into memory."""
    line, skipped_bytes = 1, 0
    while line < offset:
        piece = file.readline(_HEAD_BYTES)
        if not piece:
            return
        line += piece.endswith(b"\n")
        skipped_bytes += len(piece)
        if skipped_bytes > MAX_SKIPPED_BYTES:
            raise ToolFailedError(f"line {offset} is too far into the file.")


class WriteArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of write_file."""

    path: str
    content: str


class WriteFile:
    """Writes a file of the workspace."""

    definition = ToolDefinition(
        name="write_file",
        description=(
            "Write a complete text file of the workspace. An existing file is replaced; missing "
            "directories are created."
        ),
        input_schema=object_schema(
            ("path", "content"),
            path=string_property("The path, relative to the workspace."),
            content=string_property("The complete content of the file."),
        ),
        side_effects=SideEffects.WRITE,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Write the file."""
        parsed = read_arguments(WriteArguments, arguments)
        # A model can write lone surrogates as JSON escapes, which UTF-8 cannot encode.
        data = parsed.content.encode("utf-8", "replace")
        path = await asyncio.to_thread(require_workspace(context).write_bytes, parsed.path, data)
        return text_output(f"Wrote {len(data)} bytes to {path}.", files_modified=(path,))

    def cancel(self) -> bool:
        """Return true: a write that has started is completed, so that its result is correct."""
        return True


class EditArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of edit_file."""

    path: str
    old_text: str
    new_text: str
    replace_all: bool = False


class EditFile:
    """Replaces a text in a file of the workspace."""

    definition = ToolDefinition(
        name="edit_file",
        description=(
            "Replace a text in a file of the workspace. The old text has to be in the file "
            "exactly as given, and only once unless replace_all is set."
        ),
        input_schema=object_schema(
            ("path", "old_text", "new_text"),
            path=string_property("The path, relative to the workspace."),
            old_text=string_property("The text to replace, with enough around it to be unique."),
            new_text=string_property("The text to put there."),
            replace_all=boolean_property("Replace every occurrence; false by default."),
        ),
        side_effects=SideEffects.WRITE,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Edit the file."""
        parsed = read_arguments(EditArguments, arguments)
        return await asyncio.to_thread(_edit, parsed, require_workspace(context))

    def cancel(self) -> bool:
        """Return true: an edit that has started is completed, so that its result is correct."""
        return True


def _edit(arguments: EditArguments, workspace: Workspace) -> ToolOutput:
    before = workspace.read_bytes(arguments.path, MAX_EDITED_BYTES)
    old = arguments.old_text.encode("utf-8", "replace")
    new = arguments.new_text.encode("utf-8", "replace")
    count = _require_match(before, old, arguments)
    after = before.replace(old, new)
    # `expected` prevents overwriting a file that was changed since it was read.
    path = workspace.write_bytes(arguments.path, after, expected=before)
    times = "once" if count == 1 else f"{count} times"
    ui = {"kind": "diff", "path": path, "diff": _diff(before, after, path)}
    return text_output(f"Replaced {times} in {path}.", files_modified=(path,), ui=ui)


def _require_match(content: bytes, old: bytes, arguments: EditArguments) -> int:
    if not old:
        raise ToolFailedError("old_text is empty.", ErrorClass.VALIDATION_ERROR)
    count = content.count(old)
    if count == 0:
        raise ToolFailedError(f"The text is not in {arguments.path!r}; read the file again.")
    if count > 1 and not arguments.replace_all:
        text = f"The text is {count} times in {arguments.path!r}; give more of what is around it."
        raise ToolFailedError(text)
    return count


def _diff(before: bytes, after: bytes, path: str) -> str | None:
    """Return a unified diff for a user interface; None for long files, where it is slow."""
    old, new = (data.decode("utf-8", "replace").splitlines() for data in (before, after))
    if max(len(old), len(new)) > _MAX_DIFF_LINES:
        return None
    return "\n".join(difflib.unified_diff(old, new, path, path, lineterm=""))
