"""The work for a hostile input grows with its length, not with the square of it.

Work is counted as lines of Python that run. Eight times the input may take some more than eight
times the work, but a quadratic parser takes sixty-four times.
"""

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from metis import adapters
from metis.streaming import JsonArrayParser, NdjsonParser, SseParser, parse_arguments
from metis.streaming.arguments import partial_arguments, split_joined_objects
from metis.wire.call import RequestContext

CONTEXT = RequestContext(session_id="sess_s", tools=("f",))
BASE = 100
MOST = 12
"""By how much the work may grow for eight times the input."""
Wire = dict[str, Any]


def count_lines(work: Callable[[], object]) -> int:
    """Return how many lines of Python some work runs."""
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def check(work_of: Callable[[int], Callable[[], object]]) -> None:
    """Compare the work at 1, 2, 4 and 8 times the size."""
    work_of(BASE)()  # caches are filled before counting
    counts = [count_lines(work_of(BASE * factor)) for factor in (1, 2, 4, 8)]
    assert counts[3] <= MOST * counts[0] + 2000, counts


ARGUMENTS: dict[str, Callable[[int], str]] = {
    "empty objects": lambda n: "{}" * n,
    "objects": lambda n: '{"a":1} ' * n,
    "brackets": lambda n: "[" * n,
    "open objects": lambda n: '{"a":' * n,
    "quotes": lambda n: '{"a":"' + '\\"' * n,
    "backslashes": lambda n: '{"a":"' + "\\" * n,
    "commas": lambda n: '{"a":1' + "," * n,
}


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("parse", [parse_arguments, partial_arguments, split_joined_objects])
def test_arguments(kind: str, parse: Callable[[str], object]) -> None:
    check(lambda n: lambda: parse(ARGUMENTS[kind](n)))


@pytest.mark.parametrize("make", [SseParser, NdjsonParser, JsonArrayParser])
@pytest.mark.parametrize("piece", [b"data: x", b"data: x\n", b"\n", b"\r", b"[{", b'"', b"{},"])
def test_frames_in_small_pieces(make: Callable[[], Any], piece: bytes) -> None:
    def feed(n: int) -> None:
        parser = make()
        for _ in range(n):
            parser.feed(piece)
        parser.finish()

    check(lambda n: lambda: feed(n))


def chat_calls(n: int) -> list[Wire]:
    return [
        {"id": f"t{i}", "type": "function", "function": {"name": f"f{i}", "arguments": "{}"}}
        for i in range(n)
    ]


REQUESTS: dict[str, tuple[str, Callable[[int], Wire]]] = {
    "openai calls": (
        "openai",
        lambda n: {
            "model": "m",
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": chat_calls(n)},
                *(
                    {"role": "tool", "tool_call_id": f"t{n - i - 1}", "content": "r"}
                    for i in range(n)
                ),
            ],
        },
    ),
    "responses reasoning": (
        "openai-responses",
        lambda n: {
            "model": "m",
            "input": [
                {"type": "reasoning", "id": f"r{i}", "summary": [], "encrypted_content": "e"}
                for i in range(n)
            ],
        },
    ),
    "gemini names in reverse": (
        "gemini",
        lambda n: {
            "contents": [
                {"role": "user", "parts": [{"text": "x"}]},
                {
                    "role": "model",
                    "parts": [{"functionCall": {"name": f"f{i}", "args": {}}} for i in range(n)],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"name": f"f{n - i - 1}", "response": {"output": "r"}}}
                        for i in range(n)
                    ],
                },
            ]
        },
    ),
    "ollama names in reverse": (
        "ollama",
        lambda n: {
            "model": "m",
            "messages": [
                {"role": "user", "content": "x"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"function": {"name": f"f{i}", "arguments": {}}} for i in range(n)
                    ],
                },
                *({"role": "tool", "content": "r", "tool_name": f"f{n - i - 1}"} for i in range(n)),
            ],
        },
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_many_calls_in_a_request(kind: str) -> None:
    name, body_of = REQUESTS[kind]
    adapter = adapters.get(name)

    def work_of(n: int) -> Callable[[], object]:
        data = json.dumps(body_of(n)).encode()
        return lambda: adapter.from_wire_request(data, CONTEXT)

    check(work_of)


def chat_event(n: int, call: Wire) -> Wire:
    return {"id": f"c{n}", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


STREAMS: dict[str, tuple[str, Callable[[int], list[Wire]]]] = {
    "openai fragments beside an open call": (
        "openai",
        lambda n: [
            chat_event(0, {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":'}}),
            *[
                chat_event(i, {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}})
                for i in range(n)
            ],
        ],
    ),
    "anthropic deltas without an index": (
        "anthropic",
        lambda n: [
            {"type": "message_start", "message": {"id": "m"}},
            *[
                {
                    "type": "content_block_start",
                    "index": i,
                    "content_block": {"type": "text", "text": ""},
                }
                for i in range(n)
            ],
            *[{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}] * n,
        ],
    ),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_many_small_events(kind: str) -> None:
    name, events_of = STREAMS[kind]

    def read(chunks: list[bytes]) -> None:
        decoder = adapters.get(name).stream_decoder(CONTEXT)
        for chunk in chunks:
            decoder.feed(chunk)
        decoder.finish()

    def work_of(n: int) -> Callable[[], object]:
        chunks = [b"data: %b\n\n" % json.dumps(event).encode() for event in events_of(n)]
        return lambda: read(chunks)

    check(work_of)
