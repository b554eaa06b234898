"""Run `metis` as forks of one process that has every module loaded.

Tests run the program more than a hundred times, and nearly all of that time is spent loading
modules. Each run has its own process, arguments, directory, variables and streams, and in a
pseudo-terminal also its own session.

    python forked.py serve SOCKET     the process that is forked
    python forked.py run SOCKET ...   one run; its exit code is that of the program
"""

import fcntl
import importlib
import json
import os
import socket
import struct
import sys
import termios

LOADED = (
    *("aiohttp", "metis.catalog.tables", "metis.cli.ask", "metis.cli.chat.chat", "metis.cli.main"),
    *("metis.cli.sessions", "metis.sim"),
)
NUMBER = struct.Struct("!i")
_MOST_BYTES = 1_000_000


def serve(path: str) -> None:
    """Accept runs until the process is ended."""
    for name in LOADED:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            caller, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _become(caller)
            caller.close()
            _forget_ended()


def _become(caller: socket.socket) -> None:
    """Run the requested program in this fork, and report its exit code."""
    data, streams, _, _ = socket.recv_fds(caller, _MOST_BYTES, 3)
    request = json.loads(data)
    if request.get("in_terminal"):
        _become_session(caller)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = ["metis", *request["arguments"]]
    if request.get("in_terminal"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - streams of the process
            for number, mode in enumerate("rww")
        )
        os._exit(_run())
    caller.sendall(bytes([_run()]))
    os._exit(0)


def _become_session(caller: socket.socket) -> None:
    """Continue as a child in a new session; the parent waits and reports the exit code."""
    process = os.fork()
    if process == 0:
        os.setsid()
        caller.close()
        return
    caller.sendall(NUMBER.pack(process))
    _, status = os.waitpid(process, 0)
    caller.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _run() -> int:
    from metis.cli.main import main  # noqa: PLC0415 - only the process that is copied has it

    code = 0
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _forget_ended() -> None:
    """Reap ended runs."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def run(path: str, arguments: list[str]) -> int:
    """Run the program with the streams and environment of this process; return its exit code."""
    request = {"arguments": arguments, "folder": os.getcwd(), "variables": dict(os.environ)}  # noqa: PTH109 - pathlib takes longer to load than this to run
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        reply = server.recv(1)
    return reply[0] if reply else 70


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], sys.argv[3:]))
