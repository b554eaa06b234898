"""Keyboard: a key or a line from the user, at any terminal."""

import asyncio
import os
import sys
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from metis.cli.chat.screen import Screen
from metis.cli.chat.terminal import forget_typed

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
        forget_typed()
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
        forget_typed()
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
