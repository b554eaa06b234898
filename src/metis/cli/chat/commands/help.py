"""/help: every command on a row, or one of them in full."""

import difflib
from collections.abc import Mapping

from rich.text import Text

from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import column_rows
from metis.cli.chat.state import ChatState

KEYS = (
    ("Enter", "send"),
    ("Alt-Enter", "another line; also Esc, then Enter"),
    ("Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("Ctrl-C", "stop the answer; at an empty prompt, twice, leave"),
    ("Up, Ctrl-R", "what was sent before"),
    ("@file", "show a text, a picture or a PDF to the model"),
    ("@alias …", "let another model answer this once"),
)


def help_command(commands: Mapping[str, Command]) -> Command:
    """The command that tells of all the others."""

    async def run(talk: ChatState, name: str) -> None:
        if name:
            _show_one(talk, commands, name.removeprefix("/"))
        else:
            _show_all(talk, commands)

    usage = "[COMMAND]"
    return Command(name="help", usage=usage, help="this list", run=run, completes="command")


def _show_all(talk: ChatState, commands: Mapping[str, Command]) -> None:
    rows = [
        (Text(f"/{each.name} {each.usage}".rstrip(), "bold"), Text(each.help))
        for each in commands.values()
    ]
    rows.append((Text("/quit", "bold"), Text("leave")))
    keys = [(Text(key, "bold"), Text(what)) for key, what in KEYS]
    talk.screen.write(column_rows([*rows, (Text(), Text()), *keys], talk.screen.width))


def _show_one(talk: ChatState, commands: Mapping[str, Command], name: str) -> None:
    command = commands.get(name)
    if command is None:
        near = difflib.get_close_matches(name, commands, n=1, cutoff=0.5)
        hint = f"did you mean /{near[0]}?" if near else "/help lists all."
        talk.screen.say(f"There is no command /{name}; {hint}", "red")
        return
    talk.screen.say(f"/{command.name} {command.usage}".rstrip(), "bold")
    talk.screen.say(command.help)
