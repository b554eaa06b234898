"""Every kind of server misbehaviour in every protocol: library, session and program.

In each case there is a typed error or a response, nothing shown is lost or requested twice, the
store is consistent, the next turn is valid, memory is limited, and the key appears nowhere.
"""

import logging
import os
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from build import user
from hostile.dialects import DIALECTS, TEXT, Dialect
from hostile.kinds import KEY, KINDS, Kind
from hostile.limits import MOST_MEMORY, RESPONSE_LIMITS, assert_no_key, limited_memory
from hostile.program import encode_limits, run_program, started_program
from hostile.server import hostile_server
from metis import adapters
from metis.canonical import Message, MessageStatus, OpaqueBlock, Role, decode, encode
from metis.canonical.errors import MetisError
from metis.events import Bus
from metis.events.trace import SqliteTrace
from metis.session import Metis, Options
from metis.session.response import text_of
from metis.store.store import open_store
from metis.streaming import MessageComplete, StreamError, StreamEvent
from metis.streaming.events import provider_error
from metis.tools import Registry
from metis.transport import Keys, Limits, Retry, Transport
from metis.wire.call import RequestContext
from session.faults import check_whole
from session.helpers import ReadFile

pytestmark = pytest.mark.anyio
PROTOCOLS = tuple(DIALECTS)
CONTROLS = re.compile(r"\x1b\]0;owned|\x1b\]52|\x1b\[2J|[\x80-\x9f\u202a-\u202e\u2066-\u2069]")
BASE_KB = 100_000
"""What the program uses when nothing is wrong."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def limits_of(kind: Kind) -> Limits:
    return Limits(
        silence_s=kind.silence_s,
        total_s=kind.total_s,
        response_bytes=1_000_000,
        response=RESPONSE_LIMITS,
    )


def retry_of(kind: Kind) -> Retry:
    return Retry(attempts=kind.attempts, first_s=0.001)


def assert_allowed(kind: Kind, error: BaseException | None, requests: int) -> None:
    if error is None:
        assert kind.answers or not kind.errors, "a response where an error was due"
    else:
        assert isinstance(error, kind.errors), repr(error)
        assert len(str(error)) < 5_000
        assert_no_key(f"{error!s} {error!r} {vars(error)}")
    assert requests <= (1 if kind.shows_text else kind.attempts)


async def through_transport(kind: Kind, dialect: Dialect, *, streams: bool) -> None:
    async with hostile_server(kind, dialect) as server:
        adapter = adapters.get(dialect.provider, base_url=server.url)
        keys = Keys({dialect.provider: KEY}, environment={})
        context = RequestContext(session_id="sess_t", provider=dialect.provider)
        request = adapter.to_wire([user("is it safe?")])
        client = Transport(keys=keys, limits=limits_of(kind), retry=retry_of(kind))
        error: MetisError | None = None
        message: Message | None = None
        async with client, limited_memory():
            try:
                if streams:
                    events = await _collect(client.stream(adapter, request, context))
                    message, error = _outcome(events, dialect.provider)
                else:
                    message = await client.complete(adapter, request, context)
            except MetisError as raised:
                error = raised
        if streams:
            assert_allowed(kind, error, server.request_count)
            if kind.shows_text:
                assert message is not None
                assert text_of(message.content).startswith(TEXT)
        if message is not None:
            assert decode(encode(message)) == message
            assert message.metadata.status is not MessageStatus.PARTIAL
    assert_no_key(repr(error) if message is None or error is not None else "")


async def _collect(stream: AsyncGenerator[StreamEvent]) -> list[StreamEvent]:
    async with aclosing(stream) as events:
        return [event async for event in events]


def _outcome(events: list[StreamEvent], provider: str) -> tuple[Message | None, MetisError | None]:
    """Return what a stream ended with."""
    match events[-1]:
        case MessageComplete() as end:
            return end.message, None
        case StreamError() as end:
            assert_no_key(repr(end))
            return end.message, provider_error(end, provider)
        case other:
            pytest.fail(f"the last event is {other!r}")


async def through_session(
    kind: Kind, dialect: Dialect, folder: Path, log: pytest.LogCaptureFixture
) -> None:
    log.set_level(logging.DEBUG)
    bus, url = Bus(), f"sqlite:///{folder / 'metis.db'}"
    trace = SqliteTrace(folder / "trace.db")
    bus.subscribe_batches(trace.append, name="trace")
    shown: list[Any] = []
    async with hostile_server(kind, dialect) as server:
        options = Options(
            base_urls={dialect.provider: server.url},
            keys={dialect.provider: KEY},
            retry=retry_of(kind),
            limits=limits_of(kind),
            tools=Registry(ReadFile),
            bus=bus,
        )
        async with limited_memory(), Metis(url, options) as library:
            session = await library.session(model=dialect.model)
            error: MetisError | None = None
            try:
                async for event in session.send("is it safe?"):
                    shown.append(event)  # noqa: PERF401 - those before an error count, too
            except MetisError as raised:
                error = raised
            assert_allowed(kind, error, server.request_count)
            check_whole(await library.store.messages(session.id))
            server.is_healed = True
            assert await session.ask("say all is well") is not None
            stored = await library.store.messages(session.id)
            # A part of no known form may be refused once; then it is left out.
            opaque = [b for m in stored for b in m.content if isinstance(b, OpaqueBlock)]
            assert len(server.refusals) <= bool(opaque)
            check_whole(stored)
        async with Metis(url, options) as library:
            assert await library.store.messages(session.id) == stored
            assert await library.store.check() == []
    await bus.close()
    trace.close()
    if kind.shows_text:
        texts = [text_of(m.content) for m in stored if m.role is Role.ASSISTANT]
        assert texts[0].startswith(TEXT)
        assert sum(text.count(TEXT) for text in texts) == 1
    assert_no_key(f"{shown!r} {log.text}")
    assert_no_key_in_files(folder)


def assert_no_key_in_files(folder: Path, *others: Path) -> None:
    """Fail if a file but these has a key; all must be for their owner only."""
    for path in set(folder.rglob("*")) - set(others):
        assert_no_key(path.read_bytes() if path.is_file() else b"")
        assert path.stat().st_mode & 0o077 == 0, path


async def through_program(kind: Kind, dialect: Dialect, folder: Path, program: Path) -> None:
    home, work, memory = folder / "home", folder / "work", folder / "memory"
    home.mkdir(mode=0o700)
    work.mkdir()
    variables = {
        "METIS_HOME": str(home),
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "COLUMNS": "200",
        "TERM": "xterm",
        "METIS_TEST_LIMITS": encode_limits(limits_of(kind), retry_of(kind)),
        "METIS_TEST_MEMORY": str(memory),
    }
    key_file = home / "keys.toml"
    key_file.touch(mode=0o600)
    key_file.write_text(f'[keys]\n{dialect.provider} = "{KEY}"\n')
    printed = b""
    async with hostile_server(kind, dialect) as server:
        (home / "config.toml").write_text(f'[base_urls]\n{dialect.provider} = "{server.url}"\n')
        question = ["-m", dialect.model, "-v", "is it safe?"]
        code, output = await run_program(program, question, work, variables, terminal=True)
        printed += output
        growth_kb = int(memory.read_text()) - BASE_KB
        assert growth_kb * 1024 < MOST_MEMORY
        assert server.request_count <= (1 if kind.shows_text else kind.attempts)
        assert code in ((1, 2, 3, 4, 6) if kind.errors else (0,)) or (kind.answers and code == 0)
        assert b"Traceback" not in output
        if kind.shows_text:
            # The last word may be wrapped together with what follows it.
            assert TEXT.rpartition(" ")[0].encode() in output
        assert_no_controls(output)
        server.is_healed = True
        question = ["-m", dialect.model, "-c", "say all is well"]
        code, output = await run_program(program, question, work, variables, terminal=False)
        printed += output
        assert (code, b"all is well" in output.lower()) == (0, True), output
    async with open_store(f"sqlite:///{home / 'metis.db'}") as store:
        assert await store.check() == []
        (session,) = await store.sessions()
        check_whole(await store.messages(session.id))
    assert_no_key(printed)
    assert_no_key_in_files(home, key_file, home / "config.toml")


def assert_no_controls(output: bytes) -> None:
    """Fail if a control sequence of the provider reached the terminal."""
    text = output.decode(errors="replace")
    assert not CONTROLS.findall(text)


DIAGONAL = [(name, PROTOCOLS[number % len(PROTOCOLS)]) for number, name in enumerate(KINDS)]
"""Each kind once; the protocols take turns."""
OTHER_DIAGONAL = [
    (name, PROTOCOLS[number % len(PROTOCOLS)]) for number, name in enumerate(KINDS, 3)
]
"""Each kind in another protocol. What the program adds to a session does not depend on it."""
STORED = [
    ("endless text", "openai"),
    ("duplicate call ids", "anthropic"),
    ("duplicate call ids", "bedrock-converse"),
    ("wrong types", "anthropic"),
    ("wrong types", "bedrock-converse"),
    ("arguments in many values", "gemini"),
] + [(name, protocol) for name, protocol in DIAGONAL[5::7] if KINDS[name].silence_s > 1]
PRINTED = [
    ("control sequences in the text", "anthropic"),
    ("cut after the text", "openai"),
    ("key in base64 in an error", "gemini"),
    ("web page", "ollama"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "protocol"), DIAGONAL)
async def test_misbehaviour_through_the_library(name: str, protocol: str) -> None:
    await through_transport(KINDS[name], DIALECTS[protocol], streams=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "protocol"), STORED)
async def test_misbehaviour_through_a_session(
    name: str, protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await through_session(KINDS[name], DIALECTS[protocol], tmp_path, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", KINDS)
async def test_every_misbehaviour_and_protocol_through_the_library(
    name: str, protocol: str, *, streams: bool
) -> None:
    await through_transport(KINDS[name], DIALECTS[protocol], streams=streams)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", KINDS)
async def test_every_misbehaviour_and_protocol_through_a_session(
    name: str, protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await through_session(KINDS[name], DIALECTS[protocol], tmp_path, caplog)


@pytest.fixture(scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Path]:
    async with started_program(tmp_path_factory.mktemp("program")) as path:
        yield path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "protocol"), PRINTED)
async def test_misbehaviour_through_the_program(
    name: str, protocol: str, tmp_path: Path, program: Path
) -> None:
    await through_program(KINDS[name], DIALECTS[protocol], tmp_path, program)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "protocol"), sorted({*DIAGONAL, *OTHER_DIAGONAL}))
async def test_every_misbehaviour_through_the_program(
    name: str, protocol: str, tmp_path: Path, program: Path
) -> None:
    await through_program(KINDS[name], DIALECTS[protocol], tmp_path, program)
