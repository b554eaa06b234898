"""Command: a word behind a slash, what it does, and what may stand behind it."""

from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from metis.cli.chat.state import ChatState

Run = Callable[[ChatState, str], Awaitable[None]]
"""Does the command, with what stands behind its name."""

Completes = Literal["", "model", "file", "command", "session", "thinking"]


class Command(Struct, frozen=True, kw_only=True):
    """One command of the chat."""

    name: str
    usage: str = ""
    """What may stand behind the name."""
    help: str
    run: Run
    completes: Completes = ""
    """What its argument is completed with."""
