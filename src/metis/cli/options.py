"""Options: the arguments that several commands share."""

import click

from metis.cli.naming import complete_sessions

STORE = click.option(
    "--store",
    metavar="URL",
    envvar="METIS_STORE",
    help="sqlite:///path or postgresql://...; metis.db under $METIS_HOME if not given.",
)
SESSION = click.argument("session_id", metavar="SESSION", shell_complete=complete_sessions)
INPUT = click.argument("source", metavar="FILE|-", type=click.File("rb"))
