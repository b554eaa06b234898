"""`metis serve` and `metis run`: the gateway as a server, and clients that use it."""

import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import click
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.request_reader import RequestReader
from metis.canonical.errors import SettingsError
from metis.cli.output import EchoHandler, echo, end_interrupted_line
from metis.gateway.clients import client_setups
from metis.gateway.config import (
    NO_STORE,
    GatewayConfig,
    read_config,
    without_address,
)
from metis.session.models import Models
from metis.settings import UserPaths
from metis.store import Store
from metis.store.private_files import home_directory
from metis.store.store import open_store
from metis.transport.keys import Keys

KEYS_VARIABLE = "METIS_GATEWAY_KEYS"
"""The environment variable for keys of clients: other users can read the command line."""
_START_TIMEOUT_S = 30.0
STORE_CACHE_BYTES = 4 * 1024 * 1024
"""The SQLite page cache of each connection of the gateway. The gateway appends and looks up few
rows by key; the default of 32 MB for each connection would be more than the gateway itself uses."""


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    overrides: Mapping[str, Any]
    """Values of options by the name of the setting; None leaves the setting."""
    keys: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    file: Path | None = None

    def config(self) -> GatewayConfig:
        """Read the settings."""
        keys = (*self.keys, *filter(None, os.environ.get(KEYS_VARIABLE, "").split(",")))
        config = read_config(self.file, options=self.overrides, keys=keys, routes=self.routes)
        return without_address(config, config.host, config.port)


def print_environment(client: str, options: ServeOptions) -> int:
    """Print the lines that point a client at the gateway."""
    config = options.config()
    key = options.keys[0].rpartition("=")[2] if options.keys else None
    if key is None and config.keys:
        key = "YOUR-KEY"
    for line in client_setups(_address(config, config.port), key)[client].lines():
        echo(line)
    return 0


def run_gateway(options: ServeOptions, *, verbose: bool) -> int:
    """Serve until a signal ends it."""
    try:
        from metis.gateway import server  # noqa: PLC0415 - an extra, which may not be installed
    except ImportError as error:
        reason = f"{error.name} is missing; install metis-llm[gateway]"
        raise SettingsError(reason, place="metis serve") from None
    config = options.config()
    log = logging.getLogger("metis")
    log.addHandler(EchoHandler(logging.INFO if verbose else logging.ERROR))
    if verbose:
        log.setLevel(logging.INFO)

    def run(config: GatewayConfig, *, is_first: bool = True) -> None:
        sock = server.listening_socket(config, shares_port=config.workers > 1)
        gateway = make_gateway(config)
        on_ready = _print_start if is_first else None
        server.make_server(gateway, options.config, on_ready).run(sockets=[sock])

    try:
        if config.workers == 1:
            run(config)
            end_interrupted_line()
            return 0
        # The port is reserved here, so that all workers get the same one.
        reserved = server.listening_socket(config, shares_port=True)
    except OSError as error:
        reason = f"{config.host}:{config.port} cannot be used ({error.strerror})"
        raise SettingsError(reason, place="--port") from None
    config = replace(config, port=reserved.getsockname()[1])
    _print_start(config, config.port, None)
    code = server.Workers(config.workers, lambda: run(config, is_first=False)).serve()
    end_interrupted_line()
    return code


def make_gateway(config: GatewayConfig) -> Any:
    """Return the application for settings, with the keys and the store of the user."""
    from metis.gateway.app import Gateway  # noqa: PLC0415 - not needed to run a client
    from metis.gateway.backlog import Backlog  # noqa: PLC0415 - as above
    from metis.gateway.exchange_queue import WaitingExchanges  # noqa: PLC0415 - as above
    from metis.gateway.recorder import Recorder  # noqa: PLC0415 - as above
    from metis.gateway.upstream import Providers  # noqa: PLC0415 - as above

    paths = UserPaths.from_environment()
    keys, reader = Keys(file=paths.keys), RequestReader()
    base_urls = {name: row.base_urls[0] for name, row in config.providers.items() if row.base_urls}
    # Without a provider the simulator answers, which costs nothing.
    is_simulated = not Providers(config, keys).names()
    models = Models(base_urls=base_urls, keys=keys, free=is_simulated)
    store_url = config.store or paths.store_url
    store = (
        None if config.store == NO_STORE else open_store(store_url, cache_bytes=STORE_CACHE_BYTES)
    )
    backlog = None if store is None else Backlog(home_directory(os.environ) / "spool", store_url)
    waiting = WaitingExchanges(backlog)
    gateway = Gateway(
        config,
        keys,
        reader=reader,
        recorder=Recorder(
            store,
            models,
            reader=reader,
            trace=paths.trace,
            waiting=waiting,
            record_bytes=config.record_bytes,
        ),
        store=store,
        has_connection_watch=True,
    )
    if store is not None:
        gateway.viewer = LazyViewer(store, gateway)
    return gateway


class LazyViewer:
    """The viewer under `/ui`, which is imported with its templates by the first request."""

    def __init__(self, store: Store, gateway: Any) -> None:
        self._store = store
        self._gateway = gateway
        self._viewer: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if self._viewer is None:
            from metis.gateway.app import VIEWER_PATH  # noqa: PLC0415 - as above

            try:
                from metis.web.app import KeyAccess, Viewer  # noqa: PLC0415 - jinja2 is optional
            except ImportError:
                await _send_text(send, 501, "the viewer needs: pip install 'metis-llm[web]'")
                return
            self._viewer = Viewer(self._store, KeyAccess(self._tenants), base=VIEWER_PATH)
        await self._viewer(scope, receive, send)

    def _tenants(self) -> dict[bytes, str]:
        from metis.gateway.client_sessions import tenant_key  # noqa: PLC0415 - as above

        return {key.digest: tenant_key(key.tenant) for key in self._gateway.keys.all}


async def _send_text(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def _address(config: GatewayConfig, port: int) -> str:
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _print_start(config: GatewayConfig, port: int, gateway: Any) -> None:
    url = _address(config, port)
    echo(f"metis gateway on {url}")
    if gateway is not None and gateway.providers.is_simulated:
        echo(
            "No provider has a key: the simulator answers. Set OPENAI_API_KEY, ANTHROPIC_API_KEY …"
        )
    elif gateway is not None:
        echo(f"Providers: {', '.join(gateway.providers.names())}")
    if config.store == NO_STORE:
        echo("Exchanges are not stored.")
    if not config.keys:
        echo("No --key: every program on this machine may use it.")
    elif config.store != NO_STORE:
        echo(f"Viewer: {url}/ui")
    echo("")
    for name, setup in client_setups(url, "YOUR-KEY" if config.keys else None).items():
        echo(f"  {setup.title:<12} metis run --gateway {url} {name}")
    echo(f"\nThe lines to paste instead: metis serve --port {port} --print-env claude")
    sys.stdout.flush()


def run_client(
    name: str, arguments: tuple[str, ...], *, url: str | None = None, key: str | None = None
) -> int:
    """Run a client with the environment that points it at a gateway; return its exit code."""
    setups = client_setups(url or "", key)
    if name not in setups:
        raise click.UsageError(f"there is no client {name!r}; clients: {', '.join(setups)}")
    program = shutil.which(setups[name].command)
    if program is None:
        raise click.UsageError(f"{setups[name].command} is not installed")
    if url is not None:
        return _run(name, program, arguments, url, key)
    key = secrets.token_urlsafe(24)
    command = [sys.executable, "-m", "metis", "serve", "--port", "0"]
    environment = {**os.environ, KEYS_VARIABLE: f"{name}={key}"}
    server = subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        return _run(name, program, arguments, _started_url(server), key)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(_START_TIMEOUT_S)


def _run(name: str, program: str, arguments: tuple[str, ...], url: str, key: str | None) -> int:
    setup = client_setups(url.rstrip("/"), key)[name]
    environment = {**os.environ, **setup.environment}
    # Claude Code prefers an API key to a token, and would send the user's key to the gateway.
    if name == "claude":
        environment.pop("ANTHROPIC_API_KEY", None)
    process = subprocess.run(  # noqa: S603 - the user names the program
        [program, *setup.arguments, *arguments], env=environment, check=False
    )
    return process.returncode


def _started_url(server: "subprocess.Popen[str]") -> str:
    first = server.stdout.readline() if server.stdout is not None else ""
    url = first.strip().rpartition(" ")[2]
    if not url.startswith("http"):
        raise SettingsError("the gateway did not start", place="metis run")
    deadline = time.monotonic() + _START_TIMEOUT_S
    # A proxy of the environment cannot reach a server on this machine.
    direct = build_opener(ProxyHandler({}))
    while time.monotonic() < deadline:
        try:
            with direct.open(f"{url}/readyz", timeout=2):
                return url
        except OSError:
            time.sleep(0.05)
    raise SettingsError("the gateway did not become ready", place="metis run")
