"""Commands with all processes that they start, and limited output.

A command runs in its own process group, under a supervisor (`supervisor.py`) that kills all
processes of the command at its end, including those that left the group, and also if metis itself
is killed.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from metis.tools.supervisor import NO_LIFELINE

GRACE_S = 5.0
"""How long a group may take to end after SIGTERM, before SIGKILL."""

# For output that is still in the pipe when the command has ended.
_DRAIN_S = 1.0
_READ_BYTES = 65_536
# How long the supervisor may take to kill remaining processes, before its own group is killed.
_END_S = 5.0
_SUPERVISOR = Path(__file__).with_name("supervisor.py")

_PASSED_ON = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME"),
        *("LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES"),
        *("TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV", "CONDA_PREFIX", "SYSTEMROOT"),
    }
)
_LOGIN_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def child_environment(
    environment: Mapping[str, str] = os.environ, allowed: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment of a child process: variables that programs need, and allowed ones.

    A model sees the output of a command, and `env` prints all variables. A list of secret names
    would be incomplete, so the list has the names that are passed on.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in allowed
        or ((name in _PASSED_ON or name.startswith("LC_")) and not _LOGIN_IN_URL.search(value))
    }


def supervised(command: Sequence[str], lifeline: int | None = None) -> list[str]:
    """Return a command that runs another one under the supervisor."""
    if not sys.executable:  # an embedded interpreter: only the process group is killed
        return list(command)
    # Isolated, so that neither the working directory nor PYTHONPATH can replace a module.
    arguments = ("-I", "-S", str(_SUPERVISOR), NO_LIFELINE if lifeline is None else str(lifeline))
    return [sys.executable, *arguments, *command]


class BoundedOutput:
    """The beginning and the end of a command's output; the bytes between are only counted."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Append output."""
        self.size_bytes += len(data)
        space = self._head_bytes - len(self._head)
        self._head += data[:space]
        self._tail += data[space:]
        # Cut rarely, because each cut moves the whole tail.
        if len(self._tail) > 2 * self._tail_bytes + _READ_BYTES:
            del self._tail[: -self._tail_bytes]

    def text(self) -> str:
        """Return the beginning and the end, with the number of omitted bytes between them."""
        tail = self._tail[-self._tail_bytes :]
        omitted = self.size_bytes - len(self._head) - len(tail)
        if not omitted:
            return bytes(self._head + tail).decode("utf-8", "replace")
        head, end = (bytes(part).decode("utf-8", "replace") for part in (self._head, tail))
        return f"{head}\n[{omitted} bytes omitted]\n{end}"


class ProcessEnd(Struct, frozen=True):
    """How a command ended: its exit code, or minus the number of the signal that killed it."""

    code: int
    is_stopped: bool = False
    is_timed_out: bool = False


class ProcessCommand(Struct, frozen=True, kw_only=True):
    """A program with its arguments, directory and environment."""

    argv: Sequence[str]
    cwd: Path | None = None
    environment: Mapping[str, str]
    descriptors: Sequence[int] = ()
    """Open files that the command inherits."""


async def run(
    command: ProcessCommand,
    output: BoundedOutput,
    stop: asyncio.Event,
    timeout_s: float,
    grace_s: float = GRACE_S,
) -> ProcessEnd:
    """Run a command to its end, or stop it at the timeout or when `stop` is set."""
    group = _ProcessGroup(command, output)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(
            {group.exited, stopped}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        is_timed_out = not group.exited.done() and not stopped.done()
        is_stopped = not group.exited.done() and stopped.done()
        if not group.exited.done():
            group.signal(signal.SIGTERM)
            await asyncio.wait({group.exited}, timeout=grace_s)
        group.end_all()
        await asyncio.wait({group.exited}, timeout=_END_S)
        # After a normal exit, too: systems without a subreaper need it to end the group.
        group.signal(signal.SIGKILL)
        await asyncio.wait({group.exited})
        # Limited, because a process that escaped may keep the pipe open.
        await asyncio.wait({group.drained}, timeout=_DRAIN_S)
        return ProcessEnd(group.reap(), is_stopped, is_timed_out)
    finally:
        stopped.cancel()
        group.close()


class _ProcessGroup:
    """A running command under its supervisor, and its pipe."""

    def __init__(self, command: ProcessCommand, output: BoundedOutput) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = self._start(command, lifeline)
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        self.exited = self._loop.create_future()
        self.drained = self._loop.create_future()
        if self._process.stdout is None:
            raise OSError("no pipe")
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)
        threading.Thread(target=self._wait_for_exit, daemon=True).start()

    @staticmethod
    def _start(command: ProcessCommand, lifeline: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - running commands is what this is for
            supervised(command.argv, lifeline),
            cwd=command.cwd,
            env=dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # One pipe, so that output and errors are in order.
            stderr=subprocess.STDOUT,
            # A new session has no terminal, so that a command cannot write to the user's.
            start_new_session=True,
            pass_fds=(lifeline, *command.descriptors),
        )

    def end_all(self) -> None:
        """Make the supervisor kill all remaining processes, and end."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the group, if its leader is not reaped yet."""
        # After reaping, the process id could belong to another process group.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def reap(self) -> int:
        """Reap the process and return its exit code; its id may be reused afterwards."""
        return self._process.wait()

    def close(self) -> None:
        """Kill the remaining processes and close the pipes."""
        self.end_all()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.reap()
        self._loop.remove_reader(self._pipe)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._output.add(data)
            return
        self._loop.remove_reader(self._pipe)
        if not self.drained.done():
            self.drained.set_result(None)

    def _wait_for_exit(self) -> None:
        """Wait for the exit in a thread, without reaping, so that the group id is not reused."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(RuntimeError):  # the event loop may be closed by now
            self._loop.call_soon_threadsafe(self._set_exited)

    def _set_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)
