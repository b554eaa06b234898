"""Speed of the protocols: ours as multiples of a floor, for each protocol and each kind of work.

The floors do the least that can be done with ready values: msgspec encodes a ready dict, decodes a
body, or decodes each line of a stream. Ours does the whole work: projection and losses, typed
messages, events and the final message. All run in turns; what counts is the median of the ratios.

    python benchmarks/wire.py [--messages N] [--rounds N]
"""

import argparse
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from canonical import make_messages
from metis import adapters
from metis.canonical import Message, Role, StopReason
from metis.streaming import MessageComplete, MessageStart, StreamEvent, TextDelta
from metis.wire.call import AdapterOptions, RequestContext

PROTOCOLS = ("anthropic", "openai")
CONTEXT = RequestContext(session_id="sess_bench")
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode


class Work(NamedTuple):
    """One kind of work, done by the floor and by ours."""

    name: str
    floor: Callable[[], object]
    ours: Callable[[], object]


def conversation(count: int) -> list[Message]:
    """A conversation without thoughts, as every protocol can carry it."""
    messages = make_messages(count)
    while messages[-1].role is Role.ASSISTANT:
        messages.pop()
    return [
        replace(message, content=tuple(b for b in message.content if b.type != "thinking"))
        for message in messages
    ]


def works(name: str, messages: list[Message]) -> list[Work]:
    """Every kind of work for one protocol."""
    adapter = adapters.get(name)
    wire = adapter.to_wire(messages)
    ready = json.loads(wire.body)
    answer = next(message for message in messages if message.role is Role.ASSISTANT)
    response = adapter.to_wire_response(answer, CONTEXT)
    chunks = stream_of(name, answer)
    return [
        Work("to_wire", lambda: _write(ready), lambda: adapter.to_wire(messages)),
        Work(
            "from_wire_request",
            lambda: _read(wire.body),
            lambda: adapter.from_wire_request(wire.body, CONTEXT),
        ),
        Work(
            "from_wire_response",
            lambda: [_read(response) for _ in range(50)],
            lambda: [adapter.from_wire_response(response, CONTEXT) for _ in range(50)],
        ),
        Work("stream", lambda: split_and_decode(chunks), lambda: decode_stream(name, chunks)),
    ]


def stream_of(name: str, answer: Message) -> list[bytes]:
    """A streamed answer of some two thousand frames, one frame a chunk."""
    encoder = adapters.get(name).stream_encoder(CONTEXT)
    whole = adapters.get(name).to_wire_response(answer, CONTEXT)
    message = adapters.get(name).from_wire_response(whole, CONTEXT)
    frames: list[bytes] = []
    for event in events_of(message):
        frames += [f + b"\n\n" for f in encoder.encode(event).split(b"\n\n") if f]
    last = encoder.finish()
    return [*frames, last] if last else frames


def events_of(message: Message) -> list[StreamEvent]:
    """A long answer, word by word."""
    words = [TextDelta(message.id, 0, f" word{number}") for number in range(2000)]
    end = MessageComplete(message.id, StopReason.END_TURN, message)
    return [MessageStart(message.id, "bench"), *words, end]


def split_and_decode(chunks: list[bytes]) -> None:
    """The floor of a stream: split lines and decode each."""
    for chunk in chunks:
        for line in chunk.split(b"\n"):
            if line.startswith(b"data: {"):
                _read(line[6:])


def decode_stream(name: str, chunks: list[bytes]) -> Message:
    """Bytes to events to the final message."""
    decoder = adapters.get(name).stream_decoder(CONTEXT)
    for chunk in chunks:
        decoder.feed(chunk)
    decoder.finish()
    return decoder.message


def cpu_us(work: Callable[[], Any]) -> float:
    """CPU time of one run in microseconds."""
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1000


def main() -> None:
    """Run all work in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # losses are counted, not printed
    messages = conversation(arguments.messages)
    size = len(adapters.get("anthropic").to_wire(messages, (), AdapterOptions()).body)
    print(f"Python {platform.python_version()}, msgspec {version('msgspec')}")
    print(f"{len(messages)} messages, {size} bytes, {arguments.rounds} rounds, CPU time\n")
    print(f"{'work':<32}{'floor us':>10}{'ours us':>10}{'x floor':>9}")
    for name in PROTOCOLS:
        for work in works(name, messages):
            pairs = [(cpu_us(work.floor), cpu_us(work.ours)) for _ in range(arguments.rounds)]
            floor, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(own / least for least, own in pairs)
            print(f"{name + ' ' + work.name:<32}{floor:>10.0f}{ours:>10.0f}{ratio:>9.1f}")


if __name__ == "__main__":
    main()
