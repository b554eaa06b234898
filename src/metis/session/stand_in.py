"""StandIn: the simulator in the place of every provider, loaded when somebody calls."""

import asyncio
import importlib
import logging
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metis.sim import Simulator

log = logging.getLogger("metis.session")

_HOST = "127.0.0.1"


class StandIn:
    """A port that listens at once; whoever calls before the simulator is loaded waits a moment.

    It takes as long to load as all the rest of a first prompt, and nobody calls before that.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server((_HOST, 0))
        self._socket.setblocking(False)  # noqa: FBT003 - the name of the method says it
        self._loading: asyncio.Task[None] | None = None
        self._simulator: Simulator | None = None
        self.base_url = f"http://{_HOST}:{self._socket.getsockname()[1]}"
        """Where it listens."""
        asyncio.get_running_loop().add_reader(self._socket, self._begin)

    async def prepare(self) -> None:
        """Load it now, in a thread, so that the first call does not wait."""
        await asyncio.shield(self._begin())

    async def stop(self) -> None:
        """Close every connection and the port."""
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._loading is not None:
            await self._loading
        if self._simulator is not None:
            await self._simulator.stop()
        self._socket.close()

    def _begin(self) -> asyncio.Task[None]:
        if self._loading is None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._loading = asyncio.create_task(self._load())
        return self._loading

    async def _load(self) -> None:
        try:
            sim = await asyncio.to_thread(importlib.import_module, "metis.sim")
            simulator: Simulator = sim.Simulator(listening=self._socket)
            await simulator.start()
        except Exception:
            log.exception("the simulator cannot be started")
            self._socket.close()  # who calls is told at once that nobody is there
        else:
            self._simulator = simulator
