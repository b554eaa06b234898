"""Sessions with independent servers: llama.cpp with a tiny model, and aimock.

`make cassettes` fetches both into `build`; without them these tests are skipped.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import metis
from metis.canonical import (
    Role,
    SideEffects,
    StopReason,
    ToolDefinition,
    ToolResultBlock,
    validate_session,
)
from metis.canonical.errors import RateLimitError, TurnLimitError
from metis.session import Metis, Options, Session, Stored, TurnEnded, text_of
from metis.tools import Registry, ToolContext, ToolOutput
from metis.tools.tool import text_output
from metis.transport import Retry
from metis.wire.call import AdapterOptions, ToolChoice
from session.helpers import events_of

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "build/cassettes"
AIMOCK = ROOT / "build/cassettes-node/node_modules/@copilotkit/aimock/dist/cli.js"
FIXTURES = ROOT / "tests/cassettes/aimock.json"
PATIENCE_S = 60
FIVE = (
    "anthropic:claude-sonnet-4-6",
    "openai:gpt-5",
    "openai-responses:gpt-5",
    "gemini:gemini-2.5-flash",
    "ollama:llama3.2",
)
TINY = ("openai-responses:tiny", "openai-compatible:tiny", "anthropic:tiny")
MUST_CALL = {"logit_bias": {"5": 90, "4": 100}}
"""Tokens of the tiny model that open a call and stop; it calls only if forced to."""


class Weather:
    """A tool with a constant result."""

    definition = ToolDefinition(
        name="weather",
        description="The weather at a place.",
        input_schema={
            "type": "object",
            "properties": {"place": {"type": "string", "enum": ["Bergen", "Oslo"]}},
            "required": ["place"],
        },
        side_effects=SideEffects.READ,
        requires_workspace=False,
    )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        del context
        return text_output(f"rain in {arguments['place']}")

    def cancel(self) -> bool:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], port: int, env: Mapping[str, str]) -> Generator[str]:
    process = subprocess.Popen(  # noqa: S603 - our own commands
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **env}
    )
    try:
        end = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def aimock() -> Generator[str]:
    node = shutil.which("node")
    if node is None or not AIMOCK.exists():
        pytest.skip("aimock is not here: `make cassettes` fetches it")
    port = free_port()
    command = [node, str(AIMOCK), "--port", str(port), "--fixtures", str(FIXTURES), "--strict"]
    with running(command, port, {}) as url:
        yield url


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    if not (LLAMA / "xllamacpp").exists():
        pytest.skip("llama.cpp is not here: `make cassettes` fetches it")
    port, model = free_port(), tmp_path_factory.mktemp("llama") / "tiny.gguf"
    source = Path(metis.__file__).parents[1]
    env = {"PYTHONPATH": f"{LLAMA}{os.pathsep}{source}"}
    make = "import sys, pathlib, tiny_model; tiny_model.write(pathlib.Path(sys.argv[1]))"
    subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", make, str(model)],
        check=True,
        cwd=ROOT / "scripts",
        env={**os.environ, **env},
    )
    server = str(ROOT / "scripts/record_cassettes.py")
    with running([sys.executable, server, "serve", str(model), str(port)], port, env) as url:
        yield url


def options(url: str, models: tuple[str, ...], **fields: Any) -> Options:
    names = (model.partition(":")[0] for model in models)
    given: dict[str, Any] = {
        "base_urls": dict.fromkeys(names, url),
        "keys": {"anthropic": "none", "openai": "none", "gemini": "none"},
        "retry": Retry(attempts=1),
    }
    return Options(**given | fields)


@pytest.mark.parametrize("model", FIVE)
async def test_a_session_runs_its_tools_with_aimock(url: str, aimock: str, model: str) -> None:
    chosen = options(aimock, FIVE, tools=Registry(Weather))
    async with Metis(url, chosen) as m:
        session = await m.session(model=model)
        answer = await session.ask("Is it raining in Bergen?")
        assert answer is not None
        assert text_of(answer.content) == "Yes: take a coat with you."
        other = await m.session(model=model)
        await other.ask("Bergen and Oslo?")
        assert [each.role for each in other.messages] == [
            Role.USER,
            Role.ASSISTANT,
            Role.TOOL,
            Role.TOOL,
            Role.ASSISTANT,
        ]
        for each in (session, other):
            assert validate_session(await m.store.messages(each.id)) == []
        assert all(m.metadata.usage for m in session.messages if m.role is Role.ASSISTANT)
        assert await m.store.check() == []


async def test_session_switches_protocols_with_aimock(url: str, aimock: str) -> None:
    async with Metis(url, options(aimock, FIVE, tools=Registry(Weather))) as m:
        session = await m.session(model=FIVE[0], system="Be short.")
        await session.ask("Is it raining in Bergen?")
        for model in (*FIVE, *reversed(FIVE)):
            await session.swap(model)
            answer = await session.ask("What is 17 times 23?")
            assert answer is not None
            assert "391" in text_of(answer.content)
            greeted = await session.ask("Hello")
            assert greeted is not None
            assert text_of(greeted.content) == "Good morning 🦉, and a calm sea."
        stored = await m.store.messages(session.id)
        assert validate_session(stored) == []
        assert await m.store.check() == []


@pytest.mark.parametrize("model", FIVE)
async def test_limits_and_refusals_of_aimock_are_reported(
    url: str, aimock: str, model: str
) -> None:
    async with Metis(url, options(aimock, FIVE)) as m:
        session = await m.session(model=model)
        events = await events_of(session, "Say more than fits.")
        assert isinstance(events[-1], TurnEnded)
        # aimock sends stop reasons in three protocols only.
        sends_stop_reason = model in (
            "anthropic:claude-sonnet-4-6",
            "openai:gpt-5",
            "gemini:gemini-2.5-flash",
        )
        assert (events[-1].stop_reason is StopReason.MAX_TOKENS) == sends_stop_reason
        with pytest.raises(RateLimitError):
            await session.ask("Ask too often.")
        assert await session.ask("Hello") is not None


async def check_answers(session: Session, models: Sequence[str], words: str) -> None:
    """Prompt each model in turn; each answers and receives a longer history than the one before."""
    shown = 0
    for model in models:
        await session.swap(model)
        events = await events_of(session, words)
        stored = [each.message for each in events if isinstance(each, Stored)]
        assert stored
        assert stored[0].metadata.model == model
        usage = stored[0].metadata.usage
        assert usage is not None
        assert usage.prompt_tokens > shown
        assert 0 < usage.output_tokens <= 12
        shown = usage.prompt_tokens


def llama_options(url: str, **fields: Any) -> Options:
    given: dict[str, Any] = {
        "options": AdapterOptions(max_output_tokens=12),
        "tools": Registry(Weather),
        "retry": Retry(attempts=10, first_s=0.2),  # it responds 503 while it loads its model
    }
    return options(url, TINY, **given | fields)


async def test_session_switches_protocols_with_llama(url: str, llama: str) -> None:
    async with Metis(url, llama_options(llama)) as m:
        session = await m.session(model=TINY[0], system="the sea")
        await check_answers(session, (*TINY, *reversed(TINY), *TINY), "the lamp")
        assert session.cost().total_usd == Decimal(0)
        assert validate_session(await m.store.messages(session.id)) == []
        assert await m.store.check() == []


@pytest.mark.parametrize("model", TINY[:2])
async def test_calls_of_llama_are_run_and_continue_in_every_protocol(
    url: str, llama: str, model: str
) -> None:
    """llama.cpp cannot be forced to call in Messages, but accepts earlier calls there."""
    protocol = "openai_responses" if model == TINY[0] else "openai_chat"
    forced = AdapterOptions(
        max_output_tokens=120, tool_choice=ToolChoice("required"), native={protocol: MUST_CALL}
    )
    async with Metis(url, llama_options(llama, options=forced, max_calls=1)) as m:
        session = await m.session(model=model)
        with pytest.raises(TurnLimitError):  # it would be forced to call repeatedly
            await session.ask("the lamp")
        prompt_message, called, answered = session.messages
        assert (prompt_message.role, called.role, answered.role) == (
            Role.USER,
            Role.ASSISTANT,
            Role.TOOL,
        )
        (result,) = answered.content
        assert isinstance(result, ToolResultBlock)
        assert text_of(result.content) in ("rain in Bergen", "rain in Oslo")
    async with Metis(url, llama_options(llama)) as m:
        again = await m.resume(session.id)
        await check_answers(again, (*TINY, *reversed(TINY)), "the lamp")
        assert validate_session(await m.store.messages(session.id)) == []
        assert await m.store.check() == []


async def test_session_switches_from_llama_to_aimock_and_back(
    url: str, llama: str, aimock: str
) -> None:
    """Two independent servers share one conversation."""
    urls = {"openai-compatible": llama, "openai-responses": llama, "anthropic": aimock}
    async with Metis(url, llama_options(llama, base_urls=urls)) as m:
        session = await m.session(model=FIVE[0])
        answer = await session.ask("Is it raining in Bergen?")
        assert answer is not None
        assert text_of(answer.content) == "Yes: take a coat with you."
        await check_answers(session, TINY[:2], "the lamp")
        await session.swap(FIVE[0])
        greeted = await session.ask("Hello")
        assert greeted is not None
        assert text_of(greeted.content) == "Good morning 🦉, and a calm sea."
        await check_answers(session, TINY[:2], "the lamp")
        assert validate_session(await m.store.messages(session.id)) == []
        assert await m.store.check() == []
