"""Speed of the next request of a conversation at a gateway: read, and written to a provider.

A client sends its whole history again, with one answer and one prompt more. The floor decodes the
whole body into typed Structs of its protocol. `read` is `RequestReader.read`; `read, sent to` also
encodes the request for a provider that got the turn before. What counts is the median of the
ratios. `marks` is a client of Anthropic that marks its last two prompts for the
cache, as Claude Code does, so that older messages come again without their marks.

    python benchmarks/next_turn.py [--rounds N] [--only NAME ...] [--sizes N ...]
"""

import argparse
import json
import logging
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple

import floors
from talk import conversation, next_turn, tools

from metis import adapters
from metis.adapters import Adapter, RequestContext, RequestReader
from metis.canonical import Message
from wire import cpu_us

CONTEXT = RequestContext(session_id="sess_bench")
TARGETS = ("anthropic", "openai")


class Turns(NamedTuple):
    """The bodies of two requests of a client, one turn apart."""

    client: Adapter
    before: bytes
    after: bytes


def turns_of(name: str, size: int) -> Turns:
    """Two requests of a client of a protocol; the first has about so many messages."""
    thinks = name == "anthropic"
    messages: Sequence[Message] = conversation(size, thinks=thinks)
    client, definitions = adapters.get(name), tools()
    later = next_turn(list(messages), thinks=thinks)
    return Turns(
        client,
        client.to_wire(messages, definitions).body,
        client.to_wire(later, definitions).body,
    )


def read(turns: Turns) -> Callable[[], object]:
    """Return the reading of the second request, after that of the first."""
    reader = RequestReader()
    reader.read(turns.client, "tenant", turns.before, CONTEXT)
    body = bytes(bytearray(turns.after))
    return lambda: reader.read(turns.client, "tenant", body, CONTEXT)


def read_and_send(turns: Turns, target: str) -> Callable[[], object]:
    """Return the reading of the second request and its encoding for a provider."""
    reader, provider = RequestReader(), Adapter(adapters.get(target).profile)
    first = reader.read(turns.client, "tenant", turns.before, CONTEXT)
    provider.preview(first.messages, first.tools)

    def work() -> object:
        request = reader.read(turns.client, "tenant", turns.after, CONTEXT)
        return provider.preview(request.messages, request.tools)

    return work


def marked_turns(size: int) -> list[bytes]:
    """The bodies of four requests of a client that moves its cache marks, one turn apart."""
    client, definitions = adapters.get("anthropic"), tools()
    messages: list[Message] = list(conversation(size, thinks=True))
    bodies: list[bytes] = []
    for _ in range(4):
        wire = json.loads(client.to_wire(messages, definitions).body)
        for prompt in [one for one in wire["messages"] if one["role"] == "user"][-2:]:
            if isinstance(prompt["content"], str):
                prompt["content"] = [{"type": "text", "text": prompt["content"]}]
            prompt["content"][-1]["cache_control"] = {"type": "ephemeral"}
        bodies.append(json.dumps(wire, separators=(",", ":"), ensure_ascii=False).encode())
        messages = list(next_turn(messages, thinks=True))
    return bodies


def read_and_send_marked(bodies: Sequence[bytes], target: str) -> Callable[[], object]:
    """Return the reading and encoding of the last request, after the others."""
    client, reader = adapters.get("anthropic"), RequestReader()
    provider = Adapter(adapters.get(target).profile)

    def work(body: bytes = bodies[-1]) -> object:
        request = reader.read(client, "tenant", body, CONTEXT)
        return provider.preview(request.messages, request.tools)

    for body in bodies[:-1]:
        work(body)
    return work


def measure(
    label: str, floor: Callable[[], object], ours: Callable[[], Callable[[], object]], rounds: int
) -> None:
    """Run the floor and ours in turns, and print one line."""
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        work = ours()
        pairs.append((cpu_us(floor), cpu_us(work)))
    least, own = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / floor for floor, mine in pairs)
    print(f"{label:<54}{least:>10.0f}{own:>10.0f}{ratio:>9.2f}", flush=True)


def main() -> None:
    """Run all work in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=list(floors.read_request), metavar="NAME")
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 5000])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # losses are counted, not printed
    print(f"Python {platform.python_version()}, msgspec {version('msgspec')}")
    print(f"{arguments.rounds} rounds, CPU time\n")
    print(f"{'work':<54}{'floor us':>10}{'ours us':>10}{'x floor':>9}")
    for name in arguments.only or list(floors.read_request):
        for size in arguments.sizes:
            turns = turns_of(name, size)
            floor, rounds = floors.read_request[name], arguments.rounds

            def least(turns: Turns = turns, floor: Callable[[bytes], object] = floor) -> object:
                return floor(turns.after)

            measure(f"{name} {size}, read", least, lambda t=turns: read(t), rounds)
            for target in TARGETS:
                label = f"{name} {size}, read, sent to {target}"
                measure(label, least, lambda t=turns, g=target: read_and_send(t, g), rounds)
            if name != "anthropic":
                continue
            bodies = marked_turns(size)
            for target in TARGETS:
                label = f"{name} {size}, marks, read, sent to {target}"

                def decoded(body: bytes = bodies[-1]) -> object:
                    return floors.read_request["anthropic"](body)

                measure(
                    label, decoded, lambda b=bodies, g=target: read_and_send_marked(b, g), rounds
                )


if __name__ == "__main__":
    main()
