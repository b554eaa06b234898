"""The commands of the chat, by what they are about."""

import difflib

from metis.cli.chat.commands import about, conversation, copy, export, model, money, sessions, tools
from metis.cli.chat.commands.command import Command
from metis.cli.chat.commands.help import help_command
from metis.cli.chat.state import ChatState

__all__ = ["COMMANDS", "Command", "run_command"]

QUIT_NAMES = ("quit", "exit", "q")
_NEW, _THINKING = "/new begins anew.", "/thinking LEVEL sets how much is thought."
_FILES, _EDITOR = "write @FILE into the message.", "Ctrl-X Ctrl-E opens $EDITOR."
EQUIVALENTS = {
    "add": _FILES,
    "attach": _FILES,
    "clear": _NEW,
    "compress": "/compact sums up what is old.",
    "edit": _EDITOR,
    "editor": _EDITOR,
    "file": _FILES,
    "history": "/sessions lists conversations, /rewind the turns of this one.",
    "load": "/resume goes on with a conversation.",
    "multi": "Alt-Enter begins another line.",
    "reasoning": _THINKING,
    "reasoning-effort": _THINKING,
    "redo": "/retry asks again.",
    "reset": _NEW,
    "save": "/export writes this one to a file; it is kept anyway.",
    "think": _THINKING,
    "think-tokens": _THINKING,
    "tokens": "/context says how full the window is.",
    "undo": "/rewind lists the turns and goes back to before one.",
    "usage": "/cost says what was used.",
}
"""What other programs have, and what it is here."""

_ALL = (
    *model.COMMANDS,
    *conversation.COMMANDS,
    *sessions.COMMANDS,
    *copy.COMMANDS,
    *export.COMMANDS,
    *money.COMMANDS,
    *about.COMMANDS,
    *tools.COMMANDS,
)
COMMANDS: dict[str, Command] = {each.name: each for each in _ALL}
"""Every command by its name, in the order in which /help lists them."""
COMMANDS["help"] = help_command(COMMANDS)


async def run_command(talk: ChatState, text: str) -> bool:
    """Do what a line that begins with a slash asks for; whether the chat goes on."""
    name, _, argument = text[1:].partition(" ")
    if name.strip() in QUIT_NAMES:
        return False
    command = COMMANDS.get(name.strip())
    if command is None:
        talk.screen.say(_unknown(name.strip()), "red")
    else:
        await command.run(talk, argument.strip())
    talk.screen.gap()
    return True


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean /{near[0]}?" if near else "/help lists all."
    return f"There is no command /{name}; {EQUIVALENTS.get(name, hint)}"
