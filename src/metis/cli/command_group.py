"""The command group of `metis`: a question without a command, plugins, help, and usage errors."""

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from metis.cli.output import echo, echo_notice

if TYPE_CHECKING:
    from metis.plugins import Plugin

# The command that gets the arguments if they do not begin with a command.
DEFAULT_COMMAND = "ask"
# Ctrl-C, as shells report it; the other exit codes are in `error_text`, which is loaded on errors.
INTERRUPTED = 130

_COMMAND_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_GROUP_OPTIONS = frozenset({"-h", "--help", "--version"})
# How the help groups the commands.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Chat": ("chat", "ask", "templates", "demo", "local"),
    "Inspect": ("sessions", "show", "search", "embed", "similar", "trace", "cost", "models", "web"),
    "Store": ("export", "import", "handoff", "fork", "store"),
    "Set up": ("keys", "config", "mcp", "doctor", "plugins", "completion", "help", "version"),
    "Gateway": ("serve", "run"),
    "Wire formats": ("convert", "diff", "verify", "validate", "schema", "sim"),
}


class CommandGroup(click.Group):
    """A group that takes its arguments as a question unless they begin with a command."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; an error becomes one line on standard error and an exit code."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except click.UsageError as error:
            echo_notice(f"metis: {_usage_line(error)}")
            sys.exit(error.exit_code)
        except click.ClickException as error:
            echo(error.format_message(), err=True)  # it names a file and a line
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except Exception as error:  # noqa: BLE001 - other errors are raised again
            # Loaded for an error only: most commands end without one.
            from metis.cli.error_text import report_error  # noqa: PLC0415 - as above

            sys.exit(report_error(error))
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command unless the arguments begin with one."""
        first = args[0] if args else None
        # A shell that completes the first word needs commands, not the options of `ask`.
        is_completing_command = ctx.resilient_parsing and not args
        is_command = first in _GROUP_OPTIONS or (
            first is not None and self.get_command(ctx, first) is not None
        )
        if not is_command and not is_completing_command:
            self._refuse_misspelled_command(args)
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelled_command(self, args: Sequence[str]) -> None:
        """Raise a UsageError if the only word is nearly a command, so probably not a question."""
        words = [argument for argument in args if not argument.startswith("-")]
        if len(words) != 1 or args[0] != words[0]:
            return
        near = difflib.get_close_matches(words[0], self.commands, n=1, cutoff=0.75)
        if near:
            raise click.UsageError(
                f"there is no command {words[0]!r}; did you mean {near[0]!r}? "
                f"To send it as a question: metis ask {words[0]}"
            )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of metis, or of a plugin if metis has none of that name."""
        command = super().get_command(ctx, cmd_name)
        # Only a single lower-case word can be a plugin command; a question must not load plugins.
        if command is not None or not _COMMAND_NAME.fullmatch(cmd_name):
            return command
        return self._plugin_commands.get(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*super().list_commands(ctx), *self._plugin_commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section; those of no section and those of plugins come last."""
        listed = {name for names in SECTIONS.values() for name in names}
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        unlisted = [name for name in commands if name not in listed]
        for title, names in (*SECTIONS.items(), ("More", unlisted)):
            rows = [
                (name, command.get_short_help_str(limit=200))
                for name in names
                if (command := commands.get(name)) is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    @cached_property
    def _plugin_commands(self) -> Mapping[str, click.Command]:
        from metis.plugins import COMMANDS, load_plugins  # noqa: PLC0415 - for unknown names only

        return load_plugins(COMMANDS, _read_command, reserved=self.commands)


def _read_command(_plugin: "Plugin", value: object) -> click.Command:
    if not isinstance(value, click.Command):
        raise TypeError(f"expected a click command, got {value!r:.80}")
    return value


def _usage_line(error: click.UsageError) -> str:
    """Return what is wrong with the arguments, and which help describes them."""
    text = " ".join(error.format_message().split()).rstrip(".")
    line = (text[:1].lower() + text[1:]).replace(". Did you mean", "; did you mean")
    # Errors that click raises itself are subclasses of UsageError.
    if type(error) is click.UsageError or error.ctx is None:
        return line  # raised by metis, with the next step in its text
    # Users rarely type `ask`: the options of a question are documented as those of `metis`.
    path = error.ctx.command_path.removesuffix(f" {DEFAULT_COMMAND}")
    mark = "" if line.endswith("?") else "."
    return f"{line}{mark} See `{path} --help`"
