"""`metis cost`."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from build import assistant, provenance
from build import user as user_message
from metis import store
from metis.canonical import (
    MessageMetadata,
    RoutingDecisionRecord,
    RoutingMode,
    Usage,
    new_ulid,
)
from metis.cli.main import cli
from metis.cli.text import cell_width
from metis.session.conversation import USAGE_KIND
from metis.store.entries import SidecarEntry

SONNET, MINI = "anthropic:claude-sonnet-4-6", "openai:gpt-5-mini"
MAY, JUNE = datetime(2026, 5, 9, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def usage(tokens: int, cost: str, version: str = "2026-05-08") -> Usage:
    return Usage(
        input_tokens=tokens,
        output_tokens=tokens,
        latency_ms=7,
        cost_usd=Decimal(cost),
        pricing_version=version,
    )


def metadata_of(model: str, used: Usage) -> MessageMetadata:
    routing = RoutingDecisionRecord(chosen_model=model, mode=RoutingMode.DEFAULT, reason="default")
    provider = model.partition(":")[0]
    return provenance(usage=used, model=model, provider=provider, routing=routing)


def store_sessions(*sessions: Sequence[tuple[str, Usage, datetime]]) -> list[str]:
    """Store sessions of one prompt and some responses each; return their ids."""

    async def fill() -> list[str]:
        ids: list[str] = []
        async with store.open() as opened:
            for answers in sessions:
                record = await opened.create_session(workspace_path="/work")
                ids.append(record.id)
                for model, used, at in answers:
                    question = replace(user_message("why?"), id=new_ulid(), session_id=record.id)
                    answer = replace(
                        assistant("because", metadata=metadata_of(model, used)),
                        id=new_ulid(),
                        session_id=record.id,
                        created_at=at,
                    )
                    await opened.append_all([replace(question, created_at=at), answer])
        return ids

    return asyncio.run(fill())


def test_cost_by_day_model_and_session() -> None:
    first, second = store_sessions(
        [(SONNET, usage(1000, "0.018"), MAY), (MINI, usage(1000, "0.00225"), JUNE)],
        [(MINI, usage(2000, "0.0045"), JUNE), ("anthropic:odd", usage(5, "0", "unpriced"), JUNE)],
    )
    shown = run("cost")
    assert shown.exit_code == 0
    assert "2026-05-09      1  1k   1k   $0.0180  ██" in shown.stdout
    assert "$0.0248 for 4 calls" in shown.stdout
    assert "not in the total: anthropic:odd" in shown.stdout
    assert max(map(cell_width, shown.stdout.splitlines())) <= 80
    report = json.loads(run("cost", "--by", "model", "--json").stdout)
    assert report["groups"][MINI]["call_count"] == 2
    assert report["total"]["cost_usd"] == "0.02475"
    by_session = run("cost", "--by", "session").stdout
    assert first in by_session
    assert second in by_session
    assert "No model calls in the last 1 day." in run("cost", "--days", "1").stdout


def test_calls_that_a_fork_copied_are_counted_once() -> None:
    (session_id,) = store_sessions([(SONNET, usage(1000, "0.018"), MAY)])
    used = {"model": MINI, "usage": msgspec.to_builtins(usage(5, "0.001"))}

    async def fork_twice() -> str:
        async with store.open() as opened:
            await append_usage(opened, session_id)
            first = await opened.fork(session_id)
            second = await opened.fork(first.id)
            # Calls made in the fork itself count.
            await append_usage(opened, second.id)
            return second.id

    async def append_usage(opened: store.Store, target: str) -> None:
        entry = SidecarEntry(
            id=new_ulid(),
            session_id=target,
            created_at=datetime.now(UTC),
            kind=USAGE_KIND,
            data=used,
        )
        await opened.append_entries([entry])

    last = asyncio.run(fork_twice())
    report = json.loads(run("cost", "--by", "session", "--json").stdout)
    counts = {name: line["call_count"] for name, line in report["groups"].items()}
    assert counts == {session_id: 2, last: 1}
    assert report["total"]["cost_usd"] == "0.020"


def test_costs_are_compared_with_another_table() -> None:
    store_sessions([(SONNET, usage(1000, "0.018"), MAY)])
    shown = run("cost", "--reprice", "newest")
    assert "instead of $0.0180 (+0%)" in shown.stdout
    unknown = run("cost", "--reprice", "1999-01-01")
    assert unknown.exit_code == 2
    assert "no price table has version '1999-01-01'" in unknown.stderr


GENERATION = Path(__file__).parent.parent / "transport" / "exchanges" / "openrouter_generation.json"


@pytest.fixture
def openrouter(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the host of a recorded look-up as the configured one, and the requested paths."""
    exchange = json.loads(GENERATION.read_text())
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            is_recorded = self.path == exchange["request"]["path"]
            missing = {"error": {"message": "no such key", "code": 401}}
            body = json.dumps(exchange["response"] if is_recorded else missing).encode()
            self.send_response(200 if is_recorded else 401)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - its name

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-or-1")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    assert run("config", "set", "base_urls.openrouter", address).exit_code == 0
    yield paths
    server.shutdown()
    server.server_close()
    thread.join()


def with_response_id(session_id: str, response_id: str) -> None:
    """Add a response of OpenRouter with an id to a session."""
    used = metadata_of("openrouter:sao10k/l3-stheno-8b", usage(9, "0.002"))
    answer = replace(
        assistant("so", metadata=replace(used, response_id=response_id)),
        id=new_ulid(),
        session_id=session_id,
    )

    async def append() -> None:
        async with store.open() as opened:
            await opened.append(answer)

    asyncio.run(append())


@pytest.mark.row("A-032")
def test_charged_cost_is_looked_up_and_compared(openrouter: list[str]) -> None:
    recorded = json.loads(GENERATION.read_text())["response"]["data"]["id"]
    (session_id,) = store_sessions([(SONNET, usage(1000, "0.018"), MAY)])
    with_response_id(session_id, recorded)
    shown = run("cost", "--look-up", session_id)
    assert shown.exit_code == 0, shown.output
    assert openrouter == [f"/api/v1/generation?id={recorded}"]
    assert f"{recorded}       $0.00200  $0.00150" in shown.stdout
    assert "$0.00150 charged for 1 call, $0.00200 by our prices" in shown.stdout
    charges = json.loads(run("cost", "--look-up", session_id, "--json").stdout)
    assert [each["reported_cost_usd"] for each in charges] == ["0.0015"]


def test_failed_look_up_names_call_and_reason(openrouter: list[str]) -> None:
    (session_id,) = store_sessions([])
    assert "such as openrouter" in run("cost", "--look-up", session_id).stdout
    with_response_id(session_id, "gen-unknown")
    shown = run("cost", "--look-up", session_id)
    assert shown.exit_code == 1
    assert "gen-unknown" in shown.stdout
    assert "no such key" in shown.stdout
    assert openrouter == ["/api/v1/generation?id=gen-unknown"]
