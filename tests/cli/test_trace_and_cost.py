"""The commands that look: models, cost, trace, doctor; and those that set up."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import metis
from build import assistant, call, provenance, tool, tool_id
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
from metis.cli.trace import Step
from metis.store.entries import SwapEntry

SONNET, MINI = "anthropic:claude-sonnet-4-6", "openai:gpt-5-mini"


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


MAY, JUNE = datetime(2026, 5, 9, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


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


def test_costs_are_compared_with_another_table() -> None:
    store_sessions([(SONNET, usage(1000, "0.018"), MAY)])
    shown = run("cost", "--reprice", "newest")
    assert "instead of $0.0180 (+0%)" in shown.stdout
    unknown = run("cost", "--reprice", "1999-01-01")
    assert unknown.exit_code == 2
    assert "no price table has version '1999-01-01'" in unknown.stderr


def test_a_trace_tells_everything_in_order() -> None:
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


@pytest.mark.parametrize("width", [19, 59, 120])
@pytest.mark.parametrize("latency_ms", [7, 812, 123_456, 9_876_543_210])
@pytest.mark.parametrize("cost", ["$0", "$0.000000123456", "$123456.78"])
def test_a_step_fits_for_any_latency_and_cost(width: int, latency_ms: int, cost: str) -> None:
    facts = ("end_turn", "123456789 in", "123456 out", cost, f"{latency_ms} ms")
    for detail in ("", "ok", "漢字 " * 50):
        step = Step(at=MAY, what="answer", detail=detail, facts=facts)
        assert cell_width("".join(step.text(width))) <= width


def test_swaps_and_calls_of_other_programs_are_told_too() -> None:
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


def test_models_are_listed_filtered_and_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("models")
    assert shown.exit_code == 0
    assert "claude-haiku-4-5   haiku" in shown.stdout
    assert "no key: set ANTHROPIC_API_KEY" in shown.stdout
    assert "●" not in shown.stdout
    assert max(map(cell_width, shown.stdout.splitlines())) <= 80
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    mine = run("models", "--configured", "haiku")
    assert "key from $ANTHROPIC_API_KEY" in mine.stdout
    assert "●" in mine.stdout
    assert "sk-secret" not in mine.output
    report = json.loads(run("models", "--json", "--can", "video").stdout)
    assert report
    assert all("video" in model["can"] for model in report)
    assert run("models", "nothing-like-this").exit_code == 1


def test_the_doctor_says_what_is_missing_and_never_a_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = run("doctor")
    assert well.exit_code == 0
    assert "No problems found." in well.stdout
    assert "OPENAI_API_KEY" in well.stdout
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (home / "keys.toml").write_text('[keys]\ngroq = "gsk-secret"\n')
    (home / "keys.toml").chmod(0o600)
    run("say hi")
    keyed = run("doctor")
    assert "openai: from $OPENAI_API_KEY" in keyed.stdout
    assert "groq: from" in keyed.stdout
    assert "secret" not in keyed.output
    assert max(map(cell_width, keyed.stdout.splitlines())) <= 80


@pytest.mark.parametrize("fault", ["rules", "settings", "keys", "store"])
def test_the_doctor_finds_what_is_broken(home: Path, fault: str) -> None:
    match fault:
        case "rules":
            Path(".metis").mkdir()
            Path(".metis/routing.toml").write_text(
                'schema_version = 1\nglobal_defualt = "sonnet"\n'
            )
        case "settings":
            (home / "config.toml").write_text("model = 7\n")
        case "keys":
            (home / "keys.toml").write_text('[keys]\nopenai = "sk-secret"\n')
            (home / "keys.toml").chmod(0o644)
        case _:
            (home / "metis.db").write_bytes(b"no database at all, only words" * 100)
    done = run("doctor")
    assert done.exit_code == 1
    assert "✗" in done.stdout
    assert "1 problem found." in done.stdout
    assert "secret" not in done.output


def test_settings_are_shown_with_their_origin_and_changed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("config", "set", "model", "haiku").exit_code == 0
    assert run("config", "set", "budget.day_usd", "2.5").exit_code == 0
    assert run("config", "set", "fallbacks.haiku", "gpt-5, gpt-5-mini").exit_code == 0
    assert run("config", "set", "tools", "FALSE").exit_code == 0
    shown = run("config").stdout
    assert f'model = "haiku"   # file: {home}/config.toml:1' in shown
    assert "budget.day_usd = 2.5   # file" in shown
    assert 'fallbacks.haiku = ["gpt-5", "gpt-5-mini"]' in shown
    assert "tools = false" in shown
    assert run("config", "get", "model").stdout == "haiku\n"
    assert run("config", "get", "system").exit_code == 1
    monkeypatch.setenv("METIS_MODEL", "opus")
    assert "environment: $METIS_MODEL" in run("config", "show").stdout
    assert "takes precedence" in run("config", "set", "model", "sonnet").stderr
    assert run("config", "unset", "model").exit_code == 0
    assert run("config", "unset", "model").exit_code == 1
    assert str(home / "keys.toml") in run("config", "path").stdout


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("modle", "x", "did you mean model?"),
        ("model", "gtp-5", "did you mean gpt-5"),
        ("tools", "perhaps", "invalid TOML"),
        ("budget.day_usd", "-1", "-1 is not a valid limit"),
        ("max_output_tokens", "1.5", "expected a whole number"),
        ("base_urls.nobody", "http://x", "unknown provider 'nobody'"),
    ],
)
def test_a_value_that_cannot_be_is_not_written(
    home: Path, name: str, value: str, expected: str
) -> None:
    before = (home / "config.toml").read_text()
    done = run("config", "set", name, value)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert (home / "config.toml").read_text() == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert "_METIS_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("metis mod", "models"),
        ("metis -m hai", "haiku"),
        ("metis ask --model son", "sonnet"),
        ("metis config s", "set"),
    ],
)
def test_what_is_typed_is_completed(typed: str, expected: str) -> None:
    environment = {
        "_METIS_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    done = CliRunner().invoke(cli, [], env=environment, prog_name="metis")
    assert f"plain,{expected}" in done.stdout.splitlines()


def test_sessions_are_completed(home: Path) -> None:
    run("say hi")
    session = run("sessions").stdout.split()[0]
    environment = {
        "_METIS_COMPLETE": "bash_complete",
        "COMP_WORDS": f"metis trace {session[:6]}",
        "COMP_CWORD": "2",
    }
    done = CliRunner().invoke(cli, [], env=environment, prog_name="metis")
    assert f"plain,{session}" in done.stdout


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["models"], ["config"]])
def test_commands_load_only_what_they_need(arguments: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = ('aiohttp', 'prompt_toolkit', 'rich')\n"
        "atexit.register(lambda: print([n for n in heavy if n in sys.modules], file=sys.stderr))\n"
        f"from metis.cli.main import cli\ncli.main({arguments!r})\n"
    )
    source = Path(metis.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_a_reader_that_has_enough_is_no_failure() -> None:
    shown = f"{sys.executable} -m metis models --all | head -1"
    done = subprocess.run(shown, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - a pipe is what is tried
    assert done.stdout.startswith("anthropic")
    assert done.stderr == ""


def test_a_conversation_begins_before_the_http_client_is_loaded() -> None:
    code = (
        "import sys, metis.cli.chat, metis.cli.startup, metis.session.library\n"
        "from metis.transport import Transport\n"
        "print('aiohttp' in sys.modules)\n"
    )
    source = Path(metis.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "False\n"
