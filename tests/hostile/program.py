"""The program `metis` with the limits of a test, as a process that is copied for each run.

A run takes the limits and the retries from `METIS_TEST_LIMITS`, and writes the most memory that it
has used into the file that `METIS_TEST_MEMORY` names.
"""

import asyncio
import json
import os
import pty
import resource
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import metis.cli.main
from cli import forked
from metis.transport import Limits, Retry, Transport
from metis.transport import client as client_module

_ROOT = Path(__file__).parents[1]
_PIECE = 65_536
_initial = Transport.__init__
_main = metis.cli.main.main


def _limited(self: Transport, **fields: Any) -> None:
    limits, retry = json.loads(os.environ["METIS_TEST_LIMITS"])
    fields["limits"] = msgspec.convert(limits, Limits)
    fields["retry"] = msgspec.convert(retry, Retry)
    _initial(self, **fields)


def _measured() -> None:
    try:
        _main()
    finally:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        Path(os.environ["METIS_TEST_MEMORY"]).write_text(str(usage.ru_maxrss))


def encode_limits(limits: Limits, retry: Retry) -> str:
    """Return the value of `METIS_TEST_LIMITS`."""
    return msgspec.json.encode([limits, retry]).decode()


@asynccontextmanager
async def started_program(folder: Path) -> AsyncGenerator[Path]:
    """Start the process that is copied; gives its socket."""
    path = folder / "program"
    variables = os.environ | {"PYTHONPATH": str(_ROOT)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, str(path)), stdout=asyncio.subprocess.PIPE, env=variables
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield path
    finally:
        process.kill()
        await process.wait()


async def run_program(
    path: Path, arguments: list[str], folder: Path, variables: dict[str, str], *, terminal: bool
) -> tuple[int, bytes]:
    """Run the program; gives its exit code and all that it prints, at a terminal or into a pipe."""
    loop = asyncio.get_running_loop()
    reading, writing = pty.openpty() if terminal else os.pipe()
    request = {"arguments": arguments, "folder": str(folder), "variables": variables}
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(0)
        await loop.sock_connect(server, str(path))
        nothing = os.open(os.devnull, os.O_RDONLY)
        socket.send_fds(server, [json.dumps(request).encode()], [nothing, writing, writing])
        os.close(nothing)
        os.close(writing)
        output = await asyncio.to_thread(_read_all, reading)
        reply = await loop.sock_recv(server, 1)
    return reply[0] if reply else 70, output


def _read_all(stream: int) -> bytes:
    data = bytearray()
    try:
        while piece := os.read(stream, _PIECE):
            data += piece
    except OSError:  # a terminal whose other side was closed
        pass
    finally:
        os.close(stream)
    return bytes(data)


if __name__ == "__main__":
    Transport.__init__ = _limited
    metis.cli.main.main = _measured
    assert client_module.Transport is Transport
    __import__("aiohttp")
    forked.serve(sys.argv[1])
