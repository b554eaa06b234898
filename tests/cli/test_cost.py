"""`metis cost`."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

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
    """Sessions of one question and some answers each; gives their ids."""

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
            # What is paid in the copy itself counts.
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
