"""Front: the group of all commands, which takes what is no command for a question."""

import difflib
from collections.abc import Mapping, Sequence

import click

QUESTION = "ask"
"""The command that takes what is no command."""

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
