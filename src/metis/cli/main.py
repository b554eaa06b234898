"""The `metis` command: the parser, and nothing but the parser."""

import sys
from typing import IO

import click

from metis.version import SPEC_VERSION, __version__

INPUT = click.argument("source", metavar="FILE|-", type=click.File("rb"))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, prog_name="metis", message=f"%(prog)s %(version)s (canonical form {SPEC_VERSION})"
)
def cli() -> None:
    """Keep conversations with language models in one canonical form."""


@cli.command()
def tour() -> None:
    """Walk through the canonical form: build, validate, store, price and print four examples."""
    from metis.cli.tour import run_tour

    run_tour()


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the canonical form."""
    from metis.cli.schema import print_schema

    print_schema()


@cli.command()
@INPUT
@click.option(
    "--profile",
    type=click.Choice(["full", "strict"]),
    default="full",
    show_default=True,
    help="strict is the source text to the letter; full knows the additions.",
)
@click.option("--single", is_flag=True, help="Check each message by itself, not as a session.")
def validate(source: IO[bytes], profile: str, *, single: bool) -> None:
    """Check a JSON or JSONL file of messages; print problems as file:line: path: problem.

    Exits with 1 if there are problems.
    """
    from metis.cli.validate import print_problems

    sys.exit(print_problems(source, profile=profile, single=single))


@cli.command()
@INPUT
def show(source: IO[bytes]) -> None:
    """Print a JSON or JSONL file of messages as a conversation for people."""
    from metis.cli.show import print_conversation

    sys.exit(print_conversation(source))


def main() -> None:
    """Run the command line."""
    cli(prog_name="metis")
