"""How long the terminal takes: to the first prompt, to the first word, and with a long history.

The real program runs in a pseudo-terminal: as somebody without a key starts it, where the simulator
answers in the same process; as somebody with a key does, where the provider is a simulator in a
process of its own; and with a long conversation. CPU is that of all threads of the program.

`--one-shot` measures one question from a shell instead, beside `llm` with a model that answers at
once, if `llm` is installed in this environment or in the one of `--llm-python`. The runs of both
programs alternate.
"""

import asyncio
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from metis import (  # noqa: E402 - the path comes first
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    Usage,
    new_ulid,
    store,
)
from terminal import Terminal  # noqa: E402 - the path comes first

MESSAGES = 5000
RUNS = 9
SONNET = ("-m", "sonnet")


def main(arguments: Sequence[str]) -> None:
    """Print a table."""
    if arguments[:1] == ["--one-shot"]:
        python = arguments[2] if arguments[1:2] == ["--llm-python"] else sys.executable
        _print_one_shot(python)
        return
    with tempfile.TemporaryDirectory() as place:
        home, bare = Path(place, "home"), Path(place, "bare")
        home.mkdir()
        bare.mkdir()
        session = asyncio.run(_long_session(home))
        with _provider() as url:
            (home / "config.toml").write_text(f'[base_urls]\nanthropic = "{url}"\n')
            _start(bare)  # compiles what has to be compiled
            _start(home, *SONNET)
            runs = {
                "no key": [_start(bare) for _ in range(RUNS)],
                "a key": [_start(home, *SONNET) for _ in range(RUNS)],
                f"{MESSAGES} messages": [_start(home, *SONNET, "-s", session) for _ in range(RUNS)],
            }
    print("| with | to the prompt | to the first word | to the second answer's |")
    print("| --- | ---: | ---: | ---: |")
    for name, times in runs.items():
        cells = (f"{cpu:.0f} · {wall:.0f}" for cpu, wall in _medians(times))
        print(f"| {name} | {' | '.join(cells)} |")


ECHO = """
import llm

@llm.hookimpl
def register_models(register):
    register(Echo())

class Echo(llm.Model):
    model_id = "echo"
    can_stream = True

    def execute(self, prompt, stream, response, conversation):
        yield "done"
"""


def _print_one_shot(llm_python: str) -> None:
    """Print the CPU time of one question, for metis and for llm."""
    with tempfile.TemporaryDirectory() as place:
        environment = {
            "HOME": place,
            "METIS_HOME": place,
            "LLM_USER_PATH": place,
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
        }
        Path(place, "llm_echo.py").write_text(ECHO, encoding="utf-8")
        metadata = Path(place, "llm_echo-1.dist-info")
        metadata.mkdir()
        (metadata / "entry_points.txt").write_text("[llm]\necho = llm_echo\n", encoding="utf-8")
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-echo\nVersion: 1\n")
        metis = [sys.executable, "-m", "metis", "-m", "sim", "say done"]
        programs = {"metis": (metis, {**environment, "PYTHONPATH": str(ROOT / "src")})}
        llm = Path(llm_python).parent / "llm"
        if llm.exists() or shutil.which("llm"):
            command = [str(llm) if llm.exists() else "llm", "-m", "echo", "say done"]
            programs["llm"] = command, {**environment, "PYTHONPATH": place}
        times: dict[str, list[float]] = {name: [] for name in programs}
        for run in range(RUNS + 1):
            for name, (command, variables) in programs.items():
                spent = _child_cpu_s(command, variables)
                if run:  # the first run compiles what has to be compiled
                    times[name].append(spent)
    medians = {name: 1000 * statistics.median(values) for name, values in times.items()}
    print("| program | CPU of one question, ms | metis is |")
    print("| --- | ---: | ---: |")
    for name, median in medians.items():
        print(f"| {name} | {median:.0f} | {medians['metis'] / median:.2f} x |")


def _child_cpu_s(command: Sequence[str], environment: dict[str, str]) -> float:
    """The CPU time of a program that prints `done`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(  # noqa: S603 - our own commands
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if b"done" not in done.stdout:
        raise SystemExit(f"{command[0]} printed {done.stdout!r}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _medians(runs: Sequence[Sequence[float]]) -> Iterator[tuple[float, float]]:
    """The CPU and the wall time of each step in milliseconds."""
    columns = [1000 * statistics.median(column) for column in zip(*runs, strict=True)]
    return zip(columns[::2], columns[1::2], strict=True)


@contextmanager
def _provider() -> Generator[str]:
    """A provider in a process of its own; gives its address."""
    command = [sys.executable, "-m", "metis", "sim", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        found = re.search(r"http://[\d.:]+\d", line)
        yield found[0] if found else ""
    finally:
        process.terminate()
        process.wait()


def _start(home: Path, *arguments: str) -> tuple[float, ...]:
    """CPU and wall time to the prompt, and to the first word of the first and second answer."""
    environment = {
        "HOME": str(home),
        "METIS_HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONPYCACHEPREFIX": str(home.parent / "compiled"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    if arguments:
        environment["ANTHROPIC_API_KEY"] = "none"
    command = [sys.executable, "-m", "metis", *arguments]
    began_s = time.perf_counter()
    with Terminal(command, environment=environment, folder=home) as chat:
        chat.wait_for("›")  # noqa: RUF001 - the mark of the prompt
        prompt = _cpu_s(chat.pid), time.perf_counter() - began_s
        chat.wait_for("session")
        chat.rest(1.0)
        return *prompt, *_asked(chat), *_asked(chat)


def _asked(chat: Terminal) -> tuple[float, float]:
    """CPU and wall time from Enter to the first word of an answer."""
    word = new_ulid()
    chat.type(f"say {word}")
    chat.rest(0.5)
    before, began_s = _cpu_s(chat.pid), time.perf_counter()
    chat.type("\r")
    chat.wait_for(f"\n{word}")
    spent = _cpu_s(chat.pid) - before, time.perf_counter() - began_s
    chat.rest(0.5)
    return spent


def _cpu_s(pid: int) -> float:
    """What all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def _long_session(home: Path) -> str:
    """A session with many messages; gives its id."""
    async with store.open(f"sqlite:///{home / 'metis.db'}") as keep:
        record = await keep.create_session(active_model="anthropic:claude-sonnet-4-6")
        messages = [_message(record.id, number) for number in range(MESSAGES)]
        await keep.append_all(messages)
        return record.id


def _message(session_id: str, number: int) -> Message:
    said = number % 2 == 0
    model = "anthropic:claude-sonnet-4-6"
    return Message(
        id=new_ulid(),
        session_id=session_id,
        role=Role.USER if said else Role.ASSISTANT,
        content=(TextBlock(f"message {number} with some words in it"),),
        created_at=datetime.now(UTC),
        metadata=MessageMetadata() if said else _answered(model),
    )


def _answered(model: str) -> MessageMetadata:
    return MessageMetadata(
        model=model,
        provider="anthropic",
        routing=RoutingDecisionRecord(
            mode=RoutingMode.MANUAL, chosen_model=model, reason="set for the session by the user"
        ),
        usage=Usage(
            input_tokens=1000,
            output_tokens=20,
            latency_ms=100,
            cost_usd=Decimal("0.003"),
            pricing_version="2026-11-15",
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
