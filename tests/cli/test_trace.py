"""`metis trace`."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from build import assistant, call, provenance, tool, tool_id
from build import user as user_message
from metis import store
from metis.canonical import (
    new_ulid,
)
from metis.cli.main import cli
from metis.cli.text import cell_width
from metis.cli.trace import Step
from metis.store.entries import SwapEntry

SONNET, MINI = "anthropic:claude-sonnet-4-6", "openai:gpt-5-mini"
MAY, JUNE = datetime(2026, 5, 9, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def test_trace_lists_every_step_in_order() -> None:
    Path("a.txt").write_text("hoot")
    run("-m", "sim", "read a.txt")
    session = run("sessions").stdout.split()[0]
    run("-s", session, "-m", "sim:gpt-5", "sim: 400")
    shown = run("trace", session[-10:])
    assert shown.exit_code == 0
    for what in ("system", "user", "route", "answer", "call", "result", "swap", "failed"):
        assert what in shown.stdout, what
    assert "anthropic:sim-small → openai:gpt-5" in shown.stdout
    assert max(map(cell_width, shown.stdout.splitlines())) <= 80
    lines = [json.loads(line) for line in run("trace", session, "--json").stdout.splitlines()]
    assert sorted(line["at"] for line in lines) == [line["at"] for line in lines]
    assert run("trace", "sess_none").exit_code == 2
    # Without a session argument the last changed one is used, as in `metis show`.
    assert run("trace").stdout == run("trace", session).stdout
    assert run("export").stdout == run("export", session).stdout


@pytest.mark.parametrize("width", [19, 59, 120])
@pytest.mark.parametrize("latency_ms", [7, 812, 123_456, 9_876_543_210])
@pytest.mark.parametrize("cost", ["$0", "$0.000000123456", "$123456.78"])
def test_trace_line_fits_for_any_latency_and_cost(width: int, latency_ms: int, cost: str) -> None:
    facts = ("end_turn", "123456789 in", "123456 out", cost, f"{latency_ms} ms")
    for detail in ("", "ok", "漢字 " * 50):
        step = Step(at=MAY, what="answer", detail=detail, facts=facts)
        assert cell_width("".join(step.text(width))) <= width


def test_swaps_and_imported_calls_are_listed() -> None:
    async def fill() -> None:
        async with store.open() as opened:
            await opened.create_session("sess_42")
            now = datetime.now(UTC)
            entry = SwapEntry(id=new_ulid(), session_id="sess_42", created_at=now, to_model=MINI)
            for message in (
                user_message("look"),
                assistant(call("grep", tool_id(7), pattern="x"), metadata=provenance()),
                tool("nothing", answers=tool_id(7)),
            ):
                await opened.append(replace(message, id=new_ulid(), session_id="sess_42"))
            await opened.record(entry)

    asyncio.run(fill())
    shown = run("trace", "sess_42").stdout
    assert 'grep(pattern="x")' in shown
    assert f"model changed to {MINI}" in shown
