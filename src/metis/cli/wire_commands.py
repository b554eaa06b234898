"""Parsers of the commands on the canonical form and the wire formats."""

import sys
from typing import IO

import click

from metis.cli.arguments import INPUT


@click.command()
def tour() -> None:
    """Walk through the canonical form: build, validate, store, price and print four examples."""
    from metis.cli.tour import run_tour

    run_tour()


@click.command()
def schema() -> None:
    """Print the JSON Schema of the canonical form."""
    from metis.cli.message_files import print_schema

    print_schema()


@click.command()
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
    from metis.cli.message_files import print_problems

    sys.exit(print_problems(source, profile=profile, single=single))


@click.command()
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
    from metis.cli.conversion import print_conversion

    sys.exit(
        print_conversion(
            source, from_name=from_name, to_name=to_name, model=model, strict=strict, json=json
        )
    )


@click.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@INPUT
@click.option("--from", "from_name", help="The provider whose request is read; guessed if absent.")
@click.option("--json", is_flag=True, help="Print both bodies and their losses as one object.")
def diff(source: IO[bytes], left: str, right: str, from_name: str | None, *, json: bool) -> None:
    """Show what two targets would receive for the same request, side by side, with their losses.

    A and B are providers, or providers with a model, such as openai:gpt-5.
    """
    from metis.cli.conversion import print_difference

    sys.exit(print_difference(source, left, right, from_name=from_name, json=json))


@click.command()
@click.argument("sources", metavar="FILE|-...", type=click.File("rb"), nargs=-1, required=True)
@click.option("--from", "from_name", help="The provider of recordings that do not name it.")
@click.option("--to", "to_name", help="Also tell what would be lost there: openai, openai:gpt-5.")
def verify(sources: tuple[IO[bytes], ...], from_name: str | None, to_name: str | None) -> None:
    """Check recorded exchanges (JSONL): is everything read, kept, and written again as it was?

    Prints each finding as file:line: what: where and why, then what holds. Exits with 1 if
    something broke. docs/recordings.md describes the files.
    """
    from metis.cli.verify import print_verdicts

    sys.exit(print_verdicts(sources, from_name=from_name, to_name=to_name))


@click.command()
@click.option("--port", default=8765, show_default=True, help="Where to listen; 0 is a free port.")
@click.option("--lenient", is_flag=True, help="Answer requests that the real API would refuse.")
def sim(port: int, *, lenient: bool) -> None:
    """Serve a simulated provider on loopback, for programs without a key or a network."""
    from metis.cli.simulator import serve

    serve(port=port, is_strict=not lenient)
