"""Arguments that several commands share, and their completion by a shell."""

import click

from metis.cli.output import write_data
from metis.cli.text import escape_controls

_MAX_SESSIONS = 50
# The environment variable by which a shell's completion script requests completions from click.
_COMPLETION_VARIABLE = "_METIS_COMPLETE"


def complete_models(_: click.Context, __: click.Parameter, prefix: str) -> list[str]:
    """Return the names of models with a prefix: the simulator, aliases, providers, then ids."""
    from metis import adapters
    from metis.catalog.tables import catalog

    models = catalog()
    names = ["local", "sim", *sorted(models.aliases), *adapters.names(), *sorted(models.entries)]
    return [name for name in dict.fromkeys(names) if name.startswith(prefix)]


def complete_sessions(_: click.Context, __: click.Parameter, prefix: str) -> list[str]:
    """Return the ids of sessions with a prefix, newest first."""
    import asyncio

    from metis.canonical.errors import MetisError
    from metis.settings import UserPaths, load
    from metis.store import open as open_store

    async def session_ids() -> list[str]:
        url = load().settings.store or UserPaths.from_environment().store_url
        async with open_store(url, recover=False) as store:
            return [record.id for record in await store.sessions(_MAX_SESSIONS)]

    try:
        names = [name for name in asyncio.run(session_ids()) if name.startswith(prefix)]
        # The shell writes a completion to the terminal; an imported session may have any id.
        return [name for name in names if escape_controls(name) == name]
    # A shell would print an error into the line that the user is typing.
    except (MetisError, OSError):
        return []


def print_completion_script(program: click.Command, shell: str) -> int:
    """Print the script with which a shell completes commands, models and sessions."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the parser accepts no other shell
    write_data(kind(program, {}, "metis", _COMPLETION_VARIABLE).source(), nl=True)
    return 0


STORE = click.option(
    "--store",
    metavar="URL",
    envvar="METIS_STORE",
    help="sqlite:///path or postgresql://...; default: metis.db in $METIS_HOME.",
)
SESSION = click.argument("session_id", metavar="SESSION", shell_complete=complete_sessions)
LAST_SESSION = click.argument(
    "session_id", metavar="[SESSION]", default="last", shell_complete=complete_sessions
)
"""A session; the one that changed last if none is named."""
INPUT = click.argument("source", metavar="FILE|-", type=click.File("rb"))
