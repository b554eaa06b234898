"""Sessions of other programs: how fast they are indexed and imported, and in how much memory.

    python benchmarks/session_files.py [--megabytes 200]

Indexing must reach 50 MB/s per core; an import must not hold a file twice.
"""

import argparse
import asyncio
import json
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from metis.interchange.claude_code import ClaudeCode
from metis.interchange.session_import import import_session
from metis.interchange.session_index import SessionIndex
from metis.interchange.source import Source
from metis.store import open as open_store

MEGABYTE = 1_000_000
FILE_BYTES = MEGABYTE
REQUIRED_MB_PER_S = 50
START = datetime(2026, 5, 8)  # noqa: DTZ001 - written with a Z


def turn(number: int, session: str) -> list[dict[str, Any]]:
    """Return the records of one turn: a call, its result of 6 kB, and an answer."""
    base = {"cwd": "/work/owls", "sessionId": session, "version": "2.1.0", "isSidechain": False}

    def record(step: int, kind: str, content: Any, **message: Any) -> dict[str, Any]:
        uuid, parent = f"u{number * 4 + step}", f"u{number * 4 + step - 1}"
        moment = START + timedelta(seconds=number * 4 + step)
        fields = {"parentUuid": parent, "uuid": uuid, "timestamp": f"{moment.isoformat()}.000Z"}
        return (
            base | fields | {"type": kind, "message": {"role": kind, "content": content} | message}
        )

    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": "ls"}}
    output = f"line {number} of an output\n" * 250
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": output}
    answer = {"model": "claude-sonnet-4-5", "usage": {"input_tokens": 10, "output_tokens": 5}}
    return [
        record(0, "user", f"question {number}"),
        record(1, "assistant", [call], id=f"msg_{number}a", **answer),
        record(2, "user", [result]),
        record(3, "assistant", [{"type": "text", "text": "done"}], id=f"msg_{number}b", **answer),
    ]


def write_session(path: Path, size: int) -> None:
    """Write a session of about this many bytes."""
    written = number = 0
    with path.open("w") as file:
        while written < size:
            for record in turn(number, path.stem):
                written += file.write(json.dumps(record, separators=(",", ":")) + "\n")
            number += 1


def peak_mb() -> float:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def import_file(path: Path, store_path: Path) -> None:
    """Import one file into a store."""
    async with open_store(f"sqlite:///{store_path}") as store:
        for session in ClaudeCode().read(Source(path)):
            await import_session(store, session)


def measure_import(path: Path, store_path: Path) -> tuple[float, float]:
    """Return the seconds of the processor, and by how many megabytes the process grew."""
    before, start = peak_mb(), time.process_time()
    asyncio.run(import_file(path, store_path))
    return time.process_time() - start, peak_mb() - before


def measure_index(home: Path, total: int) -> None:
    """Index all files, twice."""
    before, start = peak_mb(), time.process_time()
    index = SessionIndex(home / "index.json")
    index.update(home, {})
    speed = total / MEGABYTE / (time.process_time() - start)
    print(f"index, first time      {speed:8.0f} MB/s  (required: {REQUIRED_MB_PER_S})")
    print(f"index, memory          {peak_mb() - before:8.1f} MB more")
    start = time.process_time()
    SessionIndex(home / "index.json").update(home, {})
    print(f"index, nothing changed {(time.process_time() - start) * 1000:8.1f} ms")


def main() -> None:
    """Write files, index and import them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    total = parser.parse_args().megabytes * MEGABYTE
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        folder = home / ".claude" / "projects" / "-work-owls"
        folder.mkdir(parents=True)
        for number in range(total // FILE_BYTES):
            write_session(folder / f"{number:08}.jsonl", FILE_BYTES)
        measure_index(home, total)
        large = home / "large.jsonl"
        size = min(total // 2, 100 * MEGABYTE)
        write_session(large, size)
        for case in ("import, first time", "import, nothing new"):
            # A process of its own: its peak is that of this import.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                seconds, growth = pool.submit(measure_import, large, home / "metis.db").result()
            print(f"{case:22} {size / MEGABYTE / seconds:8.1f} MB/s")
            print(f"  memory               {growth * MEGABYTE / size:8.2f} times the file")


if __name__ == "__main__":
    main()
