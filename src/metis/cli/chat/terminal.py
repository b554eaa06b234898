"""Terminal: quiet while a model speaks, with Ctrl-C and changes of size told to us."""

import asyncio
import contextlib
import signal
import sys
import termios
from collections.abc import Callable, Generator

_IFLAG, _LFLAG = 0, 3
"""Where the flags of input and of the line stand in what `tcgetattr` gives."""


@contextlib.contextmanager
def quiet() -> Generator[None]:
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


def forget_typed() -> None:
    """Throw away what was typed and not read yet."""
    with contextlib.suppress(OSError, ValueError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextlib.contextmanager
def signals(*, stop: Callable[[], object], resized: Callable[[], None]) -> Generator[None]:
    """Call somebody on Ctrl-C, and somebody when the terminal has another size."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_signal_handler(signal.SIGINT)
