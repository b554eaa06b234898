"""Confirm: asking the user before a tool changes something."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec
from rich.text import Text

from metis.cli.chat.keyboard import Keyboard
from metis.cli.chat.letters import harmless
from metis.cli.chat.rows import beside, wrapped
from metis.cli.chat.screen import Screen
from metis.tools import Answer, Question, Verdict

KEYS = {"y": Verdict.ALLOW_ONCE, "s": Verdict.ALLOW_FOR_SESSION, "n": Verdict.DENY}
WORD = "w"
_TOLD = {
    Verdict.ALLOW_ONCE: "allowed once",
    Verdict.ALLOW_FOR_SESSION: "allowed for this session",
    Verdict.DENY: "not allowed",
}
CHOICES = "y once · s for this session · n no · w no, with a word to the model"
_LINES = 24
"""How many lines of an argument are shown."""


class Confirm:
    """Asks about one call after the other."""

    def __init__(
        self,
        screen: Screen,
        keyboard: Keyboard,
        paused: Callable[[str], AbstractContextManager[None]],
        stop: Callable[[], object],
    ) -> None:
        self._screen = screen
        self._keyboard = keyboard
        self._paused = paused
        self._stop = stop

    async def __call__(self, question: Question) -> Answer:
        """What the user says to a call; Ctrl-C says no to it and stops the turn."""
        with self._paused(question.call.id):
            self._screen.write(_question_rows(question, self._screen.width))
            try:
                return await self._answer()
            except (KeyboardInterrupt, EOFError):
                self._stop()
                return Answer(Verdict.DENY)

    async def _answer(self) -> Answer:
        key = await self._keyboard.key(f"{CHOICES}  ", "".join((*KEYS, WORD)))
        if key != WORD:
            self._screen.say(f"    {_TOLD[KEYS[key]]}", "dim")
            return Answer(KEYS[key])
        words = await self._keyboard.line("tell the model: ")
        return Answer(Verdict.DENY, words.strip())


async def agree(keyboard: Keyboard, question: str) -> bool:
    """Whether the user says yes; everything else is no."""
    try:
        return await keyboard.key(f"{question} y/n  ", "yn") == "y"
    except (KeyboardInterrupt, EOFError):
        return False


def _question_rows(question: Question, width: int) -> list[Text]:
    """The call in full: what a person has to see before it runs."""
    name, effect = question.definition.name, question.definition.side_effects
    rows = [Text.assemble(("● ", "yellow"), (harmless(name), "bold"), (f"  {effect}", "dim"))]
    for argument, value in question.call.input.items():
        rows += _argument_rows(argument, value, width)
    return rows


def _argument_rows(name: str, value: object, width: int) -> list[Text]:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    lines = harmless(text).split("\n")
    shown = [row for line in lines[:_LINES] for row in wrapped(Text(line), width - 4)]
    if len(lines) > _LINES:
        shown.append(Text(f"… {len(lines) - _LINES} more lines", "dim"))
    if len(shown) == 1 and len(name) + len(shown[0].plain) + 6 <= width:
        return [Text.assemble((f"    {harmless(name)}  ", "dim"), shown[0])]
    return [Text(f"    {harmless(name)}", "dim"), *beside("    ", shown)]
