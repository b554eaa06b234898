"""The terminal of a chat: finished rows are written once, only the last rows are redrawn."""

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
from metis.cli.chat.theme import Theme
from metis.cli.output import can_redraw, write_text
from metis.cli.text import visible_controls

MIN_WIDTH = 20
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
# Terminals with synchronized output show everything between these at once, without flicker.
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
_UNKNOWN_ROW = "\0"
_COLOUR_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


def discard_typed_input() -> None:
    """Discard keys that were pressed and not read yet."""
    with contextlib.suppress(OSError, ValueError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextlib.contextmanager
def signal_handlers(
    *,
    stop: Callable[[], object],
    resized: Callable[[], object],
    end: Callable[[], object] | None = None,
) -> Generator[None]:
    """Call functions on Ctrl-C, on a new size of the terminal, and when the program has to end."""
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGINT: stop, signal.SIGWINCH: resized}
    if end is not None:
        handlers |= {signal.SIGTERM: end, signal.SIGHUP: end}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def is_cancelling() -> bool:
    """Return whether the current task is being cancelled, and not only something it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Screen:
    """Writes to a terminal, or plain lines to a pipe or file."""

    def __init__(
        self,
        file: TextIO | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        theme: str = "auto",
    ) -> None:
        self._file = sys.stdout if file is None else file
        env = os.environ if environment is None else environment
        self.is_plain = not can_redraw(self._file, env)
        """Whether rows cannot be redrawn: a dumb terminal, a pipe or a file."""
        self.has_colour = not self.is_plain and not env.get("NO_COLOR")
        self.theme = Theme(theme, env)
        """The colours; what is written before the terminal has reported its own stays as it is."""
        self._console = Console(
            file=self._file,
            force_terminal=not self.is_plain,
            color_system="auto" if self.has_colour else None,
            no_color=not self.has_colour,
            legacy_windows=False,
        )
        self._live = [""]
        self._is_cursor_hidden = False
        self._is_after_gap = False

    @property
    def width(self) -> int:
        """The number of columns."""
        return max(shutil.get_terminal_size((80, 24)).columns, MIN_WIDTH)

    @property
    def height(self) -> int:
        """The number of rows."""
        return shutil.get_terminal_size((80, 24)).lines

    def print(self, text: str, style: str = "") -> None:
        """Write text, wrapped to the width."""
        self.write(wrap(Text(visible_controls(text), style), self.width))

    def write(self, rows: Iterable[Text]) -> None:
        """Write finished rows, above those that will be redrawn."""
        self.draw(list(rows), [])

    def gap(self) -> None:
        """Write an empty row, unless there is one."""
        if not self._is_after_gap:
            self.print("")

    def draw(self, done: Sequence[Text], live: Sequence[Text]) -> None:
        """Write finished rows, and below them those that will be redrawn."""
        if done:
            self._is_after_gap = not done[-1].plain
        if self.is_plain:
            self._send("".join(f"{visible_controls(row.plain.rstrip())}\n" for row in done))
            return
        tail = self._fitting(live) if live else [""]
        change = self._change([self._ansi(row) for row in done], tail)
        self._send(_BEGIN_UPDATE + self._cursor(is_hidden=bool(live)) + change + _END_UPDATE)
        self._live = tail

    def put(self, text: str) -> None:
        """Write text as it is, on a screen that redraws nothing."""
        self._send(visible_controls(text))

    def send_sequence(self, sequence: str) -> None:
        """Send an escape sequence to the terminal."""
        self._send(sequence)

    def resized(self) -> None:
        """Redraw all live rows next time: the terminal may have moved or broken them."""
        self._live = [_UNKNOWN_ROW] * len(self._live)

    def _send(self, text: str) -> None:
        # One write for each redraw: a terminal may otherwise show half of it.
        write_text(self._file, text)

    def _fitting(self, rows: Sequence[Text]) -> list[str]:
        """Return the last rows, as many as the cursor can go back over."""
        # A row of full width would leave the cursor in a pending wrap, which terminals treat
        # differently.
        width, height = self.width, max(self.height - 1, 1)
        parts = [part for row in rows for part in split_full(row, width - 1)]
        return [self._ansi(part) for part in parts[-height:]]

    def _change(self, done: Sequence[str], live: Sequence[str]) -> str:
        """Return what replaces the live rows on the screen; equal rows are not touched."""
        rows, old = [*done, *live], self._live
        last = len(old) - 1
        start = 0
        while start < min(last, len(rows) - 1) and old[start] == rows[start]:
            start += 1
        up = f"\x1b[{last - start}A" if last > start else ""
        # A finished row may be as wide as the terminal or wider, so that clearing the rest of its
        # line would erase its last character: everything below is cleared before it is written.
        clear = "\x1b[J" if start < len(done) else ""
        finished = "".join(f"{row}\n" for row in done[start:])
        drawn = "\n".join(f"{row}\x1b[K" for row in live[max(start - len(done), 0) :])
        return f"\r{up}{clear}{finished}{drawn}\x1b[J"

    def _cursor(self, *, is_hidden: bool) -> str:
        if is_hidden == self._is_cursor_hidden:
            return ""
        self._is_cursor_hidden = is_hidden
        return _HIDE_CURSOR if is_hidden else _SHOW_CURSOR

    def _ansi(self, row: Text) -> str:
        if not row.spans and not row.style:
            return visible_controls(row.plain)
        colour_system = _COLOUR_SYSTEMS.get(self._console.color_system or "")
        # rich renders a text without spans without its base style, so that is added here.
        base = self._console.get_style(row.style)
        # Every text of the chat passes here. Control characters were made visible before the width
        # was measured; this second pass is the guarantee, and fast for printable segments.
        return "".join(
            self.theme.recolour(base + (segment.style or Style.null())).render(
                visible_controls(segment.text), color_system=colour_system
            )
            for segment in row.render(self._console)
        )
