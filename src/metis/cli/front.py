"""Front: the group of all commands, which takes what is no command for a question."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

QUESTION = "ask"
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


class Front(click.Group):
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
            args = [QUESTION, *args]
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
