"""Speed of the protocols: ours as multiples of a floor, for each protocol and each kind of work.

The floors do the least that can be done with ready values: msgspec encodes a ready dict, decodes a
body into ready Structs, decodes each line of a stream. Ours does the whole work: projection and
losses, typed messages, events and the final message. All run in turns; what counts is the median of
the ratios.

    python benchmarks/wire.py [--messages N] [--rounds N] [--only NAME ...] [--rows WORDS]
"""

import argparse
import itertools
import json
import logging
import platform
import statistics
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import floors
import msgspec
from talk import Talk, conversation, next_turn, tools

from metis import adapters
from metis.adapters import Adapter, Profile
from metis.canonical import Message, StopReason
from metis.streaming import MessageComplete, MessageStart, StreamEvent, TextDelta
from metis.wire.call import RequestContext

CONTEXT = RequestContext(session_id="sess_bench")
TOOLS = tools()
_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_LINED = ("ollama",)
"""The protocols that stream lines of JSON, not server-sent events."""
_FRAMED = ("bedrock-converse",)
"""The protocols that stream binary frames."""
_OTHER = {
    "anthropic": "openai",
    "bedrock-converse": "anthropic",
    "gemini": "anthropic",
    "ollama": "anthropic",
    "openai": "anthropic",
    "openai-responses": "anthropic",
}
"""Whose client's requests each is measured with, beside its own."""
_LONG = 5000
_ANSWERS = 50
_STREAM = 100_000_000
_LENGTHS = struct.Struct(">II")


class Work(NamedTuple):
    """One kind of work, done by the floor and by ours; `adapter` makes the one that ours asks."""

    name: str
    floor: Callable[[], object]
    ours: Callable[[Adapter], object]
    adapter: Callable[[], Adapter]


def works(name: str, count: int) -> Iterator[Work]:
    """Every kind of work for one protocol."""
    profile = adapters.get(name).profile
    thinks = name == "anthropic"
    for size in (count, _LONG):
        messages = conversation(size, thinks=thinks)
        later = next_turn(messages, thinks=thinks)
        ready = json.loads(Adapter(profile).to_wire(later, TOOLS).body)
        write, send = partial(_write, ready), partial(_send, later)
        if size == count:
            yield Work("to_wire, first time", write, send, partial(Adapter, profile))
        sent = partial(_sent, profile, messages)
        yield Work(f"to_wire, a turn later, {size}", write, send, sent)
    messages = conversation(count, thinks=thinks)
    yield from (_resending(name, client, messages) for client in (name, _OTHER[name]))
    yield from _reading(name, messages)


def _send(messages: list[Message], adapter: Adapter) -> object:
    return adapter.to_wire(messages, TOOLS)


def _sent(profile: Profile, messages: list[Message]) -> Adapter:
    """An adapter that has sent a conversation before."""
    adapter = Adapter(profile)
    adapter.to_wire(messages, TOOLS)
    return adapter


def _resending(name: str, client: str, messages: list[Message]) -> Work:
    """A request that a client sent, sent on: as it came, or to another protocol than it asked."""
    body = adapters.get(client).to_wire(messages, TOOLS).body
    read = adapters.get(client).from_wire_request(body, CONTEXT)
    profile = adapters.get(name).profile
    ready = json.loads(Adapter(profile).to_wire(read.messages, read.tools).body)

    def send(adapter: Adapter) -> object:
        return adapter.to_wire(read.messages, read.tools)

    row = f"to_wire, of a client of {client}"
    return Work(row, partial(_write, ready), send, partial(Adapter, profile))


def _reading(name: str, messages: list[Message]) -> Iterator[Work]:
    same = partial(adapters.get, name)
    body = same().to_wire(messages, TOOLS).body
    answer = Talk().answer(thinks=name == "anthropic")
    response = same().to_wire_response(answer, CONTEXT)
    chunks = stream_of(name, answer)

    def read_request(adapter: Adapter) -> object:
        return adapter.from_wire_request(body, CONTEXT)

    def read_answers(adapter: Adapter) -> object:
        return [adapter.from_wire_response(response, CONTEXT) for _ in range(_ANSWERS)]

    def read_stream(adapter: Adapter) -> object:
        return decode_stream(adapter, chunks)

    def least_answers() -> object:
        return [floors.read_answer[name](response) for _ in range(_ANSWERS)]

    yield Work("from_wire_request", partial(floors.read_request[name], body), read_request, same)
    yield Work("from_wire_response", least_answers, read_answers, same)
    yield Work("stream", partial(split_and_decode, chunks), read_stream, same)


def translation(source: str, target: str) -> Work:
    """A stream of one protocol as a stream of another."""
    chunks = stream_of(source, Talk().answer(thinks=False))

    def least() -> object:
        return [_write(line) for line in _lines(chunks)]

    def ours(adapter: Adapter) -> object:
        return translate(adapter, adapters.get(target), chunks)

    return Work(f"stream to {target}", least, ours, partial(adapters.get, source))


def stream_of(name: str, answer: Message) -> list[bytes]:
    """A streamed answer of some two thousand frames, one frame a chunk."""
    encoder = adapters.get(name).stream_encoder(CONTEXT)
    whole = adapters.get(name).to_wire_response(answer, CONTEXT)
    message = adapters.get(name).from_wire_response(whole, CONTEXT)
    frames: list[bytes] = []
    end = b"\n" if name in _LINED else b"\n\n"
    for event in events_of(message):
        if name in _FRAMED:
            frames.append(encoder.encode(event))
            continue
        frames += [f + end for f in encoder.encode(event).split(end) if f]
    last = encoder.finish()
    return [*frames, last] if last else frames


def events_of(message: Message) -> list[StreamEvent]:
    """A long answer, word by word."""
    words = [TextDelta(message.id, 0, f" word{number}") for number in range(2000)]
    end = MessageComplete(message.id, StopReason.END_TURN, message)
    return [MessageStart(message.id, "bench"), *words, end]


def _lines(chunks: list[bytes]) -> Iterator[Any]:
    for chunk in chunks:
        if chunk[:1] == b"\0":
            yield from _payloads(chunk)
            continue
        for line in chunk.split(b"\n"):
            if line.startswith(b"data: {"):
                yield _read(line[6:])
            elif line.startswith(b"{"):
                yield _read(line)


def _payloads(chunk: bytes) -> Iterator[Any]:
    """The payloads of binary frames, found by their lengths alone."""
    start = 0
    while start < len(chunk):
        size, headers = _LENGTHS.unpack_from(chunk, start)
        yield _read(chunk[start + 12 + headers : start + size - 4])
        start += size


def split_and_decode(chunks: list[bytes]) -> None:
    """The floor of a stream: split lines and decode each."""
    for _ in _lines(chunks):
        pass


def decode_stream(adapter: Adapter, chunks: list[bytes]) -> Message:
    """Bytes to events to the final message."""
    decoder = adapter.stream_decoder(CONTEXT)
    for chunk in chunks:
        decoder.feed(chunk)
    decoder.finish()
    return decoder.message


def translate(source: Adapter, target: Adapter, chunks: list[bytes]) -> bytes:
    """Bytes of one protocol to events to bytes of another."""
    decoder, encoder = source.stream_decoder(CONTEXT), target.stream_encoder(CONTEXT)
    out = [encoder.encode(event) for chunk in chunks for event in decoder.feed(chunk)]
    out += [encoder.encode(event) for event in decoder.finish()]
    return b"".join([*out, encoder.finish()])


def memory_of_a_stream(name: str, size: int) -> tuple[int, int]:
    """The most memory that decoding a stream held, and the size of its text."""
    piece = "x" * 1000
    encoder = adapters.get(name).stream_encoder(CONTEXT)
    decoder = adapters.get(name).stream_decoder(CONTEXT)
    start = encoder.encode(MessageStart("m", "bench"))
    decoder.feed(start + encoder.encode(TextDelta("m", 0, piece)))
    frame = encoder.encode(TextDelta("m", 0, piece))
    tracemalloc.start()
    for _ in range(size // len(frame)):
        decoder.feed(frame)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most, size // len(frame) * len(piece)


def cpu_us(work: Callable[[], Any]) -> float:
    """CPU time of one run in microseconds."""
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1000


def measure(label: str, work: Work, rounds: int) -> None:
    """Run the floor and ours in turns, and print one line."""
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        adapter = work.adapter()
        pairs.append((cpu_us(work.floor), cpu_us(partial(work.ours, adapter))))
    floor, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(own / least for least, own in pairs)
    print(f"{label:<54}{floor:>10.0f}{ours:>10.0f}{ratio:>9.2f}", flush=True)


def all_works(names: list[str], count: int) -> Iterator[tuple[str, Work]]:
    """Every kind of work of some protocols, with the label of its row."""
    for name in names:
        yield from ((f"{name} {work.name}", work) for work in works(name, count))
    for source, target in itertools.permutations(names, 2):
        work = translation(source, target)
        yield f"{source} {work.name}", work


def main() -> None:
    """Run all work in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", nargs="+", choices=list(floors.read_request), metavar="NAME")
    parser.add_argument("--rows", default="", metavar="WORDS")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # losses are counted, not printed
    body = adapters.get("anthropic").to_wire(conversation(arguments.messages, thinks=True)).body
    print(f"Python {platform.python_version()}, msgspec {version('msgspec')}")
    print(
        f"{arguments.messages} messages, {len(body)} bytes, {arguments.rounds} rounds, CPU time\n"
    )
    print(f"{'work':<54}{'floor us':>10}{'ours us':>10}{'x floor':>9}")
    names = arguments.only or list(floors.read_request)
    for label, work in all_works(names, arguments.messages):
        if arguments.rows in label:
            measure(label, work, arguments.rounds)
    for name in names if not arguments.rows else ():
        most, text = memory_of_a_stream(name, _STREAM)
        share = f"{most / 1e6:.0f} MB held for {text / 1e6:.0f} MB of text"
        print(f"{name} stream of {_STREAM / 1e6:.0f} MB: {share}")


if __name__ == "__main__":
    main()
