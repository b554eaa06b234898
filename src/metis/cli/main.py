"""The `metis` command: the command group, its help, and the parsers of the everyday commands."""

import gc
import os
import sys
from pathlib import Path
from typing import Any

import click

from metis.cli import gateway_commands, setup_commands, store_commands, wire_commands
from metis.cli.arguments import LAST_SESSION, STORE, complete_models, complete_sessions
from metis.cli.command_group import CommandGroup
from metis.cli.output import EchoHandler, echo, echo_disabled
from metis.version import SPEC_VERSION, __version__

CAPABILITIES = ("tools", "images", "thinking", "documents", "audio", "video")
# How many new objects trigger a garbage collection; Python's default would slow every start.
GC_THRESHOLD = 100_000
# The exit code of an error in metis itself: EX_SOFTWARE of sysexits.h.
INTERNAL_ERROR = 70
EXIT_CODES = """Exit codes: 0 success; 1 no result, or an incomplete one; 2 invalid arguments,
settings or store; 3 API key missing or rejected; 4 provider failed or not reached, try again;
5 budget spent; 6 request refused by the provider; 70 internal error; 130 interrupted."""


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
    """Chat with any LLM from the terminal; conversations are stored locally.

    \b
    metis                          start a chat; works without an API key
    metis "why is the sky blue"    ask one question
    cat notes.txt | metis "sum up" add piped text to the question
    metis -c "and at night?"       continue the last conversation

    \b
    Options of a question (all of them: metis ask --help):
      -m, --model MODEL     id, alias, provider, sim or local
      -c, --continue        continue the last conversation in this directory
      -s, --session SESSION continue a session
      -a, --attach FILE     attach a text file, an image or a PDF
      -f, --fragment SOURCE add a file, files (src/*.py) or a URL
      -t, --template NAME   use a template
      --system TEXT         system prompt of a new conversation
      --thinking LEVEL      reasoning effort
      --no-tools, -y        no tools; tools without confirmation
      --schema SCHEMA       require JSON that matches a schema
      --json                print the response as JSON
      --no-log              store nothing
    """  # noqa: D301 - click reads the backslash


@cli.command()
@click.argument("words", nargs=-1, metavar="[QUESTION]...")
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_models,
    help="Model: id, alias, provider, `sim` or `local`.",
)
@click.option(
    "-c",
    "--continue",
    "is_continued",
    is_flag=True,
    help="Continue the last conversation in this directory.",
)
@click.option(
    "-s",
    "--session",
    "session_id",
    metavar="SESSION",
    shell_complete=complete_sessions,
    help="Continue a session; part of its id or title is enough.",
)
@click.option(
    "-a",
    "--attach",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Attach a text file, an image or a PDF; repeatable.",
)
@click.option(
    "--thinking",
    metavar="LEVEL",
    help="Reasoning effort: off, on, minimal to max, a number of tokens, auto.",
)
@click.option("--system", metavar="TEXT", help="System prompt (new sessions only).")
@click.option("--tools/--no-tools", default=None, help="Allow the built-in tools or not.")
@click.option(
    "-y",
    "--yes",
    "approve_all",
    is_flag=True,
    help="Run tools without asking for confirmation.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the response as one JSON object.")
@click.option(
    "--schema",
    metavar="SCHEMA",
    help="Require JSON output: a JSON Schema or its file, `name, age int`, or `module:Type`.",
)
@click.option(
    "-f",
    "--fragment",
    "fragments",
    metavar="SOURCE",
    multiple=True,
    help="Add the text of a file, of files (`src/*.py`) or of a URL; repeatable.",
)
@click.option(
    "-t", "--template", metavar="NAME", help="Use a template; `metis templates` lists them."
)
@click.option(
    "-p",
    "--param",
    "params",
    metavar="NAME=VALUE",
    multiple=True,
    help="The value of a variable of the template; repeatable.",
)
@click.option("--no-log", "is_unlogged", is_flag=True, help="Store nothing of this conversation.")
@click.option("-x", "--extract", is_flag=True, help="Print only the first code block, if any.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print warnings to standard error: losses, retries, fallbacks.",
)
@STORE
def ask(
    words: tuple[str, ...],
    files: tuple[Path, ...],
    *,
    fragments: tuple[str, ...],
    verbose: bool,
    **start: Any,
) -> int:
    """Ask a question; without one, start a chat.

    `metis QUESTION` does the same. Piped text is added to the question. In a pipe, standard output
    is only the response; everything else goes to standard error.
    """
    if not (words or files or fragments or start["template"]):
        click.get_current_context().with_resource(echo_disabled())
    from metis.cli.ask import run_ask
    from metis.cli.startup import StartOptions

    as_json, extract = start.pop("as_json"), start.pop("extract")
    template, params = start.pop("template"), start.pop("params")
    if template is not None or params:
        from metis.cli.templates import apply_template

        words, start, extract = apply_template(template, params, words, start, extract=extract)
    # The names of the other options are those of the fields.
    options = StartOptions(**start)
    if options.is_unlogged and (options.is_continued or options.session_id is not None):
        raise click.UsageError("--no-log is for new conversations; remove -c and -s")
    if options.system is not None and (options.is_continued or options.session_id is not None):
        raise click.UsageError("--system is for new conversations; remove -c and -s")
    if extract and as_json:
        raise click.UsageError("--extract and --json exclude each other; remove one")
    if verbose:
        show_log()
    return run_ask(words, files, options, as_json=as_json, code_only=extract, fragments=fragments)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def chat(context: click.Context, options: tuple[str, ...]) -> int:
    """Start a chat; it takes the options of `metis ask`."""
    # The options are parsed by `ask`; unlike there, a word is an error.
    ask_context = ask.make_context("chat", list(options), parent=context.parent)
    if ask_context.params["words"]:
        raise click.UsageError(
            'a chat starts without a question; to ask one: metis "your question"'
        )
    return ask.invoke(ask_context)


@cli.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--can", multiple=True, type=click.Choice(CAPABILITIES), help="Required feature.")
@click.option("--configured", is_flag=True, help="Only models that can be used now.")
@click.option("--all", "everything", is_flag=True, help="Also models without an alias.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def models(
    words: tuple[str, ...],
    can: tuple[str, ...],
    *,
    configured: bool,
    everything: bool,
    as_json: bool,
) -> int:
    """List models with their features and prices; ● marks those that can be used now.

    Words filter by id and alias. Exits with 1 if no model matches.
    """
    from metis.cli.models import ModelFilter, print_models

    model_filter = ModelFilter(
        words=words, can=can, is_configured=configured, everything=everything
    )
    return print_models(model_filter, as_json=as_json)


@cli.command()
@STORE
@click.option(
    "--by",
    type=click.Choice(["day", "model", "provider", "session"]),
    default="day",
    show_default=True,
    help="How to group the calls.",
)
@click.option("--days", type=click.IntRange(min=1), help="Only the last DAYS days.")
@click.option(
    "--reprice", metavar="VERSION", help="Compare with a price table, such as 2026-05-08 or newest."
)
@click.option(
    "--look-up",
    metavar="SESSION",
    help="Ask the provider what it charged for the calls of a session, and compare.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cost(  # noqa: PLR0913 - one parameter per option
    store: str | None,
    by: Any,
    days: int | None,
    reprice: str | None,
    look_up: str | None,
    *,
    as_json: bool,
) -> int:
    """Show what conversations have cost."""
    from metis.cli.cost import print_charges, print_cost

    if look_up is not None:
        return print_charges(store, look_up, as_json=as_json)
    return print_cost(store, by, days=days, reprice=reprice, as_json=as_json)


@cli.command()
@LAST_SESSION
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print each step as a line of JSON.")
def trace(session_id: str, store: str | None, *, as_json: bool) -> int:
    """Show the steps of a session: which model answered and why, how long it took, what it cost.

    Without an argument it shows the session that changed last.
    """
    from metis.cli.trace import print_trace

    return print_trace(store, session_id, as_json=as_json)


@cli.command()
@click.option(
    "--fast", "is_fast", is_flag=True, help="Do not pause between the steps, as in a pipe."
)
def demo(*, is_fast: bool) -> int:
    """Take a two-minute tour: ask, use a tool, switch providers, fork, look back.

    It runs on the simulator, in a temporary directory that is deleted afterwards.
    """
    from metis.cli.simulator import run_demo

    return run_demo(is_fast=is_fast)


@cli.command("help")
@click.argument("command", required=False)
@click.pass_context
def show_help(context: click.Context, command: str | None) -> int:
    """Show this help, or that of a command."""
    parent = context.parent
    assert parent is not None  # noqa: S101 - a command of a group has a parent
    if command is None:
        echo(parent.get_help())
        return 0
    target = cli.get_command(parent, command)
    if target is None:
        raise click.UsageError(f"there is no command {command!r}; `metis help` lists them all")
    echo(target.get_help(click.Context(target, info_name=command, parent=parent)))
    return 0


@cli.command("version")
def show_version() -> int:
    """Print the version of metis and of the canonical form."""
    echo(f"metis {__version__} (canonical form {SPEC_VERSION})")
    return 0


@cli.command(hidden=True)
@click.pass_context
def tour(context: click.Context) -> int:
    """Run `metis demo`, which replaced this command."""
    return context.invoke(demo, is_fast=True)


for _command in (
    store_commands.show,
    store_commands.sessions,
    store_commands.fork,
    store_commands.search,
    store_commands.embed,
    store_commands.similar,
    store_commands.export,
    store_commands.import_session,
    store_commands.handoff,
    store_commands.maintenance,
    store_commands.web,
    setup_commands.keys,
    setup_commands.config,
    setup_commands.mcp,
    setup_commands.doctor,
    setup_commands.completion,
    setup_commands.local,
    setup_commands.templates,
    setup_commands.plugins,
    wire_commands.schema,
    wire_commands.validate,
    wire_commands.convert,
    wire_commands.diff,
    wire_commands.verify,
    wire_commands.sim,
    gateway_commands.serve,
    gateway_commands.run,
):
    cli.add_command(_command)


def hide_log() -> None:
    """Do not print the log of metis: commands print what users should know."""
    import logging

    logging.getLogger("metis").addHandler(logging.NullHandler())
    # Warnings of Python and of libraries may quote content, so they are printed escaped.
    logging.lastResort = EchoHandler(logging.WARNING)
    # A plugin that is skipped concerns the user of every command.
    logging.getLogger("metis.plugins").addHandler(EchoHandler(logging.WARNING))
    logging.captureWarnings(capture=True)


def show_log() -> None:
    """Show the log of metis on standard error."""
    import logging

    log = logging.getLogger("metis")
    log.addHandler(EchoHandler())
    log.setLevel(logging.INFO)


def main() -> None:
    """Run the command line; an unexpected error becomes one line, too."""
    # Nearly all objects created at the start stay alive, so collections would only cost time.
    gc.set_threshold(GC_THRESHOLD)
    hide_log()
    try:
        cli(prog_name="metis")
    except Exception as error:  # noqa: BLE001 - users should not see a traceback
        if "METIS_DEBUG" in os.environ:
            import traceback

            echo(traceback.format_exc(), err=True, nl=False)
            sys.exit(INTERNAL_ERROR)
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        echo(f"metis: internal error: {text}; METIS_DEBUG=1 shows where", err=True)
        sys.exit(INTERNAL_ERROR)
