"""A small program that runs a command, and at its end kills all processes that it started.

It is started as a script between metis and a command, and uses the standard library only, so that
it starts fast. On Linux it is the subreaper of its descendants: a process that leaves its group and
its parent (`setsid`, a double fork) becomes its child and is killed with the others. On other
systems such a process can escape; processes in the group of the command cannot.

Arguments: a file descriptor, or `-`, and the command. The descriptor is the read end of a pipe
whose write end only metis has: it is closed when metis stops the command, and also if metis is
killed. With `-` the command is stopped by SIGTERM, which Linux also sends if the parent dies.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

NO_LIFELINE = "-"
"""The argument in place of the descriptor, for a caller that cannot pass one."""

# Options of prctl(2), for which Python has no names.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# The exit code of shells for a command that cannot be started.
_NOT_STARTED = 127
# How long a command may take to end after SIGTERM.
_GRACE_S = 1.0
# Limited, because a process of another user cannot be killed.
_KILL_ROUNDS = 400
_ROUND_S = 0.005


def main() -> None:
    """Run the command of the arguments, and exit with its exit code or signal."""
    lifeline = None if sys.argv[1] == NO_LIFELINE else int(sys.argv[1])
    if lifeline is not None:
        os.set_inheritable(lifeline, False)  # noqa: FBT003 - positional-only
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if lifeline is None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    terminated: list[int] = []
    # Handlers are reset by exec, unlike ignored signals, so that the command has the defaults.
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _note)
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    child = _start(sys.argv[2:])
    status = _wait(child, lifeline, woken, terminated)
    _end_all()
    _exit_like(status)


def _note(number: int, frame: object) -> None:
    """Do nothing: the signal wakes the loop; the command, in the same group, handles it."""


def _start(command: list[str]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        # If the supervisor is killed, the command is killed, too.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            # Python ignores these signals, which the command would inherit.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            os.execvp(command[0], command)  # noqa: S606 - running a command is what this is for
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_NOT_STARTED)


def _wait(child: int, lifeline: int | None, woken: int, terminated: list[int]) -> int:
    """Wait until the command ends or is stopped; return its status, or that of SIGKILL."""
    inputs = [woken] if lifeline is None else [woken, lifeline]
    deadline: float | None = None
    while True:
        status = _reap(child)
        if status is not None:
            return status
        if terminated and lifeline is None and deadline is None:
            deadline = time.monotonic() + _GRACE_S
        wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(inputs, [], [], wait_s)
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
        # The lifeline is readable when its other end is closed, since nothing is written to it.
        is_over = deadline is not None and time.monotonic() >= deadline
        if lifeline in ready or is_over:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            return signal.SIGKILL


def _reap(child: int) -> int | None:
    """Reap ended processes; return the status of the command if it has ended."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return status
            if pid == 0:
                return None
    return None


def _end_all() -> None:
    """Kill the descendants of this process until none is left."""
    for _ in range(_KILL_ROUNDS):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
            for pid in _descendants():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_ROUND_S)
            continue
        return


def _descendants() -> list[int]:
    """Return the descendants of this process; empty on systems without /proc."""
    children: dict[int, list[int]] = {}
    # pathlib would take longer to import than everything else here.
    names = os.listdir("/proc") if os.path.isdir("/proc") else []  # noqa: PTH112, PTH208 - see above
    for name in filter(str.isdecimal, names):
        with (
            suppress(OSError, ValueError, IndexError),
            open(f"/proc/{name}/stat", "rb") as stat,  # noqa: PTH123 - see above
        ):
            # The name is in brackets and may contain any character, including brackets.
            fields = stat.read().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
    pids: list[int] = []
    pending = [os.getpid()]
    while pending:
        below = children.pop(pending.pop(), [])
        pids += below
        pending += below
    return pids


def _exit_like(status: int) -> None:
    """End with the exit code of the command, or by the signal that killed it."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process on Linux; do nothing on other systems."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
