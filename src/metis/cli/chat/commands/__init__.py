"""The commands of the chat, and /help."""

import difflib

from rich.text import Text

from metis.cli.chat.commands import conversation, model, next_prompt, sessions, status
from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import column_rows
from metis.cli.chat.state import ChatState

__all__ = ["COMMANDS", "Command", "run_command"]

QUIT_NAMES = ("quit", "exit", "q")
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter", "start another line; also Esc, then Enter"),
    ("Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("Ctrl-C", "stop the answer; at an empty prompt, twice, leave"),
    ("Up, Ctrl-R", "earlier prompts"),
    ("@file", "attach a text file, an image or a PDF"),
    ("@alias …", "ask another model this once"),
)

_NEW, _THINKING = "/new starts a new conversation.", "/thinking LEVEL sets the reasoning effort."
_FILES, _EDITOR = "/attach FILE, or write @FILE into the message.", "Ctrl-X Ctrl-E opens $EDITOR."
_KEYS = "`metis keys set PROVIDER` stores an API key."
# Hints for names of other programs' commands, and for tasks that have a command outside the chat.
EQUIVALENTS = {
    "add": _FILES,
    "clear": _NEW,
    "config": "`metis config` shows and changes settings.",
    "compress": "/compact summarises old messages.",
    "edit": _EDITOR,
    "editor": _EDITOR,
    "file": _FILES,
    "handoff": "`metis handoff PROGRAM` continues this conversation in another program.",
    "history": "/sessions lists conversations, /rewind the turns of this one.",
    "keys": _KEYS,
    "load": "/resume continues a conversation.",
    "login": _KEYS,
    "mcp": "`metis mcp` lists and adds MCP servers.",
    "multi": "Alt-Enter starts another line.",
    "reasoning": _THINKING,
    "reasoning-effort": _THINKING,
    "redo": "/retry asks again.",
    "reset": _NEW,
    "save": "/export writes this conversation to a file; it is stored in any case.",
    "settings": "`metis config` shows and changes settings.",
    "think": _THINKING,
    "think-tokens": _THINKING,
    "tokens": "/context shows how full the context window is.",
    "usage": "/cost shows what was used.",
}


async def show_help(state: ChatState, name: str) -> None:
    """Show all commands and keys, or one command."""
    name = name.removeprefix("/")
    if not name:
        rows = [
            (Text(f"/{command.name} {command.usage}".rstrip(), "bold"), Text(command.help))
            for command in COMMANDS.values()
        ]
        rows.append((Text("/quit", "bold"), Text("leave")))
        keys = [(Text(key, "bold"), Text(effect)) for key, effect in KEYS]
        state.screen.write(column_rows([*rows, (Text(), Text()), *keys], state.screen.width))
    elif name in COMMANDS:
        command = COMMANDS[name]
        state.screen.print(f"/{command.name} {command.usage}".rstrip(), "bold")
        state.screen.print(command.help)
    else:
        state.screen.print(_unknown_command(name), "red")


# Every command by its name, in the order of /help.
COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        *model.COMMANDS,
        *conversation.COMMANDS,
        *next_prompt.COMMANDS,
        *sessions.COMMANDS,
        *status.COMMANDS,
        Command("help", "[COMMAND]", "this list", show_help, "command"),
    )
}


async def run_command(state: ChatState, text: str) -> bool:
    """Run a line that begins with a slash; return whether the chat continues."""
    name, _, argument = text[1:].partition(" ")
    if name.strip() in QUIT_NAMES:
        return False
    command = COMMANDS.get(name.strip())
    if command is None:
        state.screen.print(_unknown_command(name.strip()), "red")
    else:
        await command.run(state, argument.strip())
    state.screen.gap()
    return True


def _unknown_command(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean /{near[0]}?" if near else "/help lists all."
    return f"There is no command /{name}; {EQUIVALENTS.get(name, hint)}"
