"""Record the cassettes of the tests against two independent servers on this machine.

The first is llama.cpp with a tiny model, the second is aimock (Node.js), found under
build/cassettes-node. `make cassettes` fetches both. Golden files with the canonical form of every
answer are written beside the cassettes.
"""

import contextlib
import json
import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "wire"), str(ROOT / "scripts")]

from cassette import FOLDER, NOWHERE, cassette  # noqa: E402 - the paths above come first
from golden import golden  # noqa: E402 - the same
from scenario import Scenario, play, scenarios  # noqa: E402 - the same
from tiny_model import write  # noqa: E402 - the same

AIMOCK = ROOT / "build/cassettes-node/node_modules/@copilotkit/aimock/dist/cli.js"
PATIENCE_S = 60


def serve_llama(model: str, port: int) -> None:
    """Run llama.cpp until this process is ended."""
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = 2048
    params.n_parallel = 1
    params.warmup = False
    params.cache_prompt = False
    params.sampling.temp = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(PATIENCE_S)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], port: int) -> Generator[str]:
    """The address of a server that runs as long as it is needed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own commands
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise SystemExit(f"no server on port {port}")


def record(scenario: Scenario, base_url: str) -> None:
    """Write the cassette of a scenario, and the golden file beside it."""
    (FOLDER / f"{scenario.name}.yaml").unlink(missing_ok=True)
    with cassette(scenario.name, is_recorded=True):
        play(scenario, base_url)
    with cassette(scenario.name):
        played = play(scenario, NOWHERE)
    (FOLDER / f"{scenario.name}.jsonl").write_bytes(golden(played))
    print(f"{scenario.name}: {len(played.answers)} answers")


def main() -> None:
    """Record everything anew."""
    logging.getLogger("metis").setLevel(logging.ERROR)  # losses are no news here
    node = shutil.which("node")
    if node is None or not AIMOCK.exists():
        raise SystemExit("make cassettes fetches what is needed here; it wants npm and node")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        write(model)
        llama, aimock = free_port(), free_port()
        own = [sys.executable, __file__, "serve", str(model), str(llama)]
        fixtures = str(FOLDER / "aimock.json")
        other = [node, str(AIMOCK), "--port", str(aimock), "--fixtures", fixtures, "--strict"]
        with running(own, llama) as first, running(other, aimock) as second:
            for scenario in scenarios().values():
                record(scenario, first if scenario.server == "llama" else second)
    (FOLDER / "servers.json").write_text(json.dumps(versions(), indent=2) + "\n")


def versions() -> dict[str, str]:
    """The versions of the servers that were recorded."""
    package = json.loads((AIMOCK.parent.parent / "package.json").read_text())
    return {"aimock": package["version"], "xllamacpp": version("xllamacpp")}


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_llama(sys.argv[2], int(sys.argv[3]))
    else:
        main()
