"""Speed of the canonical codec: ours, a plain msgspec Struct of the same shape, and pydantic-ai.

All contestants read and write the same conversation of 10,000 mixed messages, one message a call,
in turns A, B, C, A, B, C, ...; what counts is the median of the ratios of each round. Times are CPU
times of this process. The floor does the least that any typed reader can do: it drops unknown
fields, takes the last of two equal keys, and checks no limits.

    python benchmarks/canonical.py [--messages N] [--rounds N]
"""

import argparse
import gc
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec
import pydantic_ai
import pydantic_ai.messages
from plain import PlainMessage

from metis.canonical import (
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    decode,
    decode_trusted,
    encode,
)
from metis.canonical.ids import UlidSource

MODEL = "anthropic:claude-sonnet-4-6"
PROSE = (
    "the file holds a list of rates and each row names the model its source and the day "
    "from which it counts so that a cost can be traced back to the table it was made with"
)
WORDS = PROSE.split()
START = datetime(2026, 5, 8, 12, 0, 0, 123456, tzinfo=UTC)


def make_messages(count: int) -> list[Message]:
    """A conversation of questions, answers with thinking and calls, results, and pictures."""
    chance = random.Random(20260508)  # noqa: S311 - the same conversation in every run
    ulids = UlidSource(now_ms=lambda: 1_778_241_600_000, random_bits=lambda: 1)
    makers = (_question, _call, _result, _answer)
    messages: list[Message] = []
    calls = [f"tu_{ulids.mint()}" for _ in range(count // len(makers) + 1)]
    for index in range(count):
        content, metadata, role = makers[index % len(makers)](chance, calls[index // len(makers)])
        messages.append(
            Message(
                id=ulids.mint(),
                session_id="sess_01K0QW3YJ3F5T9Z6V8R2M4N7PA",
                role=role,
                content=content,
                metadata=metadata,
                created_at=START + timedelta(seconds=index),
            )
        )
    return messages


def _prose(chance: random.Random, least: int, most: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(least, most)))


def _question(chance: random.Random, _: str) -> tuple[tuple[Any, ...], MessageMetadata, Role]:
    blocks: tuple[Any, ...] = (TextBlock(_prose(chance, 5, 60)),)
    if chance.random() < 0.1:  # noqa: PLR2004 - one question in ten shows a picture
        picture = ImageSource(kind="base64", data="iVBORw0KGgo" + "A" * 600)
        blocks += (ImageBlock(source=picture, media_type="image/png"),)
    return blocks, MessageMetadata(), Role.USER


def _call(chance: random.Random, call: str) -> tuple[tuple[Any, ...], MessageMetadata, Role]:
    signature = "".join(chance.choices("ABCDEFGHIJKLMNOPabcdefghijklmnop0123456789+/", k=200))
    arguments = {"path": f"src/{chance.choice(WORDS)}.py", "limit": 100, "lines": [1, 40]}
    blocks = (
        ThinkingBlock(text=_prose(chance, 10, 80), signature=signature),
        TextBlock(_prose(chance, 5, 30)),
        ToolUseBlock(id=call, name="read_file", input=arguments),
    )
    return blocks, _metadata(chance, StopReason.TOOL_USE), Role.ASSISTANT


def _result(chance: random.Random, call: str) -> tuple[tuple[Any, ...], MessageMetadata, Role]:
    block = ToolResultBlock(tool_use_id=call, content=(TextBlock(_prose(chance, 20, 150)),))
    return (block,), MessageMetadata(parent_tool_use_id=call), Role.TOOL


def _answer(chance: random.Random, _: str) -> tuple[tuple[Any, ...], MessageMetadata, Role]:
    return (
        (TextBlock(_prose(chance, 20, 200)),),
        _metadata(chance, StopReason.END_TURN),
        Role.ASSISTANT,
    )


def _metadata(chance: random.Random, stop_reason: StopReason) -> MessageMetadata:
    return MessageMetadata(
        model=MODEL,
        provider="anthropic",
        stop_reason=stop_reason,
        routing=RoutingDecisionRecord(
            mode=RoutingMode.DEFAULT, chosen_model=MODEL, reason="workspace default"
        ),
        usage=Usage(
            input_tokens=chance.randint(1, 9999),
            output_tokens=chance.randint(1, 999),
            cached_input_tokens=chance.randint(1, 99999),
            cost_usd=Decimal(chance.randint(1, 10**6)) / 10**7,
            pricing_version="2026-05-08",
            latency_ms=chance.randint(200, 9000),
        ),
    )


class Contestant(NamedTuple):
    """One way to read and to write the same conversation."""

    name: str
    read: Callable[[Any], object]
    documents: Sequence[Any]
    write: Callable[[Any], object]
    values: Sequence[Any]


def make_contestants(messages: Sequence[Message]) -> list[Contestant]:
    """The floor, ours and the peer, each with the documents in its own form."""
    canonical = [encode(message) for message in messages]
    read_plain = msgspec.json.Decoder(PlainMessage).decode
    peers = [to_peer(message) for message in messages]
    adapter = pydantic_ai.messages.ModelMessagesTypeAdapter
    written = [adapter.dump_json([peer]) for peer in peers]
    return [
        Contestant(
            "floor",
            read_plain,
            canonical,
            msgspec.json.Encoder().encode,
            [read_plain(data) for data in canonical],
        ),
        Contestant("metis", decode, canonical, encode, messages),
        Contestant("metis, trusted", decode_trusted, canonical, encode, messages),
        Contestant(
            "pydantic-ai",
            adapter.validate_json,
            written,
            adapter.dump_json,
            [[peer] for peer in peers],
        ),
    ]


def to_peer(message: Message) -> pydantic_ai.messages.ModelMessage:
    """The same message in pydantic-ai's types."""
    peer = pydantic_ai.messages
    parts: list[Any] = []
    for block in message.content:
        match block:
            case TextBlock() if message.role is Role.USER:
                parts.append(peer.UserPromptPart(block.text, timestamp=message.created_at))
            case TextBlock():
                parts.append(peer.TextPart(block.text))
            case ThinkingBlock():
                parts.append(
                    peer.ThinkingPart(
                        block.text, signature=block.signature, provider_name="anthropic"
                    )
                )
            case ToolUseBlock():
                parts.append(peer.ToolCallPart(block.name, dict(block.input), block.id))
            case ToolResultBlock(content=(TextBlock(text=text), *_)):
                parts.append(
                    peer.ToolReturnPart(
                        "read_file", text, block.tool_use_id, timestamp=message.created_at
                    )
                )
            case ImageBlock():
                picture = peer.ImageUrl(f"data:{block.media_type};base64,{block.source.data}")
                parts.append(peer.UserPromptPart([picture], timestamp=message.created_at))
            case _:
                raise AssertionError(block)
    if message.role is not Role.ASSISTANT:
        return peer.ModelRequest(parts)
    usage = message.metadata.usage
    assert usage is not None  # noqa: S101 - every answer of this workload has it
    return peer.ModelResponse(
        parts,
        usage=pydantic_ai.RequestUsage(
            input_tokens=usage.prompt_tokens,
            cache_read_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
        ),
        model_name=MODEL,
        provider_name="anthropic",
        timestamp=message.created_at,
    )


def cpu_us(work: Callable[[Any], object], items: Iterable[Any], count: int) -> float:
    """CPU time per item in microseconds."""
    gc.collect()
    start = time.process_time_ns()
    for item in items:
        work(item)
    return (time.process_time_ns() - start) / 1000 / count


def race(contestants: Sequence[Contestant], rounds: int) -> dict[str, dict[str, list[float]]]:
    """The times of each contestant, round by round, in turns."""
    times: dict[str, dict[str, list[float]]] = {
        work: {one.name: [] for one in contestants} for work in ("decode", "encode")
    }
    for _ in range(rounds):
        for one in contestants:
            count = len(one.documents)
            times["decode"][one.name].append(cpu_us(one.read, one.documents, count))
            times["encode"][one.name].append(cpu_us(one.write, one.values, count))
    return times


def import_ms(statement: str) -> float:
    """CPU time of a fresh interpreter that runs one statement, in milliseconds."""
    probe = f"{statement}\nimport time\nprint(time.process_time_ns())"
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own words
        [sys.executable, "-c", probe], check=True, capture_output=True, text=True
    )
    return int(done.stdout) / 1e6


def show(times: dict[str, dict[str, list[float]]]) -> None:
    """One table a kind of work: medians, and ratios to the floor and to the peer."""
    for work, by_name in times.items():
        print(f"\n{work:<16}{'us/message':>12}{'x floor':>10}{'pydantic-ai / it':>18}")
        for name, own in by_name.items():
            floor = _ratio(own, by_name["floor"])
            peer = _ratio(by_name["pydantic-ai"], own)
            print(f"{name:<16}{statistics.median(own):>12.2f}{floor:>10.2f}{peer:>18.1f}")


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def main() -> None:
    """Run the race and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    messages = make_messages(arguments.messages)
    size = sum(len(encode(message)) for message in messages) / len(messages)
    print(
        f"Python {platform.python_version()}, msgspec {version('msgspec')}, "
        f"pydantic-ai-slim {version('pydantic-ai-slim')}"
    )
    print(f"{len(messages)} messages of {size:.0f} bytes, {arguments.rounds} rounds, CPU time")
    show(race(make_contestants(messages), arguments.rounds))
    imports = [
        (import_ms("import metis"), import_ms("import metis.canonical"), import_ms("pass"))
        for _ in range(arguments.rounds)
    ]
    package = statistics.median(one - empty for one, _, empty in imports)
    canonical = statistics.median(one - empty for _, one, empty in imports)
    print(f"\nimport metis: {package:.1f} ms over an empty interpreter")
    print(f"import metis.canonical: {canonical:.1f} ms")


if __name__ == "__main__":
    main()
