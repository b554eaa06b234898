"""A chat command: its name, its help, and the function that runs it."""

from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from metis.cli.chat.state import ChatState

# Runs a command with the text after its name.
Run = Callable[[ChatState, str], Awaitable[None]]
Completes = Literal["", "model", "file", "command", "session", "thinking"]


class Command(Struct, frozen=True):
    """One command of the chat."""

    name: str
    usage: str
    """The arguments, as the help shows them."""
    help: str
    run: Run
    completes: Completes = ""
    """What its argument is completed with."""
