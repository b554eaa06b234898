"""read_file: a text file by lines, a picture or a PDF as a block."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, BinaryIO

from msgspec import Meta, Struct

from metis.canonical.blocks import TextBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.media import MAX_BYTES, media_block, media_type
from metis.tools.tool import (
    ToolContext,
    ToolFailedError,
    ToolOutput,
    integer_property,
    object_schema,
    read_arguments,
    require_workspace,
    string_property,
    text_output,
)
from metis.tools.workspace import Workspace

MAX_LINES = 2_000
MAX_TEXT_BYTES = 200_000
MAX_SKIPPED_BYTES = 200_000_000
_OPENING = 8_192


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What read_file takes."""

    path: str
    offset: Annotated[int, Meta(ge=1)] = 1
    limit: Annotated[int, Meta(ge=1, le=MAX_LINES)] = MAX_LINES


class ReadFile:
    """Reads a file of the workspace."""

    definition = ToolDefinition(
        name="read_file",
        description=(
            "Read a file of the workspace. Text is given by lines; pictures (PNG, JPEG, GIF, WebP) "
            f"and PDFs are shown. At most {MAX_LINES} lines and {MAX_TEXT_BYTES} bytes at once: "
            "read on with offset."
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
        asked = read_arguments(Arguments, arguments)
        return await asyncio.to_thread(_read, asked, require_workspace(context))

    def cancel(self) -> bool:
        """Reading is short; nobody waits for it."""
        return False


def _read(asked: Arguments, workspace: Workspace) -> ToolOutput:
    with workspace.open(asked.path) as file:
        opening = file.read(_OPENING)
        kind = media_type(opening)
        if kind is None:
            if b"\0" in opening:
                raise ToolFailedError(
                    f"{asked.path!r} is a binary file and cannot be read as text."
                )
            file.seek(0)
            return _text(asked, file)
    data = workspace.read_bytes(asked.path, MAX_BYTES)
    name = asked.path.rpartition("/")[2]
    note = TextBlock(f"{name}: {kind}, {len(data)} bytes")
    return ToolOutput(content=(note, media_block(data, kind, name)))


def _text(asked: Arguments, file: BinaryIO) -> ToolOutput:
    _skip(asked, file)
    lines, size, is_cut = 0, 0, False
    parts: list[bytes] = []
    while lines < asked.limit:
        line = file.readline(MAX_TEXT_BYTES - size)
        if not line:
            break
        parts.append(line)
        lines += 1
        size += len(line)
        if size >= MAX_TEXT_BYTES:
            is_cut = not line.endswith(b"\n")
            break
    rest = bool(file.read(1))
    text = b"".join(parts).decode("utf-8", "replace")
    if not parts:
        return text_output(
            "(the file is empty)" if asked.offset == 1 else "(no such line: the file ends)"
        )
    if is_cut and rest:
        text += f"\n[line {asked.offset + lines - 1} is cut here: it is too long to be shown]"
    elif rest:
        text += f"\n[more lines follow: read on with offset {asked.offset + lines}]"
    return text_output(text)


def _skip(asked: Arguments, file: BinaryIO) -> None:
    """Go to the first line that is asked for, without holding what lies before it."""
    line, passed = 1, 0
    while line < asked.offset:
        piece = file.readline(_OPENING)
        if not piece:
            return
        line += piece.endswith(b"\n")
        passed += len(piece)
        if passed > MAX_SKIPPED_BYTES:
            raise ToolFailedError(f"line {asked.offset} lies too far into the file.")
