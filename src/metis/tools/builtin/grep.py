"""grep: lines that match a pattern."""

import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.process import BoundedOutput, ProcessCommand, ProcessEnd, run
from metis.tools.search import MAX_FILE_BYTES, MAX_HITS
from metis.tools.tool import (
    ErrorClass,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    boolean_property,
    integer_property,
    log,
    object_schema,
    read_arguments,
    require_workspace,
    string_property,
    text_output,
)
from metis.tools.workspace import SearchRoot

HITS = 50
MAX_SECONDS = 20.0
_MAX_OUTPUT_BYTES = 1_000_000
_PROGRAM = (
    "import sys; sys.path[:0] = [sys.argv.pop()]; from metis.tools.search import main; main()"
)


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What grep takes."""

    pattern: str
    path: str = "."
    glob: str | None = None
    ignore_case: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = HITS


class Found(Struct):
    """One line of what the search writes."""

    path: str = ""
    line: int = 0
    text: str = ""
    skipped: str | None = None
    more: bool = False


class Grep:
    """Searches files of the workspace."""

    definition = ToolDefinition(
        name="grep",
        description=(
            "Search files of the workspace for lines that match a regular expression (of Python). "
            f"Files of more than {MAX_FILE_BYTES // 1_000_000} MB and binary files are left out."
        ),
        input_schema=object_schema(
            ("pattern",),
            pattern=string_property("The regular expression."),
            path=string_property(
                "A file or a folder, relative to the workspace; all of it by default."
            ),
            glob=string_property("Only files whose name or path matches, such as *.py."),
            ignore_case=boolean_property(
                "Take upper and lower case as the same; false unless given."
            ),
            limit=integer_property(f"How many lines to give: {HITS}, at most {MAX_HITS}."),
        ),
        side_effects=SideEffects.READ,
    )

    def __init__(self, *, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._stop = asyncio.Event()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Search."""
        asked = read_arguments(Arguments, arguments)
        try:
            re.compile(asked.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            text = f"The pattern is no regular expression: {error}."
            raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR) from None
        output = BoundedOutput(_MAX_OUTPUT_BYTES, 0)
        with require_workspace(context).search_root(asked.path) as start:
            ended = await self._run(asked, start, output)
        return _output(start.prefix, ended, output)

    def cancel(self) -> bool:
        """End the search; what was found until then is given."""
        self._stop.set()
        return True

    async def _run(self, asked: Arguments, start: SearchRoot, output: BoundedOutput) -> ProcessEnd:
        question = {
            "folder": start.directory,
            "name": start.name,
            "pattern": asked.pattern,
            "glob": asked.glob,
            "ignore_case": asked.ignore_case,
            "limit": asked.limit,
        }
        root = Path(__file__).parents[3]
        program = (sys.executable, "-I", "-S", "-c", _PROGRAM)
        command = ProcessCommand(
            argv=(*program, msgspec.json.encode(question).decode(), str(root)),
            environment={},
            descriptors=(start.directory,),
        )
        return await run(command, output, self._stop, self._max_seconds, grace_s=0.1)


def _output(prefix: str, ended: ProcessEnd, output: BoundedOutput) -> ToolOutput:
    is_cut = ended.is_timed_out or ended.is_stopped
    if ended.code != 0 and not is_cut:
        log.error("the search failed: %s", output.text())
        raise ToolFailedError("The search failed.")
    # What was written last may be half a line if the search was ended in the middle of it.
    lines = output.text().splitlines(keepends=True)
    found = [msgspec.json.decode(line, type=Found) for line in lines if line.endswith("}\n")]
    hits = [f"{prefix}{hit.path}:{hit.line}: {hit.text}" for hit in found if hit.line]
    return text_output("\n".join([*(hits or ["(no line matches)"]), *_notes(found, is_cut=is_cut)]))


def _notes(found: list[Found], *, is_cut: bool) -> list[str]:
    skipped = [hit.skipped for hit in found if hit.skipped]
    notes = [f"[left out as too large: {', '.join(skipped)}]"] if skipped else []
    if any(hit.more for hit in found):
        notes.append("[more lines match: narrow the search or raise the limit]")
    if is_cut:
        notes.append("[the search was ended before it was finished]")
    return notes
