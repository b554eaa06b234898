"""Seeds of the fuzz targets: recorded exchanges, those written by hand, and documents of metis.

Streams are shortened to a few events of each shape, and of all inputs those are chosen that add a
shape which no other has: small inputs of many kinds find more in the same time.
"""

import base64
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pybase64

import build
import corpus
from exchange import handwritten
from metis import interchange
from metis.canonical import Message, encode
from metis.canonical.errors import ProviderError
from metis.store.entries import encode_entry, entry_of
from metis.streaming.aws_event_stream import EventStreamParser, encode_event_frame

PROTOCOLS = {
    "anthropic": "anthropic_messages",
    "bedrock": "anthropic_messages",
    "bedrock-converse": "bedrock_converse",
    "gemini": "gemini",
    "ollama": "ollama",
    "openai": "openai_chat",
    "openai-responses": "openai_responses",
    "openrouter": "openai_chat",
    "vllm": "openai_chat",
}
"""The providers whose decoders differ, and the files of recorded exchanges of their protocols."""
_MAX_SEEDS = 80
_MAX_SEED_BYTES = 6_000
_PER_SHAPE = 2
_VALUE = re.compile(rb'("type"\s*:\s*"[^"]*"|"[^"]*"\s*:)|"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*')
_KEY = re.compile(rb'"([\w.-]+)"\s*:\s*("(?:[a-z_.]{1,30})"|.)', re.DOTALL)


def requests(protocol: str) -> Iterator[bytes]:
    """Yield the bodies of requests of a protocol."""
    for exchange in handwritten(protocol).values():
        if exchange.request is not None:
            yield corpus.body_of(exchange.request)
    for _, body in corpus.requests(protocol):
        yield corpus.body_of(body)


def responses(protocol: str) -> Iterator[bytes]:
    """Yield the bodies of plain responses of a protocol."""
    for exchange in handwritten(protocol).values():
        if isinstance(exchange.response, dict):
            yield corpus.body_of(exchange.response)
    for recorded in corpus.responses(protocol):
        yield corpus.body_of(recorded["response"])


def streams(protocol: str) -> Iterator[bytes]:
    """Yield the bytes of streams of a protocol, as recorded."""
    for exchange in handwritten(protocol).values():
        if exchange.stream:
            yield exchange.stream_bytes()
    for recorded in corpus.exchanges(protocol):
        if recorded.get("raw_b64"):
            yield base64.b64decode(recorded["raw_b64"])
        elif recorded["sse"]:
            yield recorded["sse"].encode()


def chosen(inputs: Iterable[bytes]) -> list[bytes]:
    """Return the small inputs that together have all keys and types, the smallest first."""
    seen: set[bytes] = set()
    seeds: list[bytes] = []
    for data in sorted(set(inputs), key=len):
        keys = {match[0] for match in _KEY.finditer(data[:_MAX_SEED_BYTES])}
        if len(data) <= _MAX_SEED_BYTES and (keys - seen or not seeds):
            seen |= keys
            seeds.append(data)
    step = max(1, len(seeds) // _MAX_SEEDS)
    return seeds[::step] or [b"{}"]


def shortened(data: bytes, end: bytes) -> bytes:
    """Return a stream with at most some events of each shape; the last ones stay."""
    *frames, rest = data.split(end)
    counts: dict[bytes, int] = {}
    remaining: list[bytes] = []
    for number, frame in enumerate(frames):
        shape = _shape(frame)
        counts[shape] = counts.get(shape, 0) + 1
        if counts[shape] <= _PER_SHAPE or number >= len(frames) - 2:
            remaining.append(frame)
    return end.join([*remaining, rest])


def reduced(streams: Iterable[bytes], end: bytes) -> Iterator[bytes]:
    """Yield the events of each stream that no shorter stream has, with those around them.

    They are read several times faster than whole streams, so most inputs are made of them.
    """
    seen: set[bytes] = set()
    for data in sorted(streams, key=len):
        *frames, rest = data.split(end)
        numbers = {0, len(frames) - 1}
        for number, frame in enumerate(frames):
            shape = _shape(frame)
            if shape not in seen:
                seen.add(shape)
                numbers |= {number - 1, number}
        yield end.join([*(frames[n] for n in sorted(numbers) if 0 <= n < len(frames)), rest])


def _shape(frame: bytes) -> bytes:
    return _VALUE.sub(lambda match: match[1] or b"", frame)


def aws_lines(data: bytes) -> bytes:
    """Return AWS frames as lines of an event name and a payload, which `aws_frames` reverses."""
    parser = EventStreamParser()
    lines = [b"%b|%b\n" % (frame.name.encode(), frame.payload) for frame in parser.feed(data)]
    if isinstance(parser.error, ProviderError) and parser.error.kind:
        lines.append(b'%b|{"message":"%b"}\n' % (parser.error.kind.encode(), b"x"))
    return b"".join(lines)


def aws_frames(lines: bytes) -> bytes:
    """Return lines as AWS frames with valid checksums; events of Claude are in base64."""
    frames: list[bytes] = []
    for line in lines.split(b"\n"):
        if not line:
            continue
        name, _, payload = line.partition(b"|")
        kind = "exception" if name.endswith(b"Exception") else "event"
        headers = {f":{kind}-type": name[:100].decode(errors="replace"), ":message-type": kind}
        content = payload
        if name == b"chunk":
            content = b'{"bytes":"%b"}' % pybase64.b64encode(payload)
        frames.append(encode_event_frame(headers, content))
    return b"".join(frames)


def _chunk_lines(data: bytes) -> bytes:
    """Return server-sent events as the lines of a Claude stream of Bedrock."""
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    return b"".join(b"chunk|%b\n" % line for line in lines)


@cache
def stream_seeds(provider: str) -> list[bytes]:
    """Return shortened streams of a provider; AWS frames as lines."""
    inputs = list(streams(PROTOCOLS[provider]))
    end = b"\n" if provider in ("ollama", "bedrock-converse") else b"\n\n"
    if provider == "bedrock-converse":
        inputs = [aws_lines(data) for data in inputs]
    short = [shortened(data, end) for data in inputs]
    small = list(reduced(short, end))
    if provider == "bedrock":
        short, small = [*map(_chunk_lines, short)], [*map(_chunk_lines, small)]
    return [*chosen(small), *chosen(short)]


def messages() -> list[Message]:
    """Return one message of each kind."""
    call_id = build.tool_id(1)
    return [
        build.system("rules"),
        build.user("why, 世界?", build.image()),
        build.assistant(
            build.thinking(signature="c2ln", issuer="anthropic"),
            "let me **look** at `it`:\n\n```python\nprint(1)\n```\n| a | b |\n|---|---|\n",
            build.opaque(),
            build.call("read", call_id, path="a.txt", lines=[1, 2]),
            metadata=build.provenance(),
        ),
        build.tool("a result\n\x1b[31m", answers=call_id),
        build.assistant("* because\n  1. [x](http://y)\n> quote\n\n# Title\n"),
    ]


def message_seeds() -> list[bytes]:
    """Return messages in the canonical form."""
    return [encode(message) for message in messages()]


def document(name: str) -> bytes:
    """Return a document of a format of interchange."""
    items = build.numbered(*messages()[1:])
    if name == "metis":
        return transcript(items)
    entries = items[-1:] if name == "attocode-response" else items  # it holds one response
    return interchange.dump(name, entries).data


def transcript(items: list[Message]) -> bytes:
    """Return an export of metis."""
    head = b'{"format":1,"session":{"created_at":"2026-01-01T00:00:00Z","id":"sess_42",'
    head += b'"schema_version":1,"updated_at":"2026-01-01T00:00:00Z","workspace_path":"/w"},'
    lines = [encode_entry(entry_of(message)) + b"\n" for message in items]
    return head + b'"type":"session"}\n' + b"".join(lines)


MARKDOWN_SEEDS = [
    b"# Title\n\n**bold**, _em_, `code`, [a link](http://x.y/z) ![i](j)\n\n* one\n* two\n",
    b"```python\ndef f():\n    return 1\n```\n\n> quote\n> more\n\n| a | b |\n|-|:-:|\n| 1 | 2 |\n",
    "世界 \u202e reversed \x1b[31m red\x07\n\n1. one\n2. two\n   - inner\n\n---\n~~x~~\n".encode(),
    b"<think>hidden</think>\n\nA\n===\n\nB\n---\n~~~json\n{}\n~~~\n&amp; &#35; \\* <http://x>\n",
]
HTML_SEEDS = [
    (
        b"<!doctype html><html><head><title>t</title><style>a{}</style></head><body><p>Hello "
        b"<a href='http://x'>y</a><script>if (a < b) {}</script><ul><li>1</ul>&amp;&#x41;</body>"
    ),
    (
        b"<div class=\"a>b\" title='c'>text<!-- comment --><br/><textarea>raw</textarea>"
        b"<![CDATA[x]]><?php x ?></div>"
    ),
]
ARGUMENT_SEEDS = [
    b'{"path": "notes.txt", "n": [1, {"a": null}]}',
    b"{}{}",
    b'{"a":1}{"b":"\\ud800"}',
    b'{"a": {"b": ["x", tr',
]
