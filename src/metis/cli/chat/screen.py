"""The terminal of a chat.

finished rows go to the scrollback once, only the last rows are redrawn.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TextIO

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from metis.cli.chat.rows import split_full, wrap
from metis.cli.text import visible_controls

_IFLAG, _LFLAG = 0, 3
"""Where the flags of input and of the line stand in what `tcgetattr` gives."""


@contextlib.contextmanager
def echo_disabled() -> Generator[None]:
    """Let nothing that is typed appear; it waits for the next prompt, and Ctrl-C still signals."""
    try:
        stream = sys.stdin.fileno()
        before = termios.tcgetattr(stream)
    except (OSError, ValueError, termios.error):
        yield  # no terminal that could be quiet
        return
    silent = list(before)
    silent[_IFLAG] &= ~termios.ICRNL
    silent[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(stream, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def discard_typed_input() -> None:
    """Throw away what was typed and not read yet."""
    with contextlib.suppress(OSError, ValueError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextlib.contextmanager
def signal_handlers(
    *, stop: Callable[[], object], resized: Callable[[], object], end: Callable[[], object]
) -> Generator[None]:
    """Call somebody on Ctrl-C, on another size of the terminal, and when the program shall end."""
    loop = asyncio.get_running_loop()
    called = {
        signal.SIGINT: stop,
        signal.SIGWINCH: resized,
        signal.SIGTERM: end,
        signal.SIGHUP: end,
    }
    for number, call in called.items():
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in called:
            loop.remove_signal_handler(number)


def is_cancelling() -> bool:
    """Whether whoever asks is being cancelled itself, and not only something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


NARROWEST = 20
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know these show everything between them at once."""
_UNKNOWN = "\0"
_COLOURS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


class Screen:
    """Writes to a terminal, or plain lines to whatever else there is."""

    def __init__(
        self, file: TextIO | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._file = sys.stdout if file is None else file
        env = os.environ if environment is None else environment
        self.is_plain = not self._file.isatty() or env.get("TERM", "") in ("", "dumb", "unknown")
        """Whether rows cannot be drawn again: a dumb terminal, a pipe or a file."""
        self.has_colour = not self.is_plain and not env.get("NO_COLOR")
        self._console = Console(
            file=self._file,
            force_terminal=not self.is_plain,
            color_system="auto" if self.has_colour else None,
            no_color=not self.has_colour,
            legacy_windows=False,
        )
        self._live = [""]
        self._is_live = False
        self._is_after_gap = False

    @property
    def width(self) -> int:
        """How many columns there are."""
        return max(shutil.get_terminal_size((80, 24)).columns, NARROWEST)

    @property
    def height(self) -> int:
        """How many rows there are."""
        return shutil.get_terminal_size((80, 24)).lines

    def say(self, text: str, style: str = "") -> None:
        """Write words, broken to the width."""
        self.write(wrap(Text(visible_controls(text), style), self.width))

    def write(self, rows: Iterable[Text]) -> None:
        """Write rows that are finished, above those that are not."""
        self.draw(list(rows), [])

    def gap(self) -> None:
        """Write a blank row, unless there is one."""
        if not self._is_after_gap:
            self.say("")

    def draw(self, done: Sequence[Text], live: Sequence[Text]) -> None:
        """Write finished rows, and below them those that will be drawn again."""
        if done:
            self._is_after_gap = not done[-1].plain
        if self.is_plain:
            self._print(row.plain.rstrip() for row in done)
            return
        tail = self._fitting(live) if live else [""]
        change = self._change([self._ansi(row) for row in done], tail)
        self._file.write(_BEGIN + self._cursor(is_hidden=bool(live)) + change + _END)
        self._file.flush()
        self._live = tail

    def put(self, text: str) -> None:
        """Write letters as they are, on a screen that draws nothing again."""
        self._file.write(visible_controls(text))
        self._file.flush()

    def steer(self, sequence: str) -> None:
        """Tell the terminal something that is not seen."""
        self._file.write(sequence)
        self._file.flush()

    def resized(self) -> None:
        """Trust nothing of what stands in the rows that are not finished; draw all of them next."""
        self._live = [_UNKNOWN] * len(self._live)

    def _print(self, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        self._file.write(text)
        self._file.flush()

    def _fitting(self, rows: Sequence[Text]) -> list[str]:
        """The last rows, as many as the terminal can take back."""
        width, room = self.width, max(self.height - 1, 1)
        parts = [part for row in rows for part in split_full(row, width - 1)]
        return [self._ansi(part) for part in parts[-room:]]

    def _change(self, done: Sequence[str], live: Sequence[str]) -> str:
        """From the rows that stand there to new ones; what is the same is not touched."""
        rows, old = [*done, *live], self._live
        last = len(old) - 1
        start = 0
        while start < min(last, len(rows) - 1) and old[start] == rows[start]:
            start += 1
        up = f"\x1b[{last - start}A" if last > start else ""
        # A finished row may be as wide as the terminal or wider: nothing can be cleared behind it.
        clear = "\x1b[J" if start < len(done) else ""
        finished = "".join(f"{row}\n" for row in done[start:])
        drawn = "\n".join(f"{row}\x1b[K" for row in live[max(start - len(done), 0) :])
        return f"\r{up}{clear}{finished}{drawn}\x1b[J"

    def _cursor(self, *, is_hidden: bool) -> str:
        if is_hidden == self._is_live:
            return ""
        self._is_live = is_hidden
        return _HIDE if is_hidden else _SHOW

    def _ansi(self, row: Text) -> str:
        colours = _COLOURS.get(self._console.color_system or "")
        # A text without spans is rendered without its own style.
        whole = self._console.get_style(row.style)
        return "".join(
            (whole + (segment.style or Style.null())).render(segment.text, color_system=colours)
            for segment in row.render(self._console)
        )
