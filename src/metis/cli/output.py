"""Output of the commands: everything that they print goes through this module.

`echo` prints text for people. Control characters in it are always made visible, in a pipe as well:
the output of a pipe often ends in a pager or a log, and so on a terminal. `echo_json` escapes them
as JSON does, which changes no value. `write_data` is for content that programs read: unchanged in
a file or a pipe, with visible control characters on a terminal.
"""

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Generator, Mapping
from typing import IO, TextIO

from metis.cli.text import (
    escape_controls,
    fold,
    screen_width,
    style,
    styled_text,
    truncate,
    visible_controls,
)

# Characters that JSON strings may contain unescaped, and that a terminal may obey or hide.
_JSON_UNSAFE = re.compile(
    "[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


# The indexes of the input flags and the local flags in the list of `tcgetattr`.
_IFLAG, _LFLAG = 0, 3


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for people, with visible control characters."""
    stream = _stream(is_error=err)
    if stream is not None:
        end = "\n" if nl else ""
        write_text(stream, styled_text(text, has_colour=has_colour(stream)) + end)


def echo_notice(text: str, *, dim: bool = False) -> None:
    """Print text to standard error; on a terminal, lines break between words."""
    stream = _stream(is_error=True)
    if stream is not None and stream.isatty():
        rows = [row for line in text.splitlines() for row in fold(line, screen_width())]
        text = "\n".join(rows)
    echo(style(text, dim=dim), err=True)


def end_interrupted_line() -> None:
    """Start a new line on a terminal, which shows ^C where a server was stopped."""
    stream = _stream(is_error=True)
    if stream is not None and stream.isatty():
        echo(err=True)


def has_colour(stream: TextIO) -> bool:
    """Return whether styles are written to a stream: only to a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def can_redraw(stream: TextIO | None, environment: Mapping[str, str]) -> bool:
    """Return whether a stream is a terminal that can write over what it shows."""
    is_terminal = stream is not None and stream.isatty()
    return is_terminal and environment.get("TERM", "") not in ("", "dumb", "unknown")


@contextlib.contextmanager
def echo_disabled() -> Generator[None]:
    """Switch off the terminal's echo; keys wait for the next prompt, and Ctrl-C sends a signal.

    A chat does so before it loads its modules: keys that are typed meanwhile would be shown twice,
    by the terminal and by the first prompt. Terminals that cannot redraw keep reading lines.
    """
    if sys.stdin is None or not sys.stdin.isatty() or not can_redraw(sys.stdout, os.environ):
        yield
        return
    import termios  # noqa: PLC0415 - not on every system, and only a terminal needs it

    stream = sys.stdin.fileno()
    before = termios.tcgetattr(stream)
    without_echo = list(before)
    # Enter stays a carriage return, which the prompt reads as Enter if it was typed ahead.
    without_echo[_IFLAG] &= ~termios.ICRNL
    without_echo[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(stream, termios.TCSADRAIN, without_echo)
    try:
        yield
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def echo_json(data: bytes | str, *, err: bool = False) -> None:
    """Print JSON whose strings have no raw control characters; the values are the same."""
    stream = _stream(is_error=err)
    if stream is None:
        return
    text = data if isinstance(data, str) else data.decode()
    text = _JSON_UNSAFE.sub(lambda match: _json_escape(match[0]), text)
    encoding = stream.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = "".join(c if c.isascii() else _json_escape(c) for c in text)
    write_text(stream, f"{text}\n")


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def write_data(text: str, *, nl: bool = False) -> None:
    """Print content: exactly in a file or a pipe, with visible control characters on a terminal."""
    stream = _stream(is_error=False)
    if stream is None:
        return
    content = visible_controls(text) if stream.isatty() else text
    write_text(stream, content + ("\n" if nl else ""))


def write_file(target: IO[bytes], data: bytes) -> None:
    """Write bytes to a file as they are; on a terminal control characters become visible."""
    if not target.isatty():
        target.write(data)
        return
    target.write(visible_controls(data.decode(errors="replace")).encode(errors="replace"))
    target.flush()


def write_text(stream: TextIO, text: str) -> None:
    """Write text to a stream; what its encoding lacks is written as a backslash and a number."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # Nothing is written yet: a stream encodes the whole text before it buffers any of it.
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


class StatusLine:
    """A line on standard error that is redrawn in place; without a terminal it is not shown."""

    interval_s = 0.1
    """The shortest time between two redraws: drawing takes longer than most steps of the work."""

    def __init__(self, *, is_shown: bool = True) -> None:
        stream = _stream(is_error=True)
        has_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stream = stream if is_shown and has_terminal else None
        self._drawn_at: float | None = None
        self._is_visible = False

    def show(self, text: str) -> None:
        """Draw a text, cut to one row, unless another was drawn a moment ago."""
        now = time.monotonic()
        is_early = self._drawn_at is not None and now - self._drawn_at < self.interval_s
        if self._stream is None or is_early:
            return
        # One column stays free: terminals wrap at the last one.
        row = truncate(escape_controls(text), screen_width() - 1)
        write_text(self._stream, f"\r{row}\x1b[K")
        self._drawn_at = now
        self._is_visible = True

    def clear(self) -> None:
        """Remove the text, so that other lines can be printed in its place."""
        if self._stream is not None and self._is_visible:
            write_text(self._stream, "\r\x1b[K")
            self._is_visible = False


def _stream(*, is_error: bool) -> TextIO | None:
    # A process without a terminal or file for a stream has None there.
    return sys.stderr if is_error else sys.stdout


class EchoHandler(logging.Handler):
    """Prints log records to standard error, escaped: they may quote a provider or a file."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            echo(self.format(record), err=True)
        except (OSError, ValueError):
            self.handleError(record)
