"""Running: the local model, served for as long as a context lasts."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from metis.canonical.errors import NetworkError
from metis.cli.local.folder import CONTEXT_TOKENS, NAME, is_there, packages, weights

PATIENCE_S = 120.0
"""How long the server may take to load the weights."""
_ENDING_S = 5.0


@asynccontextmanager
async def serving(folder: Path, *, port: int = 0) -> AsyncGenerator[str]:
    """Start the server, give its address, and end it.

    Raises:
        NetworkError: the model was not fetched, or the server did not come up.
    """
    if not is_there(folder):
        raise NetworkError(f"{NAME} was not fetched yet; run `metis local setup`", provider="local")
    server = Path(__file__).with_name("serve.py")
    arguments = (packages(folder), weights(folder), port, CONTEXT_TOKENS)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(server),
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield await _address(process)
    finally:
        await _end(process)


async def _address(process: asyncio.subprocess.Process) -> str:
    """The line that the server prints when it listens."""
    assert process.stdout is not None  # noqa: S101 - asked for above
    try:
        async with asyncio.timeout(PATIENCE_S):
            while line := await process.stdout.readline():
                if line.startswith(b"http://127.0.0.1:"):
                    return line.decode().strip()
    except TimeoutError:
        pass
    hint = "try `metis local setup --force`"
    raise NetworkError(f"{NAME} could not be started; {hint}", provider="local")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the server end by itself, and make it if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(ProcessLookupError):
        try:
            await asyncio.wait_for(process.wait(), _ENDING_S)
        except TimeoutError:
            process.kill()
            await process.wait()
