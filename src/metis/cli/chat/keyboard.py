"""Keys and lines from the user."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Generator

from prompt_toolkit import PromptSession
from prompt_toolkit.application.current import get_app_session
from prompt_toolkit.input.typeahead import clear_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from metis.cli.chat.screen import Screen, discard_typed_input
from metis.cli.text import visible_controls

_CHUNK_BYTES = 65536


class KeyKeyboard:
    """The keyboard of a terminal that reports every key.

    Ctrl-C raises KeyboardInterrupt, the end of input EOFError.
    """

    async def key(self, message: str, keys: str) -> str:
        """Return the first of `keys` that is pressed after the question has appeared."""
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

    @contextlib.contextmanager
    def typed_ahead(self) -> Generator[None]:
        """Read what is typed or pasted meanwhile, for the next prompt.

        If it stayed in the terminal, a question about a tool call could discard the beginning of
        a paste and take the rest for its answer.
        """
        terminal = get_app_session().input
        with terminal.attach(lambda: store_typeahead(terminal, terminal.read_keys())):
            yield


class LineKeyboard:
    """The keyboard of a terminal that reports lines only, or a pipe; it raises the same errors."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._data = b""
        self._is_at_end = False
        self._waiting: asyncio.Future[bytes] | None = None

    async def key(self, message: str, keys: str) -> str:
        """Return the first character of the next line that begins with one of `keys`."""
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

    @contextlib.contextmanager
    def typed_ahead(self) -> Generator[None]:
        """Leave what is typed meanwhile in the terminal or the pipe, for the next line."""
        yield


Keyboard = KeyKeyboard | LineKeyboard


def keyboard_of(screen: Screen) -> Keyboard:
    """Return the keyboard that belongs to a screen."""
    return LineKeyboard(screen) if screen.is_plain else KeyKeyboard()


@contextlib.contextmanager
def paste_mode() -> Generator[None]:
    """Keep bracketed paste on until the end, also while no prompt is open.

    prompt_toolkit switches it off after each prompt. Text that is pasted while an answer arrives
    would then be sent as one question per line.
    """
    output = get_app_session().output
    switch_off = output.disable_bracketed_paste
    output.disable_bracketed_paste = _do_nothing
    output.enable_bracketed_paste()
    output.flush()
    try:
        yield
    finally:
        output.disable_bracketed_paste = switch_off
        switch_off()
        output.flush()


def _do_nothing() -> None:
    pass


def _bindings(keys: str) -> KeyBindings:
    bindings = KeyBindings()
    # Without this binding other keys would be inserted as text after the question.
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
