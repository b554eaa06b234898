"""The run_command tool: a shell command in the workspace, in its own process group."""

import asyncio
import os
import signal
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.process import BoundedOutput, ProcessCommand, ProcessEnd, child_environment, run
from metis.tools.tool import (
    ErrorClass,
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

# Errors are usually at the end of an output, and the steps that led to them at the beginning.
HEAD_BYTES = 16_000
TAIL_BYTES = 16_000
DEFAULT_SECONDS = 120
# Less than the limit of the dispatcher, whose timeout would lose the exit code.
MAX_SECONDS = 590


class CommandArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of run_command."""

    command: str
    timeout_s: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = DEFAULT_SECONDS


class RunCommand:
    """Runs a shell command without input; none of its processes outlives it."""

    definition = ToolDefinition(
        name="run_command",
        description=(
            "Run a command with sh in the workspace and return its output, errors included. Of "
            "long output the beginning and the end are returned. The command has no input; "
            "processes that it leaves in the background are ended with it."
        ),
        input_schema=object_schema(
            ("command",),
            command=string_property("The command."),
            timeout_s=integer_property(
                f"Seconds until it is ended: {DEFAULT_SECONDS}, at most {MAX_SECONDS}."
            ),
        ),
        side_effects=SideEffects.EXECUTE,
    )

    def __init__(
        self,
        *,
        environment: Mapping[str, str] = os.environ,
        allowed_variables: Collection[str] = (),
    ) -> None:
        self._environment = environment
        self._allowed_variables = allowed_variables
        self._stop = asyncio.Event()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the command."""
        parsed = read_arguments(CommandArguments, arguments)
        if "\0" in parsed.command:
            text = "A command cannot contain a zero byte."
            raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR)
        command = ProcessCommand(
            argv=("/bin/sh", "-c", parsed.command),
            cwd=require_workspace(context).root,
            environment=child_environment(self._environment, self._allowed_variables),
        )
        output = BoundedOutput(HEAD_BYTES, TAIL_BYTES)
        try:
            end = await run(command, output, self._stop, parsed.timeout_s)
        except OSError as error:
            text = f"The command could not be started: {error.strerror or type(error).__name__}."
            raise ToolFailedError(text) from None
        return _command_output(parsed, end, output)

    def cancel(self) -> bool:
        """Stop the command, and return true: its output so far is returned."""
        self._stop.set()
        return True


def _command_output(
    arguments: CommandArguments, end: ProcessEnd, output: BoundedOutput
) -> ToolOutput:
    text = output.text()
    if text and not text.endswith("\n"):
        text += "\n"
    is_success = end.code == 0 and not end.is_timed_out
    value: dict[str, object] = {"exit_code": end.code, "output_bytes": output.size_bytes}
    if end.is_timed_out:
        value["error_class"] = str(ErrorClass.TIMEOUT)
    return text_output(
        text or "(no output)" if is_success else f"{text}{_end_note(arguments, end)}",
        success=is_success,
        value=value,
        command=arguments.command,
    )


def _end_note(arguments: CommandArguments, end: ProcessEnd) -> str:
    if end.is_timed_out:
        return f"[ended after {arguments.timeout_s} s]"
    if end.is_stopped:
        return "[ended before it was finished]"
    if end.code < 0:
        return f"[killed by {signal.Signals(-end.code).name}]"
    return f"[exit code {end.code}]"
