"""Speed of a session: our own cost of a turn, for histories of several lengths, and of an event.

The provider is a list of ready bytes, so everything is measured but the network: routing, estimate,
request, decoding, events, storing, pricing, trace. The floor does the least that any code for a
turn can do with ready values: it encodes the request as a ready dict, decodes each line of the
answer, and stores two messages as JSON in SQLite, each in its own transaction. What counts is the
median of the ratios of each round, in CPU time.

    python benchmarks/session.py [--turns N] [--rounds N] [--history N,N,...] [--memory N]
"""

import argparse
import asyncio
import gc
import platform
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.canonical import (
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    TextBlock,
    Usage,
    new_ulid,
)
from metis.events import Bus
from metis.session import Metis, Options, Session
from metis.streaming import StreamEvent
from metis.transport import Transport
from metis.transport.client import OnDecoder, OnFailure
from metis.wire.call import AdapterOptions, RequestContext, WireRequest

MODEL = "anthropic:claude-sonnet-4-6"
TURNS = 20
"""The turns of each session whose memory is counted."""
WORDS = 40
"""The words of a usual answer, one an event."""

CHOICE = RoutingDecisionRecord(mode=RoutingMode.MANUAL, chosen_model=MODEL, reason="set")
_INSERT = "INSERT INTO messages (body) VALUES (?)"
_json = msgspec.json.Encoder()


def answer_lines(words: int) -> list[bytes]:
    """An answer of Anthropic as lines of a stream."""
    start: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    usage = {"input_tokens": 1000, "output_tokens": 1}
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {**start, "model": "claude-sonnet-4-6", "usage": usage},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    delta = {"type": "text_delta", "text": "word "}
    events += [{"type": "content_block_delta", "index": 0, "delta": delta}] * words
    events += [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": words},
        },
        {"type": "message_stop"},
    ]
    return [b"event: %s\ndata: %s\n\n" % (e["type"].encode(), _json.encode(e)) for e in events]


class Ready(Transport):
    """Answers every request with the same bytes, one event a chunk."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.lines = answer_lines(words)

    async def stream(  # noqa: PLR0913 - as it is asked
        self,
        adapter: Adapter,
        request: WireRequest,  # noqa: ARG002 - every request gets the same
        context: RequestContext,
        on_failure: OnFailure | None = None,  # noqa: ARG002 - nothing fails
        on_decoder: OnDecoder | None = None,
        *,
        previous_attempts: int = 0,  # noqa: ARG002 - the same
    ) -> AsyncGenerator[StreamEvent]:
        """The events of the ready answer."""
        decoder = adapter.stream_decoder(context)
        if on_decoder is not None:
            on_decoder(decoder)
        for line in self.lines:
            for event in decoder.feed(line):
                yield event
        for event in decoder.finish():
            yield event


def history(session_id: str, count: int) -> list[Message]:
    """Questions and answers in turn."""
    made: list[Message] = []
    for number in range(count):
        is_answer = number % 2 == 1
        usage = Usage(
            input_tokens=100 * number,
            output_tokens=WORDS,
            cost_usd=Decimal("0.001"),
            pricing_version="2026-11-15",
            latency_ms=1,
        )
        answered = MessageMetadata(
            model=MODEL,
            provider="anthropic",
            routing=CHOICE,
            stop_reason=StopReason.END_TURN,
            usage=usage,
        )
        made.append(
            Message(
                id=new_ulid(),
                session_id=session_id,
                role=Role.ASSISTANT if is_answer else Role.USER,
                content=(TextBlock(f"{number} " + "word " * WORDS),),
                created_at=datetime.now(UTC),
                metadata=answered if is_answer else MessageMetadata(),
            )
        )
    return made


async def open_session(m: Metis, count: int) -> Session:
    """A session that has that many messages already."""
    session = await m.session(model=MODEL)
    if count:
        await m.store.append_all(history(session.id, count))
    own = session.id
    del session
    return await m.resume(own)


async def turns(m: Metis, words: int, count: int, turn_count: int) -> tuple[float, float]:
    """Microseconds of CPU of the first turn after a resume, and of each turn after that."""
    setup = m._opened()  # noqa: SLF001 - the seam  # pyright: ignore[reportPrivateUsage] - the same
    m._setup = replace(setup, transport=Ready(words))  # noqa: SLF001 - the seam  # pyright: ignore[reportPrivateUsage] - the same
    session = await open_session(m, count)
    began = time.process_time_ns()
    await _turn(session)
    first = time.process_time_ns() - began
    began = time.process_time_ns()
    for _ in range(turn_count):
        await _turn(session)
    later = time.process_time_ns() - began
    return first / 1000, later / 1000 / turn_count


async def _turn(session: Session) -> None:
    async for _ in session.send("and now? " + "word " * WORDS):
        pass


def floor(folder: Path, count: int, turn_count: int) -> float:
    """Microseconds of CPU of a turn that does next to nothing."""
    body: dict[str, Any] = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 4096,
        "stream": True,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": f"{n} " + "word " * WORDS}]}
            for n in range(count + 1)
        ],
    }
    lines = [line.partition(b"data: ")[2] for line in answer_lines(WORDS)]
    decode = msgspec.json.Decoder().decode
    with closing(sqlite3.connect(folder / f"{new_ulid()}.db", isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("PRAGMA synchronous = NORMAL")
        store.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body BLOB)")
        began = time.process_time_ns()
        for _ in range(turn_count):
            store.execute(_INSERT, (_json.encode(body["messages"][-1]),))
            _json.encode(body)
            text = "".join(decode(line).get("delta", {}).get("text", "") for line in lines)
            store.execute(_INSERT, (_json.encode({"role": "assistant", "content": text}),))
        return (time.process_time_ns() - began) / 1000 / turn_count


async def measure(folder: Path, lengths: Sequence[int], turn_count: int, rounds: int) -> None:
    """Print the table."""
    options = Options(
        keys={"anthropic": "none"}, bus=Bus(), compact_at=None, options=AdapterOptions()
    )
    firsts: dict[int, list[float]] = {length: [] for length in lengths}
    laters: dict[int, list[float]] = {length: [] for length in lengths}
    ratios: dict[int, list[float]] = {length: [] for length in lengths}
    events: list[float] = []
    for number in range(rounds):
        async with Metis(f"sqlite:///{folder / f'{number}.db'}", options) as m:
            for length in lengths:
                first, later = await turns(m, WORDS, length, turn_count)
                firsts[length].append(first)
                laters[length].append(later)
                ratios[length].append(later / floor(folder, length, turn_count))
            _, long = await turns(m, 1000 + WORDS, 0, turn_count)
            _, short = await turns(m, WORDS, 0, turn_count)
            events.append((long - short) / 1000)
    print(f"{'messages before':>16} {'first turn us':>14} {'a turn later us':>16} {'x floor':>8}")
    for length in lengths:
        figures = (firsts[length], laters[length], ratios[length])
        first, later, ratio = (statistics.median(each) for each in figures)
        print(f"{length:>16} {first:>14.0f} {later:>16.0f} {ratio:>8.2f}")
    print(f"\neach streamed event: {statistics.median(events):.2f} us")


async def remember(folder: Path, turn_count: int) -> None:
    """Print what Python holds after each tenth of many turns, and the most of the whole process.

    The process grows until the page cache of SQLite is full, which may take 32 MB.
    """
    options = Options(keys={"anthropic": "none"}, bus=Bus(), compact_at=None)
    async with Metis(f"sqlite:///{folder / 'memory.db'}", options) as m:
        setup = m._opened()  # noqa: SLF001 - the seam  # pyright: ignore[reportPrivateUsage] - the same
        m._setup = replace(setup, transport=Ready(WORDS))  # noqa: SLF001 - the seam  # pyright: ignore[reportPrivateUsage] - the same
        for tenth in range(1, 11):
            for _ in range(turn_count // 10 // TURNS):
                session = await m.session(model=MODEL)
                for _ in range(TURNS):
                    await _turn(session)
            gc.collect()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            blocks = sys.getallocatedblocks()
            print(f"{tenth * turn_count // 10:>8} turns: {blocks} blocks, {peak:.1f} MB at most")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--history", default="10,100,1000")
    parser.add_argument("--memory", type=int, default=0, help="only count memory, over N turns")
    given = parser.parse_args()
    if given.memory:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(remember(Path(folder), given.memory))
        return
    print(f"Python {platform.python_version()}, msgspec {msgspec.__version__}")
    print(f"{given.turns} turns of {WORDS} events, {given.rounds} rounds, CPU time\n")
    lengths = [int(each) for each in given.history.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), lengths, given.turns, given.rounds))


if __name__ == "__main__":
    main()
