"""`metis completion`: the script that a shell reads to complete commands, models and sessions."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_METIS_COMPLETE"
"""The variable by which the script asks for completions."""


def print_script(program: click.Command, shell: str) -> int:
    """Print the script of a shell that click knows."""
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the parser lets only such shells through
    click.echo(kind(program, {}, "metis", VARIABLE).source())
    return 0
