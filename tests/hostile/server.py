"""A loopback server that misbehaves in one way until it is healed; then it is the simulator."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote

from hostile.dialects import Dialect
from hostile.kinds import END, RESET, Kind, chunk, head
from metis.sim.endpoints import HttpRequest
from metis.sim.service import Service

FEATURES_PATH = "/api/show"
"""Where the program looks up what a model of Ollama can do, before the question."""


class HostileServer:
    """Answers requests of one protocol with one kind of misbehaviour."""

    def __init__(self, kind: Kind, dialect: Dialect) -> None:
        self.kind = kind
        self.dialect = dialect
        self.request_count = 0
        """How many requests were answered in a hostile way."""
        self.is_healed = False
        self.strict = Service()
        """Answers honestly, and refuses what the provider would refuse."""
        self.refusals: list[bytes] = []
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    request = await _read_request(reader)
                    if self.is_healed or self.request_count >= self.kind.times:
                        await self._answer(request, writer)
                        continue
                    # What the model can do is looked up first, and may fail without harm.
                    self.request_count += request.path != FEATURES_PATH
                    await self._misbehave(writer)
                    return
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _misbehave(self, writer: asyncio.StreamWriter) -> None:
        for step in self.kind.send(self.dialect):
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step == RESET:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )

    async def _answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        reply = self.strict.respond(request)
        if reply.status != 200:
            self.refusals.append(reply.body)
        fields = {name: value for name, value in reply.headers.items() if "length" not in name}
        writer.write(head(f"{reply.status} Honest", **fields, transfer_encoding="chunked"))
        for data in reply.chunks:
            writer.write(chunk(data) if data else b"")
        writer.write(END)
        await writer.drain()

    async def stop(self) -> None:
        """End every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> HttpRequest:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return HttpRequest(
        method=method, path=unquote(path.partition("?")[0]), headers=headers, body=body
    )


@asynccontextmanager
async def hostile_server(kind: Kind, dialect: Dialect) -> AsyncGenerator[HostileServer]:
    """Run a server that misbehaves."""
    server = HostileServer(kind, dialect)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, limit=1 << 20)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await server.stop()
