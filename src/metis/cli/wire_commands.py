"""Parsers of the commands on the canonical form and the wire formats."""

from typing import IO

import click

from metis.cli.arguments import INPUT


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
    help="strict allows only the base specification; full allows additions.",
)
@click.option("--single", is_flag=True, help="Check each message alone, not as a session.")
def validate(source: IO[bytes], profile: str, *, single: bool) -> int:
    """Check a JSON or JSONL file of messages; print problems as file:line: path: problem.

    Exits with 1 if there are problems.
    """
    from metis.cli.message_files import print_problems

    return print_problems(source, profile=profile, single=single)


@click.command()
@INPUT
@click.option("--from", "from_name", required=True, help="The provider of the request.")
@click.option("--to", "to_name", required=True, help="The provider to convert it for.")
@click.option("--model", help="The model; default: that of the request, or of the new provider.")
@click.option("--strict", is_flag=True, help="Fail if anything is lost or changed.")
@click.option("--json", is_flag=True, help="Print losses as JSON, one a line.")
def convert(  # noqa: PLR0913 - one parameter an option
    source: IO[bytes], from_name: str, to_name: str, model: str | None, *, strict: bool, json: bool
) -> int:
    """Convert a request body of one provider to another; losses go to standard error.

    Exits with 1 if --strict is given and something is lost, with 2 if the request cannot be read.
    """
    from metis.cli.conversion import print_conversion

    return print_conversion(
        source, from_name=from_name, to_name=to_name, model=model, strict=strict, json=json
    )


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@INPUT
@click.option("--from", "from_name", help="The provider of the request; default: recognised.")
@click.option("--json", is_flag=True, help="Print both bodies and their losses as one object.")
def diff(source: IO[bytes], first: str, second: str, from_name: str | None, *, json: bool) -> int:
    """Compare what two providers would receive for the same request, with their losses.

    A and B are providers, or providers with a model, such as openai:gpt-5.
    """
    from metis.cli.conversion import print_difference

    return print_difference(source, first, second, from_name=from_name, json=json)


@click.command()
@click.argument("sources", metavar="FILE|-...", type=click.File("rb"), nargs=-1, required=True)
@click.option("--from", "from_name", help="The provider of recordings that do not name it.")
@click.option("--to", "to_name", help="Also list what would be lost there: openai, openai:gpt-5.")
def verify(sources: tuple[IO[bytes], ...], from_name: str | None, to_name: str | None) -> int:
    """Check recorded exchanges (JSONL) against the round-trip rules.

    Prints each finding as `file:line: kind: place and reason`, then a summary. Exits with 1 if a
    rule was broken. docs/recordings.md describes the files.
    """
    from metis.cli.verify import print_verdicts

    return print_verdicts(sources, from_name=from_name, to_name=to_name)


@click.command()
@click.option("--port", default=8765, show_default=True, help="Port to listen on; 0: any free.")
@click.option("--lenient", is_flag=True, help="Accept requests that the real API would reject.")
def sim(port: int, *, lenient: bool) -> None:
    """Serve a simulated provider on loopback, for programs without an API key or network."""
    from metis.cli.simulator import serve

    serve(port=port, is_strict=not lenient)
