"""`metis web`: the viewer of the store in a browser, on loopback."""

import asyncio
import secrets
import socket
import webbrowser

from metis.canonical.errors import SettingsError
from metis.cli.output import echo
from metis.settings import UserPaths, load
from metis.store import open as open_store

_HOST = "127.0.0.1"


def run_web(store: str | None, port: int, *, opens_browser: bool) -> int:
    """Serve the viewer until it is interrupted."""
    try:
        listening = socket.create_server((_HOST, port))
    except OSError as error:
        raise SettingsError(f"port {port}: {error.strerror}", place="--port") from None
    token = secrets.token_urlsafe(24)
    # Connections wait in the socket until the server runs, so that the address works at once.
    address = f"http://{_HOST}:{listening.getsockname()[1]}/?token={token}"
    try:
        asyncio.run(_serve(store, listening, token, address, opens_browser=opens_browser))
    except KeyboardInterrupt:
        return 130
    finally:
        listening.close()
    return 0


async def _serve(
    store: str | None, listening: socket.socket, token: str, address: str, *, opens_browser: bool
) -> None:
    try:
        import uvicorn  # noqa: PLC0415 - optional

        from metis.web.app import Viewer  # noqa: PLC0415 - needs jinja2, which is optional
    except ImportError:
        reason = "the viewer needs more packages: pip install 'metis-llm[web]'"
        raise SettingsError(reason, place="metis web") from None
    paths = UserPaths.from_environment()
    url = load({"store": store}, paths=paths).settings.store or paths.store_url
    # Recovery would end turns of other processes that are still running.
    async with open_store(url, recover=False) as opened:
        config = uvicorn.Config(
            Viewer(opened, token),
            lifespan="off",
            access_log=False,  # it would hold the token
            log_config=None,
            server_header=False,
        )
        echo(f"metis viewer on {address}")
        echo("Only this machine can open it; Ctrl-C ends it.", err=True)
        if opens_browser:
            webbrowser.open(address)
        await uvicorn.Server(config).serve([listening])
