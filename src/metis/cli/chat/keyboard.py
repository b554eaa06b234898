"""Keys and lines from the user, and the confirmation of tool calls."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.text import Text

from metis.cli.chat.rows import prefix_rows, wrap
from metis.cli.chat.screen import Screen, discard_typed_input
from metis.cli.text import count, visible_controls
from metis.tools import Answer, Question, Verdict

VERDICT_KEYS = {"y": Verdict.ALLOW_ONCE, "s": Verdict.ALLOW_FOR_SESSION, "n": Verdict.DENY}
REASON_KEY = "w"
CHOICES = "Allow?  [y] yes  [s] always in this session  [n] no  [w] no, and say why"

_CHUNK_BYTES = 65536
_VERDICT_TEXTS = {
    Verdict.ALLOW_ONCE: "allowed once",
    Verdict.ALLOW_FOR_SESSION: "allowed for this session",
    Verdict.DENY: "not allowed",
}
_MAX_ARGUMENT_LINES = 24


class KeyKeyboard:
    """The keyboard of a terminal that reports every key.

    Ctrl-C raises KeyboardInterrupt, the end of input EOFError.
    """

    async def key(self, message: str, keys: str) -> str:
        """Return one of some keys, as soon as it is pressed after the question appeared."""
        # The prompt shows most control characters by itself, but not those that reverse text.
        text = visible_controls(message)
        session = PromptSession[str](text, key_bindings=_bindings(keys), erase_when_done=True)
        # A key that was typed ahead must not confirm a call that the user has not seen.
        discard_typed_input()
        clear_typeahead(session.input)
        return await session.prompt_async(handle_sigint=False)

    async def line(self, message: str) -> str:
        """Return a line of text."""
        return await PromptSession[str](message).prompt_async(handle_sigint=False)

    def interrupt(self) -> bool:
        """Return False: while this keyboard reads, Ctrl-C is a key and not a signal."""
        return False


class LineKeyboard:
    """The keyboard of a terminal that reports lines only, or a pipe; it raises the same errors."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._data = b""
        self._is_at_end = False
        self._waiting: asyncio.Future[bytes] | None = None

    async def key(self, message: str, keys: str) -> str:
        """Return one of some keys, which begins a line."""
        discard_typed_input()
        while True:
            key = (await self.line(message)).strip().lower()[:1]
            if key and key in keys:
                return key

    async def line(self, message: str) -> str:
        """Return a line of text; after a backslash at its end the next line belongs to it."""
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
        """Return the next bytes of standard input."""
        loop = asyncio.get_running_loop()
        received = self._waiting = loop.create_future()
        stream = sys.stdin.fileno()

        def read() -> None:
            # The future may be cancelled between the event and this callback.
            if not received.done():
                received.set_result(os.read(stream, _CHUNK_BYTES))

        loop.add_reader(stream, read)
        try:
            return await received
        finally:
            loop.remove_reader(stream)
            self._waiting = None

    def interrupt(self) -> bool:
        """End the reading of a line, if there is one; return whether there was."""
        if self._waiting is None or self._waiting.done():
            return False
        self._waiting.set_exception(KeyboardInterrupt())
        return True


Keyboard = KeyKeyboard | LineKeyboard


def keyboard_of(screen: Screen) -> Keyboard:
    """Return the keyboard that belongs to a screen."""
    return LineKeyboard(screen) if screen.is_plain else KeyKeyboard()


def _bindings(keys: str) -> KeyBindings:
    bindings = KeyBindings()
    # Without it, other keys would be inserted as text behind the question.
    bindings.add("<any>")(_ignore)
    for key in keys:
        bindings.add(key)(_choose)
        bindings.add(key.upper())(_choose)
    bindings.add("c-c")(_interrupt)
    return bindings


def _ignore(event: KeyPressEvent) -> None:
    del event


def _choose(event: KeyPressEvent) -> None:
    event.app.exit(result=event.key_sequence[0].data.lower())


def _interrupt(event: KeyPressEvent) -> None:
    event.app.exit(exception=KeyboardInterrupt)


async def ask_yes_no(keyboard: Keyboard, question: str) -> bool:
    """Return whether the user says yes; Ctrl-C and the end of input are no."""
    try:
        return await keyboard.key(f"{question} y/n  ", "yn") == "y"
    except (KeyboardInterrupt, EOFError):
        return False


class ConfirmationDialog:
    """Asks the user whether a tool call may run."""

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
        """Return what the user decides; Ctrl-C denies the call and stops the turn."""
        with self._paused(question.call.id):
            self._screen.write(_question_rows(question, self._screen.width))
            try:
                return await self._decide()
            except (KeyboardInterrupt, EOFError):
                self._stop()
                return Answer(Verdict.DENY)

    async def _decide(self) -> Answer:
        key = await self._keyboard.key(f"{CHOICES}  ", "".join((*VERDICT_KEYS, REASON_KEY)))
        if key != REASON_KEY:
            self._screen.print(f"    {_VERDICT_TEXTS[VERDICT_KEYS[key]]}", "dim")
            return Answer(VERDICT_KEYS[key])
        reason = await self._keyboard.line("tell the model: ")
        return Answer(Verdict.DENY, reason.strip())


def _question_rows(question: Question, width: int) -> list[Text]:
    """Return the call with all arguments: what a person has to see before it runs."""
    name, effect = question.definition.name, question.definition.side_effects
    title = Text.assemble(
        ("● ", "yellow"), (visible_controls(name), "bold"), (f"  {effect}", "dim")
    )
    rows = [title]
    for argument, value in question.call.input.items():
        rows += _argument_rows(visible_controls(argument), value, width)
    return rows


def _argument_rows(name: str, value: object, width: int) -> list[Text]:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    lines = visible_controls(text).split("\n")
    rows = [row for line in lines[:_MAX_ARGUMENT_LINES] for row in wrap(Text(line), width - 4)]
    if len(lines) > _MAX_ARGUMENT_LINES:
        rows.append(Text(f"… {count(len(lines) - _MAX_ARGUMENT_LINES, 'more line')}", "dim"))
    if len(rows) == 1 and len(name) + len(rows[0].plain) + 6 <= width:
        return [Text.assemble((f"    {name}  ", "dim"), rows[0])]
    return [Text(f"    {name}", "dim"), *prefix_rows("    ", rows)]
