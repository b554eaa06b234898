"""The `metis` command: the command group, its help, and the parsers of the everyday commands."""

import difflib
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from metis.cli import setup_commands, store_commands, wire_commands
from metis.cli.arguments import SESSION, STORE, complete_models, complete_sessions
from metis.version import SPEC_VERSION, __version__

DEFAULT_COMMAND = "ask"
"""The command that takes what is no command."""

INTERRUPTED = 130
"""The exit code of Ctrl-C."""

_OWN = frozenset({"-h", "--help", "--version"})

SECTIONS: Mapping[str, Sequence[str]] = {
    "Talk": ("ask", "demo", "local"),
    "Look": ("sessions", "show", "search", "trace", "cost", "models"),
    "Keep": ("export", "import", "fork", "store"),
    "Set up": ("keys", "config", "doctor", "completion"),
    "Wire formats": ("convert", "diff", "verify", "validate", "schema", "sim", "tour"),
}
"""How the help lists the commands."""


class CommandGroup(click.Group):
    """A group whose arguments are a question unless they begin with a command."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; what cannot be read is one sentence, as every other error."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except click.UsageError as error:
            click.echo(f"metis: {_sentence(error)}", err=True)
            sys.exit(error.exit_code)
        except click.ClickException as error:
            error.show()  # it names a file and a line
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command for questions in front of what is no command."""
        first = args[0] if args else None
        is_being_typed = ctx.resilient_parsing and not args
        if first not in self.commands and first not in _OWN and not is_being_typed:
            self._refuse_slip(args)
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def _refuse_slip(self, args: Sequence[str]) -> None:
        """One word that is nearly a command was hardly meant as a question."""
        words = [each for each in args if not each.startswith("-")]
        if len(words) != 1 or args[0] != words[0]:
            return
        near = difflib.get_close_matches(words[0], self.commands, n=1, cutoff=0.75)
        if near:
            raise click.UsageError(
                f"there is no command {words[0]!r}; did you mean {near[0]!r}? "
                f"To ask it as a question: metis ask {words[0]}"
            )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click asks for it
        """List the commands by what they are for; one that is in no section comes last."""
        listed = {name for names in SECTIONS.values() for name in names}
        rest = [name for name in sorted(self.commands) if name not in listed]
        for title, names in (*SECTIONS.items(), ("More", rest)):
            rows = [
                (name, self.commands[name].get_short_help_str(limit=200))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _sentence(error: click.UsageError) -> str:
    """What is wrong with the arguments, and where it stands what they may be."""
    text = " ".join(error.format_message().split()).rstrip(".")
    told = text[:1].lower() + text[1:]
    if type(error) is click.UsageError or error.ctx is None:
        return told  # our own words say what to do
    return f"{told}; `{error.ctx.command_path} --help` lists what there is"


CAPABILITIES = ("tools", "images", "thinking", "documents", "audio", "video")
GARBAGE = 100_000
"""How many new objects are looked through at a time for those that only hold each other."""
CRASHED = 70
"""The exit code of a fault in metis itself, as the system has it."""
EXIT_CODES = """Exit codes: 0 done; 1 done, but nothing found or not whole; 2 cannot be done as
asked; 3 a key is missing or wrong; 4 the provider failed or was not reached, try again; 5 a budget
is spent; 70 a fault of metis; 130 interrupted."""


@click.group(
    cls=CommandGroup,
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
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="Who answers: an id, an alias, or `sim`.",
)
@click.option(
    "-c",
    "--continue",
    "is_continued",
    is_flag=True,
    help="Go on with the last talk of this folder.",
)
@click.option(
    "-s",
    "--session",
    "session_id",
    metavar="SESSION",
    shell_complete=complete_sessions,
    help="Go on with a session; a part of its id will do.",
)
@click.option(
    "-a",
    "--attach",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Show a text, a picture or a PDF; several times for several.",
)
@click.option(
    "--thinking",
    metavar="LEVEL",
    help="How much to think: off, on, minimal to max, a number of tokens, auto.",
)
@click.option("--system", metavar="TEXT", help="What the model is told first; new sessions only.")
@click.option("--tools/--no-tools", default=None, help="Whether the built-in tools may be used.")
@click.option("-y", "--yes", "is_trusting", is_flag=True, help="Let tools change things unasked.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
@click.option(
    "--schema",
    metavar="FILE|JSON",
    help="Let the answer be JSON that keeps to a JSON Schema; `{}` is any object.",
)
@click.option("-x", "--extract", is_flag=True, help="Print only the first block of code, if any.")
@click.option("-v", "--verbose", is_flag=True, help="Show on standard error what happens.")
@STORE
def ask(  # noqa: PLR0913 - one parameter an option
    words: tuple[str, ...],
    *,
    model: str | None,
    session_id: str | None,
    files: tuple[Path, ...],
    thinking: str | None,
    schema: str | None,
    system: str | None,
    store: str | None,
    is_continued: bool,
    tools: bool | None,
    is_trusting: bool,
    as_json: bool,
    extract: bool,
    verbose: bool,
) -> None:
    """Ask a question; without one, start a conversation at the terminal.

    `metis QUESTION` does the same. What is piped in belongs to the question. In a pipe, standard
    output is the answer and nothing else; everything beside it goes to standard error.
    """
    from metis.cli.ask import run_ask
    from metis.cli.startup import StartOptions

    if system is not None and (is_continued or session_id is not None):
        raise click.UsageError("--system is for a new conversation; leave out -c and -s")
    if extract and as_json:
        raise click.UsageError("--extract and --json are two ways to print; leave one out")
    if verbose:
        show_log()
    wish = StartOptions(
        model=model,
        store=store,
        tools=tools,
        thinking=thinking,
        schema=schema,
        system=system,
        session_id=session_id,
        is_continued=is_continued,
        approve_all=is_trusting,
    )
    sys.exit(run_ask(words, files, wish, as_json=as_json, is_extracted=extract))


@cli.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--can", multiple=True, type=click.Choice(CAPABILITIES), help="What it has to do.")
@click.option("--configured", is_flag=True, help="Only those that can be asked now.")
@click.option("--all", "everything", is_flag=True, help="Also those without a short name.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def models(
    words: tuple[str, ...],
    can: tuple[str, ...],
    *,
    configured: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """List models: what they can, what they cost, and which can be asked now (●).

    Words filter by id and alias. Exits with 1 if there is none.
    """
    from metis.cli.error_text import run_guarded
    from metis.cli.models import ModelFilter, print_models

    wanted = ModelFilter(words=words, can=can, is_configured=configured, everything=everything)
    sys.exit(run_guarded(print_models, wanted, as_json=as_json))


@cli.command()
@STORE
@click.option(
    "--by",
    type=click.Choice(["day", "model", "provider", "session"]),
    default="day",
    show_default=True,
    help="How calls are put together.",
)
@click.option("--days", type=click.IntRange(min=1), help="Only the last so many days.")
@click.option(
    "--reprice", metavar="VERSION", help="Compare with a price table, such as 2026-05-08 or newest."
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def cost(
    store: str | None, by: Any, days: int | None, reprice: str | None, *, as_json: bool
) -> None:
    """Show what conversations have cost, as a table with a plot."""
    from metis.cli.cost import print_cost
    from metis.cli.error_text import run_guarded

    sys.exit(run_guarded(print_cost, store, by, days=days, reprice=reprice, as_json=as_json))


@cli.command()
@SESSION
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print each step as a line of JSON.")
def trace(session_id: str, store: str | None, *, as_json: bool) -> None:
    """Show what happened in a session, in order: who was asked, why, how long, for how much."""
    from metis.cli.error_text import run_guarded
    from metis.cli.trace import print_trace

    sys.exit(run_guarded(print_trace, store, session_id, as_json=as_json))


@cli.command()
@click.option("--fast", "is_fast", is_flag=True, help="Without pauses, as it is in a pipe.")
def demo(*, is_fast: bool) -> None:
    """Take a tour of two minutes: ask, use a tool, move to another provider, fork, look back.

    It really runs, on the simulator and in a folder of its own that is gone afterwards.
    """
    from metis.cli.error_text import run_guarded
    from metis.cli.simulator import run_demo

    sys.exit(run_guarded(run_demo, is_fast=is_fast))


for _command in (
    store_commands.show,
    store_commands.sessions,
    store_commands.fork,
    store_commands.search,
    store_commands.export,
    store_commands.import_session,
    store_commands.upkeep,
    setup_commands.keys,
    setup_commands.config,
    setup_commands.doctor,
    setup_commands.completion,
    setup_commands.local,
    wire_commands.tour,
    wire_commands.schema,
    wire_commands.validate,
    wire_commands.convert,
    wire_commands.diff,
    wire_commands.verify,
    wire_commands.sim,
):
    cli.add_command(_command)


def hide_log() -> None:
    """Keep the log of metis from the screen: what people should know is told to them in words."""
    import logging

    logging.getLogger("metis").addHandler(logging.NullHandler())


def show_log() -> None:
    """Show the log of metis on standard error."""
    import logging

    log = logging.getLogger("metis")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)


def main() -> None:
    """Run the command line; what nobody thought of is a sentence, too."""
    # Nearly all that is loaded at the start stays, and looking through it for waste takes time.
    gc.set_threshold(GARBAGE)
    hide_log()
    if "METIS_DEBUG" in os.environ:
        cli(prog_name="metis")
    try:
        cli(prog_name="metis")
    except Exception as error:  # noqa: BLE001 - a person shall see no traceback
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        click.echo(f"metis: this is a fault of metis: {told}; METIS_DEBUG=1 shows where", err=True)
        sys.exit(CRASHED)
    cli(prog_name="metis")
