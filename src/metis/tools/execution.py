"""Execution: one tool, bounded in time and ended when the turn is cancelled."""

import asyncio
from collections.abc import Mapping
from typing import Any

from metis.tools.tool import ErrorClass, Tool, ToolContext, ToolFailedError, ToolOutput, log
from metis.tools.walk import WorkspaceError

GIVE_UP_S = 30.0
"""How long a tool is waited for that was told to end."""

Ending = tuple[ToolOutput | None, ToolFailedError | None]
"""What a tool gave, and why it did not come to its end, if it did not."""


async def execute(
    tool: Tool, arguments: Mapping[str, Any], context: ToolContext, limit_s: float
) -> Ending:
    """Run a tool until it ends, its time is over or the turn is cancelled."""
    running = asyncio.ensure_future(tool.execute(arguments, context))
    stopped = asyncio.create_task(context.cancel.wait())
    try:
        await asyncio.wait({running, stopped}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        # A tool that ends at the moment of the cancellation has most likely ended because of it.
        if running.done() and not stopped.done():
            return _ended(running)
        if stopped.done():
            failure = cancelled()
        else:
            failure = ToolFailedError(f"Stopped after {limit_s:g} s.", ErrorClass.TIMEOUT)
        return await _end(tool, running), failure
    finally:
        stopped.cancel()
        running.cancel()


def cancelled() -> ToolFailedError:
    """The failure of a call that was cancelled."""
    return ToolFailedError("Cancelled before it was finished.", ErrorClass.CANCELLED)


def _ended(running: asyncio.Future[ToolOutput]) -> Ending:
    if running.cancelled():
        return None, ToolFailedError("The tool ended itself.")
    try:
        return running.result(), None
    except WorkspaceError as error:
        refused, failed = ErrorClass.PERMISSION_DENIED, ErrorClass.EXECUTION_ERROR
        return None, ToolFailedError(f"{error}.", refused if error.is_refused else failed)
    except ToolFailedError as failure:
        return None, failure


async def _end(tool: Tool, running: asyncio.Future[ToolOutput]) -> ToolOutput | None:
    """Make a tool end; gives what it had until then, if it says."""
    if not tool.cancel():
        running.cancel()
    await asyncio.wait({running}, timeout=GIVE_UP_S)
    if not running.done():
        log.warning("%s did not end when it was told to", tool.definition.name)
        # Nobody waits any more; a late error would otherwise be reported as never looked at.
        running.add_done_callback(lambda late: late.cancelled() or late.exception())
        return None
    if running.cancelled() or running.exception() is not None:
        return None
    return running.result()
