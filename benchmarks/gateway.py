"""The gateway against a raw pass: requests a second, processor time, latency and memory.

The C upstream, the request bodies, the load script and the raw ASGI pass are those of
`../shared/bench`; it needs wrk and gcc, and nginx for the added latency. Each round runs every
contestant once, so that a busy machine slows all of them; what counts is the median of the ratios
to the raw pass. Processor time of the process is the fairest ratio on a machine that is not idle.

Run: `python benchmarks/gateway.py [--rounds 5] [--seconds 2] [--connections 32] [--soak MINUTES]`
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "bench"
PYTHON = Path(sys.executable)
KEY = "secret-of-the-benchmark"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BEARER = (f"authorization: Bearer {KEY}",)
VERSIONED = (f"x-api-key: {KEY}", "anthropic-version: 2023-06-01")
UPSTREAM_PORT = 18380
IDLE_S = 0.02
"""A process that uses less in a quarter of a second has nothing left to do."""
NGINX = """
daemon off; worker_processes 1; pid {work}/nginx.pid; error_log {work}/nginx.err;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {work}/n1; proxy_temp_path {work}/n2;
 fastcgi_temp_path {work}/n3; uwsgi_temp_path {work}/n4; scgi_temp_path {work}/n5;
 client_body_buffer_size 1m; keepalive_requests 1000000;
 upstream u {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 1000000; }}
 server {{ listen 127.0.0.1:18381; location / {{ proxy_pass http://u; proxy_http_version 1.1;
 proxy_set_header Connection ""; proxy_buffering off; }} }} }}
"""


class Case(NamedTuple):
    """One load on one contestant."""

    name: str
    contestant: str
    path: str
    body: str
    headers: tuple[str, ...] = ()
    required: float | None = None
    """The least ratio of its requests to those of the raw pass with the same kind of body."""
    base: str = "raw pass"


CASES = (
    Case("raw pass", "raw", CHAT, "req_openai_small.json"),
    Case("pass, no store", "none", CHAT, "req_openai_small.json", BEARER, 0.7),
    Case("pass, store", "store", CHAT, "req_openai_small.json", BEARER, 0.4),
    Case("Messages to Chat, no store", "none", MESSAGES, "req_anthropic_small.json", VERSIONED),
    Case("Messages to Chat, store", "store", MESSAGES, "req_anthropic_small.json", VERSIONED, 0.25),
    Case("raw stream", "raw", CHAT, "req_openai_small_stream.json"),
    Case(
        "stream pass, no store",
        "none",
        CHAT,
        "req_openai_small_stream.json",
        BEARER,
        None,
        "raw stream",
    ),
    Case(
        "stream Messages to Chat, store",
        "store",
        MESSAGES,
        "req_anthropic_small_stream.json",
        VERSIONED,
        0.25,
        "raw stream",
    ),
)


class Row(NamedTuple):
    """What one load measured."""

    rate: float
    """Requests a second."""
    answering_us: float
    """Processor time of a request while the load ran."""
    whole_us: float
    """The same with what was done after the load, such as turning exchanges into messages."""
    memory_mb: float


class Contestant(NamedTuple):
    """A running server."""

    port: int
    process: "subprocess.Popen[bytes]"


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the memory that a process uses."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def load(case: Case, port: int, data: Path, connections: int, seconds: float) -> dict[str, Any]:
    """Run wrk, and return what it measured."""
    environment = {"PATH": os.environ["PATH"], "BODY": str(data / case.body)}
    if case.contestant != "raw":
        environment["MODEL"] = "gpt-4o"
    environment |= {f"H{number}": header for number, header in enumerate(case.headers, 1)}
    script = str(SHARED / "gw" / "post.lua")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [*command, "-s", script, f"http://127.0.0.1:{port}{case.path}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("JSON "))
    return json.loads(line[5:])


def start(work: Path, data: Path) -> dict[str, Contestant]:
    """Start the upstream and all contestants."""
    url = f"http://127.0.0.1:{UPSTREAM_PORT}"
    environment = {
        **os.environ,
        "UPSTREAM": url,
        "OPENAI_API_KEY": "upstream",
        "OPENAI_BASE_URL": f"{url}/v1",
        "METIS_HOME": str(work / "home"),
    }
    metis = [str(PYTHON), "-m", "metis", "serve", "--key", f"bench={KEY}"]
    raw = [str(PYTHON), "-m", "uvicorn", "pass_asgi:app", "--app-dir", str(SHARED / "gw")]
    raw += ["--no-access-log", "--log-level", "warning", "--loop", "uvloop", "--http", "httptools"]
    commands = {
        "upstream": (UPSTREAM_PORT, [str(work / "mock"), str(UPSTREAM_PORT), str(data)]),
        "raw": (18382, [*raw, "--port", "18382"]),
        "none": (18383, [*metis, "--port", "18383", "--store", "none"]),
        "store": (18384, [*metis, "--port", "18384", "--store", f"sqlite:///{work}/bench.db"]),
    }
    if shutil.which("nginx"):
        (work / "nginx.conf").write_text(NGINX.format(work=work, upstream=UPSTREAM_PORT))
        commands["nginx"] = (18381, ["nginx", "-c", str(work / "nginx.conf")])
    log = (work / "log").open("wb")
    return {
        name: Contestant(
            port,
            subprocess.Popen(  # noqa: S603 - fixed arguments
                command, env=environment, stdout=log, stderr=log
            ),
        )
        for name, (port, command) in commands.items()
    }


def wait(port: int) -> None:
    """Wait until a server answers."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing answers on port {port}")


def settle(pid: int) -> None:
    """Wait until a process has done what a load left to it."""
    for _ in range(240):
        before = processor_s(pid)
        time.sleep(0.25)
        if processor_s(pid) - before <= IDLE_S:
            return


def measure(
    contestants: dict[str, Contestant], data: Path, options: argparse.Namespace
) -> dict[str, list[Row]]:
    """Return what each round measured, by case."""
    results: dict[str, list[Row]] = {case.name: [] for case in CASES}
    for number in range(-1, options.rounds):
        for case in CASES:
            port, process = contestants[case.contestant]
            seconds = 1 if number < 0 else options.seconds
            before = processor_s(process.pid)
            result = load(case, port, data, options.connections, seconds)
            answering = processor_s(process.pid) - before
            memory = memory_mb(process.pid)
            settle(process.pid)
            whole = processor_s(process.pid) - before
            count = result["requests"]
            if number >= 0 and count:
                rate = count / (result["dur_us"] / 1e6)
                row = Row(rate, answering / count * 1e6, whole / count * 1e6, memory)
                results[case.name].append(row)
    return results


def report(results: dict[str, list[Row]]) -> bool:
    """Print the table; returns whether every required ratio holds."""
    print("| case | requests/s | ratio | answering µs | ratio | whole µs | ratio | MB | required |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    holds = True
    for case in CASES:
        rows = results[case.name]
        base = results[case.base if case.contestant != "raw" else case.name]
        pairs = list(zip(rows, base, strict=False))
        median = statistics.median
        ratios = (
            median(row.rate / raw.rate for row, raw in pairs),
            median(raw.answering_us / row.answering_us for row, raw in pairs),
            median(raw.whole_us / row.whole_us for row, raw in pairs),
        )
        required = "" if case.required is None else f"{case.required:g}"
        # A busy machine slows the load and the upstream, too; processor time it does not change.
        holds = holds and (case.required is None or max(ratios[:2]) >= case.required)
        cells = (
            case.name,
            f"{median(row.rate for row in rows):,.0f}",
            f"{ratios[0]:.2f}",
            f"{median(row.answering_us for row in rows):.0f}",
            f"{ratios[1]:.2f}",
            f"{median(row.whole_us for row in rows):.0f}",
            f"{ratios[2]:.2f}",
            f"{max(row.memory_mb for row in rows):.0f}",
        )
        print(f"| {' | '.join((*cells, required))} |")
    return holds


def report_latency(contestants: dict[str, Contestant], data: Path, seconds: float) -> None:
    """Print what one request takes longer than at the upstream itself."""
    bare = Case("", "raw", CHAT, "req_openai_small.json")
    direct = load(bare, UPSTREAM_PORT, data, 1, seconds)["p50"]
    for name in ("nginx", "raw", "none"):
        if name in contestants:
            case = bare._replace(contestant=name, headers=BEARER if name == "none" else ())
            case = case._replace(contestant="raw" if name == "nginx" else name)
            median = load(case, contestants[name].port, data, 1, seconds)["p50"]
            print(f"added median latency, {name}: {median - direct} µs")


def soak(contestants: dict[str, Contestant], data: Path, minutes: float) -> None:
    """Print the memory of the gateway under load at 256 connections, once a minute."""
    case = next(case for case in CASES if case.name == "Messages to Chat, store")
    port, process = contestants["store"]
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        load(case, port, data, 256, min(60.0, max(1.0, end - time.monotonic())))
        print(f"memory: {memory_mb(process.pid):.0f} MB", flush=True)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES")
    options = parser.parse_args()
    if not SHARED.exists() or not shutil.which("wrk") or not shutil.which("gcc"):
        print("needs ../shared/bench, wrk and gcc")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        work, data = Path(directory), Path(directory) / "data"
        generate = [str(PYTHON), str(SHARED / "gw" / "gen.py"), str(data)]
        compile_mock = ["gcc", "-O2", "-w", "-o", str(work / "mock"), str(SHARED / "gw" / "mock.c")]
        for command in (generate, compile_mock):
            subprocess.run(command, check=True)  # noqa: S603 - fixed arguments
        contestants = start(work, data)
        try:
            for name in ("raw", "none", "store"):
                wait(contestants[name].port)
            holds = report(measure(contestants, data, options))
            report_latency(contestants, data, options.seconds)
            print(f"memory: {memory_mb(contestants['none'].process.pid):.0f} MB without a store")
            soak(contestants, data, options.soak)
        finally:
            for contestant in contestants.values():
                contestant.process.terminate()
            for contestant in contestants.values():
                contestant.process.wait()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
