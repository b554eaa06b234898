"""A terminal for tests: a program in a pseudo-terminal, and the screen that a person would see."""

import codecs
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyte

PATIENCE_S = 60.0
"""How long something is waited for; only a test that fails takes so long."""


_FAINT, _GREY = 2, 90
_NUMBER = struct.Struct("!i")


class _Screen(pyte.HistoryScreen):
    """A screen that answers when it is asked where its cursor is, as terminals do."""

    answer: Callable[[bytes], None]

    def write_process_input(self, data: str) -> None:
        self.answer(data.encode())

    def report_device_status(self, mode: int, **_: Any) -> None:
        """Answer; pyte's own method takes no private modes."""
        super().report_device_status(mode)

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        """Colour the next letters; faint ones, which pyte does not know, are grey."""
        if not private:
            super().select_graphic_rendition(*(_GREY if each == _FAINT else each for each in attrs))


class Terminal:
    """A program with a keyboard and a screen."""

    def __init__(  # noqa: PLR0913 - a keyword for each property of a start
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        columns: int = 100,
        rows: int = 30,
        fork_server: Path | None = None,
        colours: Mapping[str, str] | None = None,
    ) -> None:
        """Start a program; with a fork server, `metis` as a copy of the process of the server.

        A terminal with `colours` tells them: `{"11": "ffff/ffff/ffff"}` is a white background.
        """
        self._colours = colours or {}
        self._screen = _Screen(columns, rows, history=5000, ratio=0.1)
        self._screen.answer = self._answer
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = b""
        """Everything that the program wrote."""
        self._server: socket.socket | None = None
        if fork_server is None:
            self._pid, self._master = pty.fork()
            if self._pid == 0:
                os.chdir(folder)
                os.execve(command[0], list(command), dict(environment))  # noqa: S606 - our own program
            self.resize(columns, rows)
            return
        self._master, slave = os.openpty()
        self.resize(columns, rows)
        request = {"arguments": command[command.index("metis") + 1 :], "in_terminal": True}
        request |= {"folder": str(folder), "variables": dict(environment)}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.settimeout(PATIENCE_S)
        self._server.connect(str(fork_server))
        socket.send_fds(self._server, [json.dumps(request).encode()], [slave] * 3)
        os.close(slave)
        (self._pid,) = _NUMBER.unpack(self._server.recv(_NUMBER.size))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        os.close(self._master)
        if self._server is not None:
            self._server.close()

    @property
    def pid(self) -> int:
        """The process of the program; 0 once it has ended."""
        return self._pid

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed by itself, as it does for a shell."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    # The keyboard

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def send(self, text: str) -> None:
        """Write a line and press Enter."""
        self.type(f"{text}\r")

    def paste(self, text: str) -> None:
        """Paste a text as a terminal does that tells pasted from typed."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size, and tell the program."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self._screen.resize(rows, columns)

    # The screen

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """What stands on the screen, as one text."""
        return "\n".join(self.lines).rstrip()

    @property
    def scrollback(self) -> str:
        """What stands on the screen and above it."""
        above = [
            "".join(line[column].data for column in range(self._screen.columns)).rstrip()
            for line in self._screen.history.top
        ]
        return "\n".join([*above, *self.lines]).rstrip()

    @property
    def screen(self) -> pyte.Screen:
        """The screen itself, with its colours."""
        return self._screen

    def wait_for(self, wanted: str | Callable[[str], bool]) -> str:
        """Wait until a text is on the screen, or something holds of it; gives the screen."""
        until = time.monotonic() + PATIENCE_S
        while not (wanted in self.text if isinstance(wanted, str) else wanted(self.text)):
            if time.monotonic() > until or not self._read(until - time.monotonic()):
                raise AssertionError(f"{wanted!r} did not come:\n{self.text}")
        return self.text

    def rest(self, seconds: float = 0.2) -> str:
        """Wait until nothing was written for a while; gives the screen."""
        while self._read(seconds):
            pass
        return self.text

    # The end

    def exit_code(self) -> int:
        """Wait until the program ends by itself."""
        until = time.monotonic() + PATIENCE_S
        while self._read(max(until - time.monotonic(), 0)):
            pass
        if self._server is not None:
            self._pid = 0
            return _NUMBER.unpack(self._server.recv(_NUMBER.size))[0]
        while not (ended := os.waitpid(self._pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                raise AssertionError(f"it did not end:\n{self.text}")
            time.sleep(0.01)
        self._pid = 0
        return os.waitstatus_to_exitcode(ended[1])

    def kill(self) -> None:
        """End the program if it has not ended."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            if self._server is None:
                os.waitpid(self._pid, 0)
            else:
                self._server.recv(_NUMBER.size)
            self._pid = 0

    def _read(self, seconds: float) -> bool:
        """Take what the program writes; whether there was anything."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            data = b""  # the program has ended
        self.raw += data
        for number in re.findall(rb"\x1b\]([\d;]+);\?\x1b\\", data):
            if number.decode() in self._colours:
                colour = self._colours[number.decode()]
                self._answer(b"\x1b]%b;rgb:%b\x1b\\" % (number, colour.encode()))
        self._stream.feed(self._decoder.decode(data).replace("\x1b[?2026", "\x1b[?9926"))
        return bool(data)

    def _answer(self, data: bytes) -> None:
        os.write(self._master, data)
