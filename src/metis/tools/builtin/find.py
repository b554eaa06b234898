"""Tools that find files and lines: list_files and grep."""

import asyncio
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.process import BoundedOutput, ProcessCommand, ProcessEnd, run
from metis.tools.search import MAX_FILE_BYTES, MAX_MATCHES, SKIPPED_DIRECTORIES, walk_tree
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
from metis.tools.workspace import SearchRoot, Workspace

# A workspace can have millions of files, and a longer result would fill the context window.
MAX_ENTRIES = 1_000
MAX_LIST_SECONDS = 10.0
DEFAULT_MATCHES = 50
MAX_SEARCH_SECONDS = 20.0
_MAX_OUTPUT_BYTES = 1_000_000
_KIND_SUFFIXES = {"directory": "/", "link": "@"}


class ListArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of list_files."""

    path: str = "."
    recursive: bool = False
    pattern: str | None = None


class ListFiles:
    """Lists a directory of the workspace."""

    definition = ToolDefinition(
        name="list_files",
        description=(
            f"List a directory of the workspace, {MAX_ENTRIES} entries at most. A directory ends "
            "with a slash, a link with an at sign. "
            f"Not entered: {', '.join(sorted(SKIPPED_DIRECTORIES))}."
        ),
        input_schema=object_schema(
            (),
            path=string_property("The directory, relative to the workspace, which is the default."),
            recursive=boolean_property("Also list subdirectories; false by default."),
            pattern=string_property("Only names or paths that match, such as *.py."),
        ),
        side_effects=SideEffects.READ,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """List the directory."""
        parsed = read_arguments(ListArguments, arguments)
        return await asyncio.to_thread(_list, parsed, require_workspace(context), context.cancel)

    def cancel(self) -> bool:
        """Return true: the listing checks the cancel event of its context."""
        return True


def _list(arguments: ListArguments, workspace: Workspace, cancel: asyncio.Event) -> ToolOutput:
    deadline = time.monotonic() + MAX_LIST_SECONDS
    lines: list[str] = []
    with workspace.open_directory(arguments.path) as directory:
        for entry in walk_tree(directory, is_recursive=arguments.recursive):
            # Checked here, because a thread cannot be cancelled from outside.
            is_over = time.monotonic() >= deadline or cancel.is_set()
            if is_over or len(lines) == MAX_ENTRIES:
                lines.append("[more entries omitted: name a directory or a pattern]")
                break
            if entry.matches(arguments.pattern):
                lines.append(entry.path + _KIND_SUFFIXES.get(entry.kind, ""))
    return text_output("\n".join(lines) or "(nothing)")


class GrepArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of grep."""

    pattern: str
    path: str = "."
    glob: str | None = None
    ignore_case: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_MATCHES)] = DEFAULT_MATCHES


class SearchLine(Struct):
    """One line of JSON that the search program writes."""

    path: str = ""
    line: int = 0
    text: str = ""
    skipped: str | None = None
    more: bool = False


class Grep:
    """Searches files of the workspace in a separate process; see `metis.tools.search`."""

    definition = ToolDefinition(
        name="grep",
        description=(
            "Search files of the workspace for lines that match a Python regular expression. "
            f"Files of more than {MAX_FILE_BYTES // 1_000_000} MB and binary files are skipped."
        ),
        input_schema=object_schema(
            ("pattern",),
            pattern=string_property("The regular expression."),
            path=string_property("A file or directory, relative to the workspace; default: all."),
            glob=string_property("Only files whose name or path matches, such as *.py."),
            ignore_case=boolean_property("Ignore upper and lower case; false by default."),
            limit=integer_property(
                f"How many lines to return: {DEFAULT_MATCHES}, at most {MAX_MATCHES}."
            ),
        ),
        side_effects=SideEffects.READ,
    )

    def __init__(self, *, max_seconds: float = MAX_SEARCH_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._stop = asyncio.Event()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Search."""
        parsed = read_arguments(GrepArguments, arguments)
        try:
            # Compiled here only to report errors; the process does the matching, which can block.
            re.compile(parsed.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            text = f"The pattern is not a valid regular expression: {error}."
            raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR) from None
        output = BoundedOutput(_MAX_OUTPUT_BYTES, 0)
        with require_workspace(context).search_root(parsed.path) as root:
            end = await self._run(parsed, root, output)
        return _grep_output(root.prefix, end, output)

    def cancel(self) -> bool:
        """Stop the search, and return true: the matches so far are returned."""
        self._stop.set()
        return True

    async def _run(
        self, arguments: GrepArguments, root: SearchRoot, output: BoundedOutput
    ) -> ProcessEnd:
        query = {
            "directory": root.directory,
            "name": root.name,
            "pattern": arguments.pattern,
            "glob": arguments.glob,
            "ignore_case": arguments.ignore_case,
            "limit": arguments.limit,
        }
        # Isolated (-I) and without site packages (-S), so that no file of the workspace is
        # imported.
        program = (sys.executable, "-I", "-S", str(Path(__file__).parents[1] / "search.py"))
        command = ProcessCommand(
            argv=(*program, msgspec.json.encode(query).decode()),
            environment={},
            descriptors=(root.directory,),
        )
        return await run(command, output, self._stop, self._max_seconds, grace_s=0.1)


def _grep_output(prefix: str, end: ProcessEnd, output: BoundedOutput) -> ToolOutput:
    is_cut = end.is_timed_out or end.is_stopped
    if end.code != 0 and not is_cut:
        log.error("the search failed: %s", output.text())
        raise ToolFailedError("The search failed.")
    # The last line may be incomplete if the process was killed while it wrote.
    lines = output.text().splitlines(keepends=True)
    results = [msgspec.json.decode(line, type=SearchLine) for line in lines if line.endswith("}\n")]
    matches = [f"{prefix}{one.path}:{one.line}: {one.text}" for one in results if one.line]
    notes: list[str] = []
    if skipped := [one.skipped for one in results if one.skipped]:
        notes.append(f"[skipped as too large: {', '.join(skipped)}]")
    if any(one.more for one in results):
        notes.append("[more lines match: narrow the search or raise the limit]")
    if is_cut:
        notes.append("[the search was stopped before it was finished]")
    return text_output("\n".join([*(matches or ["(no matches)"]), *notes]))
