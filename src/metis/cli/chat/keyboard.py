"""Keys and lines from the user, and the questions that a tool call needs answered."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.text import Text

from metis.cli.chat.rows import prefix_rows, wrap
from metis.cli.chat.screen import Screen, discard_typed_input
from metis.cli.text import visible_controls
from metis.tools import Answer, Question, Verdict

_CHUNK = 65536


class Keyboard(Protocol):
    """Asks for a key or a line; Ctrl-C raises KeyboardInterrupt, the end of input EOFError."""

    async def key(self, message: str, letters: str) -> str:
        """One of some letters; what was typed before the question counts for nothing."""
        ...

    async def line(self, message: str) -> str:
        """A line of words."""
        ...

    def interrupt(self) -> bool:
        """Ctrl-C came as a signal; whether somebody was being asked."""
        ...


def keyboard_of(screen: Screen) -> Keyboard:
    """The keyboard that goes with a screen."""
    return LineKeyboard(screen) if screen.is_plain else KeyKeyboard()


class KeyKeyboard:
    """A terminal that tells every key."""

    async def key(self, message: str, letters: str) -> str:
        """One of some letters, as soon as it is pressed."""
        session = PromptSession[str](message, key_bindings=_keys(letters), erase_when_done=True)
        discard_typed_input()
        clear_typeahead(session.input)
        return await session.prompt_async(handle_sigint=False)

    async def line(self, message: str) -> str:
        """A line of words."""
        return await PromptSession[str](message).prompt_async(handle_sigint=False)

    def interrupt(self) -> bool:
        """Nobody is asked: here Ctrl-C is a key like others while somebody is."""
        return False


class LineKeyboard:
    """A terminal that tells whole lines, or a pipe."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._data = b""
        self._is_at_end = False
        self._waiting: asyncio.Future[bytes] | None = None

    async def key(self, message: str, letters: str) -> str:
        """One of some letters, at the start of a line."""
        discard_typed_input()
        while True:
            key = (await self.line(message)).strip().lower()[:1]
            if key and key in letters:
                return key

    async def line(self, message: str) -> str:
        """A line of words; one that ends with a backslash goes on in the next."""
        self._screen.put(message)
        line = await self._line()
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{await self._line()}"
        return line

    async def _line(self) -> str:
        while b"\n" not in self._data and not self._is_at_end:
            data = await self._read()
            self._data += data
            self._is_at_end = not data
        if not self._data:
            raise EOFError
        line, _, self._data = self._data.partition(b"\n")
        return line.decode(errors="replace")

    async def _read(self) -> bytes:
        """What comes next from standard input."""
        loop = asyncio.get_running_loop()
        came = self._waiting = loop.create_future()
        stream = sys.stdin.fileno()

        def read() -> None:
            if not came.done():
                came.set_result(os.read(stream, _CHUNK))

        loop.add_reader(stream, read)
        try:
            return await came
        finally:
            loop.remove_reader(stream)
            self._waiting = None

    def interrupt(self) -> bool:
        """End the waiting for a line, if there is one."""
        if self._waiting is None or self._waiting.done():
            return False
        self._waiting.set_exception(KeyboardInterrupt())
        return True


def _keys(letters: str) -> KeyBindings:
    keys = KeyBindings()
    keys.add("<any>")(_ignore)
    for key in letters:
        keys.add(key)(_choose)
        keys.add(key.upper())(_choose)
    keys.add("c-c")(_stop)
    return keys


def _ignore(event: KeyPressEvent) -> None:
    del event


def _choose(event: KeyPressEvent) -> None:
    event.app.exit(result=event.key_sequence[0].data.lower())


def _stop(event: KeyPressEvent) -> None:
    event.app.exit(exception=KeyboardInterrupt)


VERDICT_KEYS = {"y": Verdict.ALLOW_ONCE, "s": Verdict.ALLOW_FOR_SESSION, "n": Verdict.DENY}
REASON_KEY = "w"
_TOLD = {
    Verdict.ALLOW_ONCE: "allowed once",
    Verdict.ALLOW_FOR_SESSION: "allowed for this session",
    Verdict.DENY: "not allowed",
}
CHOICES = "y once · s for this session · n no · w no, with a word to the model"
_LINES = 24
"""How many lines of an argument are shown."""


class ConfirmationDialog:
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
        key = await self._keyboard.key(f"{CHOICES}  ", "".join((*VERDICT_KEYS, REASON_KEY)))
        if key != REASON_KEY:
            self._screen.say(f"    {_TOLD[VERDICT_KEYS[key]]}", "dim")
            return Answer(VERDICT_KEYS[key])
        words = await self._keyboard.line("tell the model: ")
        return Answer(Verdict.DENY, words.strip())


async def ask_yes_no(keyboard: Keyboard, question: str) -> bool:
    """Whether the user says yes; everything else is no."""
    try:
        return await keyboard.key(f"{question} y/n  ", "yn") == "y"
    except (KeyboardInterrupt, EOFError):
        return False


def _question_rows(question: Question, width: int) -> list[Text]:
    """The call in full: what a person has to see before it runs."""
    name, effect = question.definition.name, question.definition.side_effects
    rows = [
        Text.assemble(("● ", "yellow"), (visible_controls(name), "bold"), (f"  {effect}", "dim"))
    ]
    for argument, value in question.call.input.items():
        rows += _argument_rows(argument, value, width)
    return rows


def _argument_rows(name: str, value: object, width: int) -> list[Text]:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    lines = visible_controls(text).split("\n")
    shown = [row for line in lines[:_LINES] for row in wrap(Text(line), width - 4)]
    if len(lines) > _LINES:
        shown.append(Text(f"… {len(lines) - _LINES} more lines", "dim"))
    if len(shown) == 1 and len(name) + len(shown[0].plain) + 6 <= width:
        return [Text.assemble((f"    {visible_controls(name)}  ", "dim"), shown[0])]
    return [Text(f"    {visible_controls(name)}", "dim"), *prefix_rows("    ", shown)]
