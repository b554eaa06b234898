"""The border between the commands and the terminal: everything they print goes through here.

`echo` prints text for people. Its control characters are always shown instead of obeyed, in a pipe
too: what a pipe gets often ends in a pager or a log, and so on a terminal. `echo_json` escapes them
as JSON does, which changes no value. `write_data` is for content that programs read: exact in a
file or a pipe, as `echo` prints it on a terminal.
"""

import logging
import os
import re
import sys
from typing import IO, TextIO

from metis.cli.text import styled_text, visible_controls

# What JSON may hold as it is, and a terminal may obey or hide.
_JSON_UNSAFE = re.compile(
    "[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for people; control characters in it are shown instead of obeyed."""
    stream = _stream(is_error=err)
    if stream is not None:
        end = "\n" if nl else ""
        write_text(stream, styled_text(text, has_colour=has_colour(stream)) + end)


def has_colour(stream: TextIO) -> bool:
    """Return whether styles are written to a stream: only to a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def echo_json(data: bytes | str, *, err: bool = False) -> None:
    """Print JSON whose strings have no raw control characters; the values are the same."""
    stream = _stream(is_error=err)
    if stream is None:
        return
    text = data if isinstance(data, str) else data.decode()
    text = _JSON_UNSAFE.sub(lambda found: _json_escape(found[0]), text)
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
        # The stream has taken nothing: it encodes the whole text before it keeps any of it.
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _stream(*, is_error: bool) -> TextIO | None:
    # A process without a terminal or file for a stream has None there.
    return sys.stderr if is_error else sys.stdout


class EchoHandler(logging.Handler):
    """Prints log records to standard error; they may quote what a provider or file says."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            echo(self.format(record), err=True)
        except (OSError, ValueError):
            self.handleError(record)
