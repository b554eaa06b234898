"""Arguments that several commands share, and their completion by a shell."""

import click
from click.shell_completion import get_completion_class

_MOST = 50


def complete_models(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """The names of models that begin so: aliases first, then ids, and the simulator."""
    from metis import adapters
    from metis.catalog.tables import catalog

    known = catalog()
    names = ["local", "sim", *sorted(known.aliases), *adapters.names(), *sorted(known.entries)]
    return [name for name in dict.fromkeys(names) if name.startswith(begun)]


def complete_sessions(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """The ids of sessions that begin so, newest first."""
    import asyncio

    from metis import store
    from metis.canonical.errors import MetisError
    from metis.settings import UserPaths, load

    async def ids() -> list[str]:
        url = load().settings.store or UserPaths.from_environment().store_url
        async with store.open(url, recover=False) as keep:
            return [each.id for each in await keep.sessions(_MOST)]

    try:
        return [each for each in asyncio.run(ids()) if each.startswith(begun)]
    except (MetisError, OSError):
        return []


STORE = click.option(
    "--store",
    metavar="URL",
    envvar="METIS_STORE",
    help="sqlite:///path or postgresql://...; metis.db under $METIS_HOME if not given.",
)
SESSION = click.argument("session_id", metavar="SESSION", shell_complete=complete_sessions)
INPUT = click.argument("source", metavar="FILE|-", type=click.File("rb"))


VARIABLE = "_METIS_COMPLETE"
"""The variable by which the script asks for completions."""


def print_script(program: click.Command, shell: str) -> int:
    """Print the script of a shell that click knows."""
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the parser lets only such shells through
    click.echo(kind(program, {}, "metis", VARIABLE).source())
    return 0
