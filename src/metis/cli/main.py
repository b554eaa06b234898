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


@cli.command()
@INPUT
@click.option("--from", "from_name", required=True, help="The provider whose request is read.")
@click.option("--to", "to_name", required=True, help="The provider whose request is written.")
@click.option("--model", help="The model to ask; the target's default if it is another provider.")
@click.option("--strict", is_flag=True, help="Fail if anything is lost or changed.")
@click.option("--json", is_flag=True, help="Print losses as JSON, one a line.")
def convert(  # noqa: PLR0913 - one parameter an option
    source: IO[bytes], from_name: str, to_name: str, model: str | None, *, strict: bool, json: bool
) -> None:
    """Turn a request body of one provider into that of another; losses go to standard error.

    Exits with 1 if --strict is given and something is lost, with 2 if the request cannot be read.
    """
    from metis.cli.convert import print_conversion

    sys.exit(
        print_conversion(
            source, from_name=from_name, to_name=to_name, model=model, strict=strict, json=json
        )
    )


@cli.command()
@click.option("--port", default=8765, show_default=True, help="Where to listen; 0 is a free port.")
@click.option("--lenient", is_flag=True, help="Answer requests that the real API would refuse.")
def sim(port: int, *, lenient: bool) -> None:
    """Serve a simulated provider on loopback, for programs without a key or a network."""
    from metis.cli.sim import serve

    serve(port=port, is_strict=not lenient)


def main() -> None:
    """Run the command line."""
    cli(prog_name="metis")
