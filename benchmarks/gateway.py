"""The gateway against a raw pass: requests a second, processor time, latency and memory.

The C upstream, the request bodies, the load script and the raw ASGI pass are those of
`../shared/bench`; it needs wrk and gcc, and nginx for the added latency. Each round runs every
contestant once, so that a busy machine slows all of them. Requests a second are the median of the
rounds. Processor time of the process (user and system) is the fairest ratio on a machine that is
not idle: other programs can only add to it by emptying caches, so that its least value counts.

Exchanges become messages when there is time, so that the table has two processor times: while the
load ran (`answering`), and with what was done after it (`whole`). `--only` names the contestants of
a short run, `--workers` compares two worker processes with one, `--litellm PROGRAM` adds the proxy
of LiteLLM to every round, and `--soak` prints the memory of the gateway at 256 connections.

Run: `python benchmarks/gateway.py [--rounds 5] [--seconds 2] [--connections 32] [--only CASES]
[--workers] [--litellm PROGRAM] [--soak MINUTES]`
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
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
UPSTREAM_PORT, SLOW_PORT = 18380, 18388
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


WORKER_CASES = (
    Case("pass, one worker", "none", CHAT, "req_openai_small.json", BEARER),
    Case(
        "pass, two workers", "two", CHAT, "req_openai_small.json", BEARER, 1.7, "pass, one worker"
    ),
)
LITELLM_KEY = "sk-bench-only-7f3a9c21d4e8b605"
LITELLM_CASES = (
    Case(
        "LiteLLM, pass",
        "litellm",
        CHAT,
        "req_openai_small.json",
        (f"authorization: Bearer {LITELLM_KEY}",),
    ),
    Case(
        "LiteLLM, Messages to Chat",
        "litellm",
        MESSAGES,
        "req_anthropic_small.json",
        (f"x-api-key: {LITELLM_KEY}", VERSIONED[1]),
    ),
)
TIMES_LITELLM = (
    ("pass, store", "LiteLLM, pass"),
    ("Messages to Chat, store", "LiteLLM, Messages to Chat"),
)
LITELLM = """model_list:
  - model_name: gpt-4o
    litellm_params: {{model: openai/gpt-4o, api_base: "{url}/v1", api_key: sk-x}}
litellm_settings:
  telemetry: false
  use_chat_completions_url_for_anthropic_messages: true
general_settings:
  master_key: {key}
  disable_spend_logs: true
"""


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


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def processor_s(pid: int) -> float:
    """Return the processor time of a process and its children so far."""
    used = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the memory that a process and its children use."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid))
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


def start(work: Path, data: Path, options: argparse.Namespace) -> dict[str, Contestant]:
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
    if options.workers:
        command = [*metis, "--port", "18385", "--store", "none", "--workers", "2"]
        commands["two"] = (18385, command)
    if options.litellm:
        (work / "litellm.yaml").write_text(LITELLM.format(url=url, key=LITELLM_KEY))
        command = [options.litellm, "--config", str(work / "litellm.yaml")]
        commands["litellm"] = (18386, [*command, "--host", "127.0.0.1", "--port", "18386"])
        environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    slow = {**environment, "OPENAI_BASE_URL": f"http://127.0.0.1:{SLOW_PORT}/v1"}
    commands["slow"] = (18387, [*metis, "--port", "18387", "--store", "none"])
    if shutil.which("nginx"):
        (work / "nginx.conf").write_text(NGINX.format(work=work, upstream=UPSTREAM_PORT))
        commands["nginx"] = (18381, ["nginx", "-c", str(work / "nginx.conf")])
    log = (work / "log").open("wb")
    return {
        name: Contestant(
            port,
            subprocess.Popen(  # noqa: S603 - fixed arguments
                command, env=slow if name == "slow" else environment, stdout=log, stderr=log
            ),
        )
        for name, (port, command) in commands.items()
    }


def wait(port: int) -> None:
    """Wait until a server answers."""
    for _ in range(2400):  # LiteLLM takes minutes to start on a busy machine
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing answers on port {port}")


def cases_of(options: argparse.Namespace) -> tuple[Case, ...]:
    """Return the cases of a run."""
    more = WORKER_CASES if options.workers else ()
    cases = (*CASES, *more, *(LITELLM_CASES if options.litellm else ()))
    names = [name.strip() for name in options.only.split(";")] if options.only else []
    return tuple(case for case in cases if not names or case.name in names)


def settle(contestant: Contestant, *, has_store: bool) -> None:
    """Wait until a process has done what a load left to it."""
    url = f"http://127.0.0.1:{contestant.port}/metis/metrics"
    request = urllib.request.Request(url, headers={"x-api-key": KEY})
    for _ in range(240):
        before = processor_s(contestant.process.pid)
        time.sleep(0.25)
        if has_store:
            # A process that gets no processor looks idle; what is queued says it better.
            with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310 - loopback
                if json.load(reply)["queued"] == 0:
                    return
        elif processor_s(contestant.process.pid) - before <= IDLE_S:
            return


def measure(
    contestants: dict[str, Contestant], data: Path, options: argparse.Namespace
) -> dict[str, list[Row]]:
    """Return what each round measured, by case."""
    cases = cases_of(options)
    results: dict[str, list[Row]] = {case.name: [] for case in cases}
    for number in range(-1, options.rounds):
        for case in cases:
            port, process = contestants[case.contestant]
            seconds = 1 if number < 0 else options.seconds
            before = processor_s(process.pid)
            result = load(case, port, data, options.connections, seconds)
            answering = processor_s(process.pid) - before
            memory = memory_mb(process.pid)
            settle(contestants[case.contestant], has_store=case.contestant == "store")
            whole = processor_s(process.pid) - before
            count = result["requests"]
            if number >= 0 and count and answering:
                rate = count / (result["dur_us"] / 1e6)
                row = Row(rate, answering / count * 1e6, whole / count * 1e6, memory)
                results[case.name].append(row)
    return results


def report(results: dict[str, list[Row]]) -> bool:
    """Print the table; returns whether every required ratio holds."""
    print("| case | requests/s | ratio | answering µs | ratio | whole µs | ratio | MB | required |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    holds = True
    for name, rows in results.items():
        case = next(case for case in (*CASES, *WORKER_CASES, *LITELLM_CASES) if case.name == name)
        base = results.get(case.base if case.contestant != "raw" else case.name, rows)
        if not rows or not base:
            print(f"| {name} | no requests |")
            holds = False
            continue
        pairs = list(zip(rows, base, strict=False))
        median = statistics.median
        ratios = (
            median(row.rate / raw.rate for row, raw in pairs),
            min(raw.answering_us for raw in base) / min(row.answering_us for row in rows),
            min(raw.whole_us for raw in base) / min(row.whole_us for row in rows),
        )
        required = "" if case.required is None else f"{case.required:g}"
        # A busy machine slows the load and the upstream, too; the rate of one core follows from the
        # processor time of everything that a request takes.
        holds = holds and (case.required is None or ratios[2] >= case.required)
        cells = (
            case.name,
            f"{median(row.rate for row in rows):,.0f}",
            f"{ratios[0]:.2f}",
            f"{min(row.answering_us for row in rows):.0f}",
            f"{ratios[1]:.2f}",
            f"{min(row.whole_us for row in rows):.0f}",
            f"{ratios[2]:.2f}",
            f"{max(row.memory_mb for row in rows):.0f}",
        )
        print(f"| {' | '.join((*cells, required))} |")
    return holds


def report_litellm(results: dict[str, list[Row]]) -> None:
    """Print how many times as many requests as LiteLLM the gateway answers."""
    for ours, theirs in TIMES_LITELLM:
        pairs = list(zip(results.get(ours, ()), results.get(theirs, ()), strict=False))
        if pairs:
            times = statistics.median(a.rate / b.rate for a, b in pairs)
            used = min(b.whole_us for _, b in pairs) / min(a.whole_us for a, _ in pairs)
            text = f"{ours}: {times:.0f} times the requests of LiteLLM"
            print(f"{text}, with 1/{used:.0f} of its processor time")


class SlowUpstream(threading.Thread):
    """Sends the first chunk of a stream after a pause, and notes when."""

    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    chunk = (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":'
        b'[{"index":0,"delta":{"role":"assistant","content":"x"},"finish_reason":null}]}\n\n'
    )

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.sent_at = 0.0
        self._listener = socket.create_server(("127.0.0.1", SLOW_PORT))

    def run(self) -> None:
        """Answer one request of each connection."""
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                received = connection.recv(1 << 16)
                while b"\r\n\r\n" not in received:
                    received += connection.recv(1 << 16)
                time.sleep(0.05)
                self.sent_at = time.perf_counter()
                size = f"{len(self.chunk):x}\r\n".encode()
                connection.sendall(self.head + size + self.chunk + b"\r\n")
                time.sleep(0.05)
                connection.sendall(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def report_first_chunk(port: int, rounds: int) -> None:
    """Print how long after the first chunk of a provider a client gets its first."""
    upstream = SlowUpstream()
    upstream.start()
    for path in (CHAT, MESSAGES):
        delays: list[float] = []
        for _ in range(rounds):
            body = b'{"model":"gpt-4o","stream":true,"max_tokens":9,"messages":'
            body += b'[{"role":"user","content":"hi"}]}'
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
            head += f"content-type: application/json\r\nauthorization: Bearer {KEY}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(head.encode() + body)
                received, part = b"", b""
                while b"data:" not in received:
                    part = client.recv(1 << 16)
                    if not part:
                        raise SystemExit(f"no stream: {received[:200]!r}")
                    received += part
                delays.append((time.perf_counter() - upstream.sent_at) * 1000)
                while b"[DONE]" not in received and b"message_stop" not in received and part:
                    received += (part := client.recv(1 << 16))
        print(f"first chunk out after first chunk in, {path}: {statistics.median(delays):.2f} ms")


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
    cases = [case for case in CASES if case.contestant == "store"]
    port, process = contestants["store"]
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        for case in cases:
            seconds = min(20.0, max(1.0, end - time.monotonic()))
            count = load(case, port, data, 256, seconds)["requests"]
            print(f"{case.name}: {count} requests, {memory_mb(process.pid):.0f} MB", flush=True)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument(
        "--only", default="", metavar="CASES", help="names, separated by semicolons"
    )
    parser.add_argument("--workers", action="store_true")
    parser.add_argument("--litellm", metavar="PROGRAM")
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
        contestants = start(work, data, options)
        try:
            for name in contestants.keys() - {"upstream", "nginx"}:
                wait(contestants[name].port)
            results = measure(contestants, data, options)
            holds = report(results)
            report_litellm(results)
            report_latency(contestants, data, options.seconds)
            report_first_chunk(contestants["slow"].port, 20)
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
