"""What the supervisor of commands costs: the shortest command alone, and below the supervisor.

Every command of `run_command` and every MCP server that is a program starts below a small Python
process that lets nothing of it live on. The cost comes once per command.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from metis.tools.process import (  # noqa: E402 - the path comes first
    BoundedOutput,
    ProcessCommand,
    child_environment,
    run,
)

ROUNDS = 60
COMMAND = ("/bin/sh", "-c", ":")


async def supervised() -> None:
    """Run the command as `run_command` does."""
    command = ProcessCommand(argv=COMMAND, environment=child_environment())
    end = await run(command, BoundedOutput(1000, 1000), asyncio.Event(), 10.0)
    assert end.code == 0  # noqa: S101 - a failed run would be a wrong figure


async def alone() -> None:
    """Run the command without anything else."""
    process = await asyncio.create_subprocess_exec(*COMMAND, env=child_environment())
    await process.wait()


async def bare_python() -> None:
    """Start and end the interpreter that the supervisor runs in."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", "")
    await process.wait()


async def measure() -> dict[str, list[tuple[float, float]]]:
    """Return wall time and CPU time of the children, in milliseconds, by way to run."""
    ways: tuple[Callable[[], Awaitable[None]], ...] = (alone, bare_python, supervised)
    times: dict[str, list[tuple[float, float]]] = {way.__name__: [] for way in ways}
    for _ in range(ROUNDS):
        for way in ways:
            start, before = time.perf_counter(), os.times()
            await way()
            after = os.times()
            cpu = sum(after[2:4]) - sum(before[2:4])
            times[way.__name__].append(((time.perf_counter() - start) * 1000, cpu * 1000))
    return times


def main() -> None:
    """Print a table: medians of wall time, means of CPU time, whose clock is coarse."""
    print("| way | wall ms | CPU ms |")
    print("| --- | ---: | ---: |")
    for way, pairs in asyncio.run(measure()).items():
        wall = statistics.median(pair[0] for pair in pairs)
        cpu = statistics.mean(pair[1] for pair in pairs)
        print(f"| {way.replace('_', ' ')} | {wall:.1f} | {cpu:.1f} |")


if __name__ == "__main__":
    main()
