"""Parsers of the commands of the gateway."""

from pathlib import Path

import click

_CLIENTS = ("claude", "codex", "gemini", "opencode", "aider")


@click.command()
@click.option("--host", help="Address to listen on; any but loopback needs --key.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 picks a free one.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="[[TEAM/]USER=]KEY",
    help="A key that clients may use; repeatable.",
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    metavar="PATTERN=PROVIDER:MODEL",
    help="Which model answers requests for a name; the first match counts.",
)
@click.option("--store", metavar="URL|none", help="Store for exchanges; `none` stores nothing.")
@click.option("--workers", type=click.IntRange(1, 256), help="Number of processes.")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings in TOML; SIGHUP reads them again.",
)
@click.option(
    "--print-env",
    "client",
    type=click.Choice(_CLIENTS),
    help="Print the lines that point a client at the gateway, and exit.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print the log to standard error.")
def serve(  # noqa: PLR0913, PLR0917 - one parameter an option
    host: str | None,
    port: int | None,
    keys: tuple[str, ...],
    routes: tuple[str, ...],
    store: str | None,
    workers: int | None,
    file: Path | None,
    client: str | None,
    *,
    verbose: bool,
) -> int:
    """Serve every provider to existing clients, each in the protocol that it speaks.

    Without an API key for any provider, the simulator answers.
    """
    from metis.cli.serve import ServeOptions, print_environment, run_gateway

    options = ServeOptions(
        overrides={"host": host, "port": port, "workers": workers, "store": store},
        keys=keys,
        routes=routes,
        file=file,
    )
    if client is not None:
        return print_environment(client, options)
    return run_gateway(options, verbose=verbose)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--gateway", "url", metavar="URL", help="Use a gateway that is already running.")
@click.option("--key", metavar="KEY", help="The key for that gateway.")
@click.argument("client", metavar="CLIENT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(url: str | None, key: str | None, client: str, arguments: tuple[str, ...]) -> int:
    """Run a client through a gateway: claude, codex, gemini, opencode or aider.

    Without --gateway, a gateway is started and runs as long as the client.
    """
    from metis.cli.serve import run_client

    return run_client(client, arguments, url=url, key=key)
