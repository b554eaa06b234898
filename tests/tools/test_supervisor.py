"""No process outlives its command, tested with real processes that try to."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metis.tools.builtin.run_command import RunCommand
from metis.tools.process import BoundedOutput, ProcessCommand, child_environment, run, supervised
from tool_helpers import result_text, run_one, tool_context

pytestmark = pytest.mark.anyio
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper elsewhere")
# Daemonises: leaves its parent, group and session, and closes the pipe.
DAEMON = """
import os, sys, time
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
for descriptor in (0, 1, 2):
    os.close(descriptor)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""
STARTER = """
import subprocess, sys
fds = [int(fd) for fd in sys.argv[1].split()]
subprocess.Popen(sys.argv[2:], pass_fds=fds, start_new_session=True).wait()
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def daemon_command(tmp_path: Path) -> str:
    program = tmp_path / "daemon.py"
    program.write_text(DAEMON)
    pid = tmp_path / "pid"
    return f"{sys.executable} -I {program} {pid}; while [ ! -s {pid} ]; do sleep 0.01; done"


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is read
        return False
    return state != "Z"


def has_ended(pid: int) -> bool:
    for _ in range(1000):
        if not is_running(pid):
            return True
        time.sleep(0.01)
    return False


@linux_only
async def test_a_daemon_of_a_command_ends_with_it(tmp_path: Path) -> None:
    message = await run_one(RunCommand, tool_context(tmp_path), command=daemon_command(tmp_path))
    assert "exit code" not in result_text(message)
    assert has_ended(int((tmp_path / "pid").read_text()))


@linux_only
async def test_a_daemon_ends_when_its_command_is_stopped(tmp_path: Path) -> None:
    command = ProcessCommand(
        argv=("/bin/sh", "-c", f"trap '' TERM; {daemon_command(tmp_path)}; sleep 600; sleep 600"),
        environment=child_environment(),
    )
    stop = asyncio.Event()
    running = asyncio.create_task(run(command, BoundedOutput(100, 100), stop, 60, grace_s=0.1))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110 - a file of another process
        await asyncio.sleep(0.01)
    stop.set()
    end = await running
    assert end.is_stopped
    assert end.code == -signal.SIGKILL
    assert has_ended(int((tmp_path / "pid").read_text()))


@linux_only
@pytest.mark.parametrize("has_lifeline", [True, False])
def test_every_process_ends_when_metis_is_killed(tmp_path: Path, *, has_lifeline: bool) -> None:
    command = ["/bin/sh", "-c", f"{daemon_command(tmp_path)}; echo $$ > {tmp_path}/shell; sleep 99"]
    lifeline, held = os.pipe() if has_lifeline else (None, None)
    # Replaces metis: it starts the supervisor and is killed without cleaning up.
    parent = subprocess.Popen(  # noqa: S603 - a program of this test
        [
            sys.executable,
            "-c",
            STARTER,
            "" if lifeline is None else str(lifeline),
            *supervised(command, lifeline),
        ],
        pass_fds=[] if lifeline is None else [lifeline],
    )
    try:
        while not (tmp_path / "shell").exists() or not (tmp_path / "shell").read_text():
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
        for descriptor in (lifeline, held):
            if descriptor is not None:
                os.close(descriptor)
    for name in ("shell", "pid"):
        assert has_ended(int((tmp_path / name).read_text())), name


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM), ("kill -KILL $$", -signal.SIGKILL)],
)
async def test_supervised_command_has_unchanged_exit_status(command: str, code: int) -> None:
    end = await run(
        ProcessCommand(argv=("/bin/sh", "-c", command), environment=child_environment()),
        BoundedOutput(100, 100),
        asyncio.Event(),
        60,
    )
    assert end.code == code
    assert not end.is_stopped


async def test_missing_program_is_an_error() -> None:
    output = BoundedOutput(1000, 100)
    command = ProcessCommand(argv=("/nonexistent/program",), environment=child_environment())
    end = await run(command, output, asyncio.Event(), 60)
    assert end.code == 127
    assert "No such file" in output.text()
