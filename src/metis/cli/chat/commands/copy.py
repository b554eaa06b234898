"""/copy: the last answer, or the code in it, for the clipboard."""

import base64

from metis.canonical.message import Role
from metis.cli.chat.commands.command import Command
from metis.cli.chat.state import ChatState
from metis.cli.render import count, first_code
from metis.session import text_of

CODE = "code"


async def copy_response(talk: ChatState, words: str) -> None:
    """Give the last answer to the clipboard of the terminal, as most terminals let programs do."""
    answers = [each for each in talk.session.messages if each.role is Role.ASSISTANT]
    text = text_of(answers[-1].content) if answers else ""
    if words == CODE:
        text = first_code(text)
    if not text:
        talk.screen.say("There is no answer to copy yet.", "dim")
    elif talk.screen.is_plain:
        talk.screen.say("This terminal has no clipboard; /export writes a file.", "dim")
    else:
        talk.screen.steer(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07")
        told = f"{count(len(text), 'letter')} are in the clipboard, if the terminal allows it."
        talk.screen.say(told, "dim")


COMMANDS = (
    Command(name="copy", usage="[code]", help="the last answer, or its code", run=copy_response),
)
