"""The `metis` command: the parser, and nothing but the parser."""

import sys
from pathlib import Path
from typing import IO

import click

from metis.cli.front import Front
from metis.version import SPEC_VERSION, __version__

STORE = click.option(
    "--store",
    metavar="URL",
    envvar="METIS_STORE",
    help="sqlite:///path or postgresql://...; metis.db under $METIS_HOME if not given.",
)
EXIT_CODES = """Exit codes: 0 done; 1 done, but nothing found or not whole; 2 cannot be done as
asked; 3 a key is missing or wrong; 4 the provider failed or was not reached, try again; 5 a budget
is spent; 130 interrupted."""
SESSION = click.argument("session_id", metavar="SESSION")
INPUT = click.argument("source", metavar="FILE|-", type=click.File("rb"))


@click.group(
    cls=Front,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
    subcommand_metavar="[QUESTION | COMMAND ...]",
)
@click.version_option(
    __version__, prog_name="metis", message=f"%(prog)s %(version)s (canonical form {SPEC_VERSION})"
)
def cli() -> None:
    """Talk with language models, and keep what was said in one canonical form.

    \b
    metis                          a conversation; no key is needed to begin
    metis "why is the sky blue"    one question, one answer
    cat notes.txt | metis "sum up" what is piped in belongs to the question
    metis -c "and at night?"       go on with the last conversation

    Options of a question, such as -m MODEL and --json, are those of `metis ask`.
    """  # noqa: D301 - click reads the backslash


@cli.command()
@click.argument("words", nargs=-1, metavar="[QUESTION]...")
@click.option("-m", "--model", metavar="MODEL", help="Who answers: an id, an alias, or `sim`.")
@click.option("-c", "--continue", "is_continued", is_flag=True, help="Go on where this folder was.")
@click.option("-s", "--session", "session_id", metavar="SESSION", help="Go on with a session.")
@click.option(
    "-a",
    "--attach",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Show a text, a picture or a PDF; several times for several.",
)
@click.option("--system", metavar="TEXT", help="What the model is told first; new sessions only.")
@click.option("--tools/--no-tools", default=None, help="Whether the built-in tools may be used.")
@click.option("-y", "--yes", "is_trusting", is_flag=True, help="Let tools change things unasked.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Show on standard error what happens.")
@STORE
def ask(  # noqa: PLR0913 - one parameter an option
    words: tuple[str, ...],
    *,
    model: str | None,
    session_id: str | None,
    files: tuple[Path, ...],
    system: str | None,
    store: str | None,
    is_continued: bool,
    tools: bool | None,
    is_trusting: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Ask a question; without one, start a conversation at the terminal.

    `metis QUESTION` does the same. What is piped in belongs to the question. In a pipe, standard
    output is the answer and nothing else; everything beside it goes to standard error.
    """
    from metis.cli.ask import run_ask
    from metis.cli.start import Wish

    if system is not None and (is_continued or session_id is not None):
        raise click.UsageError("--system is for a new conversation; leave out -c and -s")
    log_to_stderr(verbose=verbose)
    wish = Wish(
        model=model,
        store=store,
        tools=tools,
        system=system,
        session_id=session_id,
        is_continued=is_continued,
        is_trusting=is_trusting,
    )
    sys.exit(run_ask(words, files, wish, as_json=as_json))


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
@click.argument("source", metavar="SESSION|FILE|-")
@STORE
def show(source: str, store: str | None) -> None:
    """Print a stored session, or a JSON or JSONL file of messages, as a conversation for people."""
    if source != "-" and not Path(source).exists():
        from metis.cli.stored import print_session

        sys.exit(print_session(store, source))
    from metis.cli.show import print_conversation

    with click.open_file(source, "rb") as file:
        sys.exit(print_conversation(file))


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
@STORE
@click.option("--limit", default=100, show_default=True, help="How many at most.")
def sessions(store: str | None, limit: int) -> None:
    """List the stored sessions, the one that changed last first."""
    from metis.cli.stored import print_sessions

    sys.exit(print_sessions(store, limit))


@cli.command()
@SESSION
@STORE
@click.option("--at", metavar="MESSAGE", help="The last message to copy; all if not given.")
def fork(session_id: str, store: str | None, at: str | None) -> None:
    """Start a new session as a copy of another, and print its id."""
    from metis.cli.stored import print_fork

    sys.exit(print_fork(store, session_id, at))


@cli.command()
@click.argument("words", nargs=-1, required=True)
@STORE
@click.option("--session", metavar="SESSION", help="Search in one session only.")
@click.option("--limit", default=20, show_default=True, help="How many at most.")
def search(words: tuple[str, ...], store: str | None, session: str | None, limit: int) -> None:
    """Find the messages that hold all words, best first.

    Exits with 1 if there is none.
    """
    from metis.cli.stored import print_matches

    sys.exit(print_matches(store, " ".join(words), session, limit))


@cli.command()
@SESSION
@STORE
@click.option("-o", "--output", "target", type=click.File("wb"), default="-", help="A file.")
def export(session_id: str, store: str | None, target: IO[bytes]) -> None:
    """Write a session as JSON lines: all that is needed to have it again."""
    from metis.cli.stored import write_export

    sys.exit(write_export(store, session_id, target))


@cli.command(name="import")
@INPUT
@STORE
@click.option("--new-ids", is_flag=True, help="Import beside a session of the same id.")
def import_session(source: IO[bytes], store: str | None, *, new_ids: bool) -> None:
    """Read what `metis export` wrote, and print the id of the session."""
    from metis.cli.stored import read_import

    sys.exit(read_import(store, source, new_ids=new_ids))


@cli.group(name="store")
def upkeep() -> None:
    """Check, back up, sweep and migrate a store."""


@upkeep.command()
@STORE
def check(store: str | None) -> None:
    """Look for broken pages, broken rules and tables that disagree.

    Exits with 1 if anything is wrong.
    """
    from metis.cli.upkeep import print_check

    sys.exit(print_check(store))


@upkeep.command()
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@STORE
def backup(target: Path, store: str | None) -> None:
    """Copy everything to a new file, while others go on."""
    from metis.cli.upkeep import write_backup

    sys.exit(write_backup(store, target))


@upkeep.command()
@STORE
@click.option("--sessions", type=float, metavar="DAYS", help="Delete sessions unchanged so long.")
@click.option("--events", type=float, metavar="DAYS", help="Delete events older than this.")
@click.option("--raw", type=float, metavar="DAYS", help="Drop raw parts older than this.")
@click.option("--raw-bytes", type=int, help="Drop raw parts larger than this.")
@click.option("--apply", is_flag=True, help="Do it; without this only say what would be done.")
def sweep(  # noqa: PLR0913 - one parameter an option
    store: str | None,
    sessions: float | None,
    events: float | None,
    raw: float | None,
    raw_bytes: int | None,
    *,
    apply: bool,
) -> None:
    """Let go of what is old or large."""
    from metis.cli.upkeep import days_ago, print_sweep
    from metis.store import Policy

    policy = Policy(
        sessions_before=days_ago(sessions),
        events_before=days_ago(events),
        raw_before=days_ago(raw),
        raw_bytes=raw_bytes,
    )
    sys.exit(print_sweep(store, policy, is_dry_run=not apply))


@upkeep.command()
@STORE
def migrate(store: str | None) -> None:
    """Bring the tables up to date; opening a store does the same."""
    from metis.cli.upkeep import print_migration

    sys.exit(print_migration(store))


@cli.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B")
@INPUT
@click.option("--from", "from_name", help="The provider whose request is read; guessed if absent.")
@click.option("--json", is_flag=True, help="Print both bodies and their losses as one object.")
def diff(source: IO[bytes], left: str, right: str, from_name: str | None, *, json: bool) -> None:
    """Show what two targets would receive for the same request, side by side, with their losses.

    A and B are providers, or providers with a model, such as openai:gpt-5.
    """
    from metis.cli.diff import print_difference

    sys.exit(print_difference(source, left, right, from_name=from_name, json=json))


@cli.command()
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


@cli.command()
@click.option("--port", default=8765, show_default=True, help="Where to listen; 0 is a free port.")
@click.option("--lenient", is_flag=True, help="Answer requests that the real API would refuse.")
def sim(port: int, *, lenient: bool) -> None:
    """Serve a simulated provider on loopback, for programs without a key or a network."""
    from metis.cli.sim import serve

    serve(port=port, is_strict=not lenient)


def log_to_stderr(*, verbose: bool) -> None:
    """Show the log of metis, or keep it from the screen."""
    import logging

    log = logging.getLogger("metis")
    log.addHandler(logging.StreamHandler() if verbose else logging.NullHandler())
    log.setLevel(logging.INFO if verbose else logging.ERROR)
    log.propagate = False


def main() -> None:
    """Run the command line."""
    cli(prog_name="metis")
