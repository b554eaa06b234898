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
def signals(
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


def is_ending() -> bool:
    """Whether whoever asks is being cancelled itself, and not only something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
