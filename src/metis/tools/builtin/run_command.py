"""run_command: a shell command in the workspace, in a process group of its own."""

import asyncio
import os
import signal
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.process import BoundedOutput, ProcessCommand, ProcessEnd, run, without_secrets
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

HEAD_BYTES = 16_000
TAIL_BYTES = 16_000
MAX_SECONDS = 590
"""The longest time for one command: less than the dispatcher gives, so that output is kept."""
SECONDS = 120


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What run_command takes."""

    command: str
    timeout_s: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = SECONDS


class RunCommand:
    """Runs a shell command; a command has no input, and nothing of it stays behind."""

    definition = ToolDefinition(
        name="run_command",
        description=(
            "Run a command with sh in the workspace and give what it writes, errors included. Of "
            "much output the beginning and the end are kept. It has no input; what it leaves in "
            "the background is ended with it."
        ),
        input_schema=object_schema(
            ("command",),
            command=string_property("The command."),
            timeout_s=integer_property(
                f"Seconds until it is ended: {SECONDS}, at most {MAX_SECONDS}."
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
        self._allowed = allowed_variables
        self._stop = asyncio.Event()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the command."""
        asked = read_arguments(Arguments, arguments)
        if "\0" in asked.command:
            raise ToolFailedError("A command holds no zero byte.", ErrorClass.VALIDATION_ERROR)
        command = ProcessCommand(
            argv=("/bin/sh", "-c", asked.command),
            cwd=require_workspace(context).root,
            environment=without_secrets(self._environment, self._allowed),
        )
        output = BoundedOutput(HEAD_BYTES, TAIL_BYTES)
        try:
            ended = await run(command, output, self._stop, asked.timeout_s)
        except OSError as error:
            text = f"The command could not be started: {error.strerror or type(error).__name__}."
            raise ToolFailedError(text) from None
        return _output(asked, ended, output)

    def cancel(self) -> bool:
        """End the command; what it wrote until then is given."""
        self._stop.set()
        return True


def _output(asked: Arguments, ended: ProcessEnd, output: BoundedOutput) -> ToolOutput:
    text = output.text()
    if text and not text.endswith("\n"):
        text += "\n"
    is_fine = ended.code == 0 and not ended.is_timed_out
    value: dict[str, object] = {"exit_code": ended.code, "output_bytes": output.size_bytes}
    if ended.is_timed_out:
        value["error_class"] = str(ErrorClass.TIMEOUT)
    return text_output(
        f"{text}{_ending(asked, ended)}" if not is_fine else text or "(no output)",
        success=is_fine,
        value=value,
        command=asked.command,
    )


def _ending(asked: Arguments, ended: ProcessEnd) -> str:
    if ended.is_timed_out:
        return f"[ended after {asked.timeout_s} s]"
    if ended.is_stopped:
        return "[ended before it was finished]"
    if ended.code < 0:
        return f"[killed by {signal.Signals(-ended.code).name}]"
    return f"[exit code {ended.code}]"
