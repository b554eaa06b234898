"""How long the terminal takes: to the first prompt, to the first word, and with a long history.

The real program runs in a pseudo-terminal against the simulator. CPU is that of its process.
"""

import asyncio
import os
import sys
import tempfile
import time
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
RUNS = 5


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        session = asyncio.run(_long_session(home))
        _start(home)  # compiles what has to be compiled
        rows = [_start(home) for _ in range(RUNS)]
        long = [_start(home, "-s", session) for _ in range(RUNS)]
    print("| what | CPU ms | wall ms |")
    print("| --- | ---: | ---: |")
    for name, runs, at in (
        ("to the first prompt", rows, 0),
        ("from Enter to the first word", rows, 2),
        (f"to the prompt with {MESSAGES} messages", long, 0),
        (f"from Enter to the first word with {MESSAGES} messages", long, 2),
    ):
        cpu, wall = (min(run[at + place] for run in runs) * 1000 for place in (0, 1))
        print(f"| {name} | {cpu:.0f} | {wall:.0f} |")


def _start(home: Path, *arguments: str) -> tuple[float, float, float, float]:
    """CPU and wall time to the prompt, and from Enter to the first word of an answer."""
    environment = {
        "HOME": str(home),
        "METIS_HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONPYCACHEPREFIX": str(home / "compiled"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    command = [sys.executable, "-m", "metis", "-m", "sim:sonnet", *arguments]
    began_s = time.perf_counter()
    with Terminal(command, environment=environment, folder=home) as chat:
        chat.wait_for("›")  # noqa: RUF001 - the mark of the prompt
        prompt = _cpu_s(chat.pid), time.perf_counter() - began_s
        chat.wait_for("session")
        chat.rest(1.0)
        before, began_s = _cpu_s(chat.pid), time.perf_counter()
        word = new_ulid()
        chat.send(f"say {word}")
        chat.wait_for(f"\n{word}")
        return *prompt, _cpu_s(chat.pid) - before, time.perf_counter() - began_s


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
    main()
