"""`metis web`: the viewer of the store in a browser, on loopback."""

import asyncio
import secrets
import socket
import webbrowser
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from metis.canonical.errors import NoTurnError, SettingsError
from metis.canonical.ids import new_session_id
from metis.canonical.message import Message
from metis.cli.output import echo, end_interrupted_line
from metis.events import SqliteTrace
from metis.session.library import Metis
from metis.session.options import SIMULATED_MODEL, Options
from metis.session.reply import collect_reply
from metis.settings import LoadedSettings, UserPaths, load
from metis.store import open as open_store
from metis.store.entries import entry_of
from metis.transport.sockets import send_parts_at_once

_HOST = "127.0.0.1"
_SIMULATOR = "sim"


def run_web(store: str | None, port: int, *, opens_browser: bool) -> int:
    """Serve the viewer until it is interrupted."""
    try:
        listening = socket.create_server((_HOST, port))
        send_parts_at_once(listening)
    except OSError as error:
        raise SettingsError(f"port {port}: {error.strerror}", place="--port") from None
    token = secrets.token_urlsafe(24)
    # Connections wait in the socket until the server runs, so that the address works at once.
    address = f"http://{_HOST}:{listening.getsockname()[1]}/?token={token}"
    try:
        asyncio.run(_serve(store, listening, token, address, opens_browser=opens_browser))
    except KeyboardInterrupt:
        end_interrupted_line()
        return 130
    finally:
        listening.close()
    return 0


async def _serve(
    store: str | None, listening: socket.socket, token: str, address: str, *, opens_browser: bool
) -> None:
    try:
        import uvicorn  # noqa: PLC0415 - optional

        from metis.web.app import TokenAccess, Viewer  # noqa: PLC0415 - needs jinja2, optional
        from metis.web.index import ViewerIndex, index_path  # noqa: PLC0415 - only for this command
    except ImportError:
        reason = "the viewer needs more packages: pip install 'metis-llm[web]'"
        raise SettingsError(reason, place="metis web") from None
    paths = UserPaths.from_environment()
    loaded = load({"store": store}, paths=paths)
    url = loaded.settings.store or paths.store_url
    # Recovery would end turns of other processes that are still running.
    async with open_store(url, recover=False) as opened:
        index = ViewerIndex(opened, index_path(opened.name, paths.home))
        trace = SqliteTrace(paths.trace) if paths.trace.exists() else None
        viewer = Viewer(
            opened,
            TokenAccess(token),
            index=index,
            replayer=_Replayer(loaded, paths).replay,
            trace=trace,
        )
        config = uvicorn.Config(
            viewer,
            lifespan="off",
            access_log=False,  # URLs in it would contain the token
            log_config=None,
            server_header=False,
            # A page that follows a conversation never ends by itself.
            timeout_graceful_shutdown=1,
        )
        echo(f"metis viewer on {address}")
        echo("Only this machine can open it; Ctrl-C ends it.", err=True)
        if opens_browser:
            webbrowser.open(address)
        # Indexing a large store takes a while; meanwhile pages show the sessions that are indexed.
        reading = asyncio.create_task(index.refresh())
        try:
            await uvicorn.Server(config).serve([listening])
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            index.close()
            if trace is not None:
                trace.close()


class _Replayer:
    """Requests another response to a history, in a temporary store that is deleted."""

    def __init__(self, loaded: LoadedSettings, paths: UserPaths) -> None:
        self._loaded = loaded
        self._paths = paths

    async def replay(self, messages: Sequence[Message], model: str) -> Message:
        """Return the response; nothing is stored, and the model gets no tools."""
        is_simulated = model == _SIMULATOR
        settings = self._loaded.settings
        options = Options(
            base_urls={} if is_simulated else settings.base_urls,
            key_file=self._paths.keys,
            budget=settings.budget,
            simulate=is_simulated,
            free=is_simulated,
        )
        session_id = new_session_id()
        with TemporaryDirectory(prefix="metis-") as directory:
            async with Metis(f"sqlite:///{directory}/replay.db", options) as library:
                entries = [
                    entry_of(replace(message, session_id=session_id)) for message in messages
                ]
                await library.store.import_entries(entries)
                session = await library.resume(session_id)
                events = session.respond(model=SIMULATED_MODEL if is_simulated else model)
                response = (await collect_reply(events, session_id)).message
        if response is None:
            raise NoTurnError("the model returned no response")
        return response
