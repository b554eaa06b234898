"""Inputs of a fuzz run: seeds whose JSON values, keys, frames and bytes are changed at random.

Most changes leave the JSON valid, so that an input reaches the code behind the parser. The places
of all values are determined once per seed: a change is then a cut of bytes.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

MAX_INPUT = 1_000_000
_AMPLIFIED_BYTES = (20_000, 100_000, 400_000, 900_000)
_MAX_RANDOM_INPUT = 60_000
"""How long an input may become by changes; longer ones are made by repetition only."""
_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[{}\[\]]|-?\d[\d.eE+-]*|true|false|null')
_FRAME_ENDS = (b"\n\n", b"\n")
_VALUES = (
    b"null", b"true", b"false", b"0", b"-1", b"1", b"1.5", b"1e999", b"-1e308",
    b"99999999999999999999", b"9007199254740993", b'""', b'" "', b'"x"', b'"0"', b'"{}"',
    b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b"[]", b"{}", b"[null]", b"[[]]",
    b"[{}]", b'["x"]', b'{"a":1}', b'{"type":null}', b'{"type":"text","text":"x"}',
    b'{"type":"","text":null}', b'[{"type":"text","text":"x"}]', b'{"a":1,"a":2}',
    b'"2026-01-01T00:00:00Z"', b'"0001-01-01T00:00:00+23:59"', b'"aGk="', b'"a=="',
    b'"data:image/png;base64,aGk="', b'"http://[::1"', b"{}{}", b"[" * 40 + b"]" * 40,
    b'{"a":' * 40 + b"1" + b"}" * 40, b"[" * 130 + b"]" * 130, b'{"a":' * 330 + b"1" + b"}" * 330,
    b'[{"content":' * 240 + b"0" + b"}]" * 240, b"[" * 900 + b"]" * 900,
    b"[" * 3000, b'{"a":' * 1200, b'"' + b"x" * 3000 + b'"',
)  # fmt: skip
_PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r\n", b"\n\n", b"\r", b"data: ",
    b"event: ", b"data:", b": \n", b"id: 1\n", b"null", b"-1", b"1e999", b"\xff", b"\xc3",
    b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xf4\x90\x80\x80", b"\\ud800", b"\\udc00", b"\\u0000",
    b"\0", b"\xef\xbb\xbf", b"[DONE]", b"{}" * 50, b"<think>", b"</think>", b"```",
    b"<tool_call>", b"</tool_call>", b"NaN", b"&#x1f;", b"<!--", b"| a |\n|-|\n", b"\x1b[31m",
    b"\xe2\x80\xae", b"* ", b"> ", b"[a](b)", b"\t",
)  # fmt: skip


class Span(NamedTuple):
    """A part of a seed."""

    start: int
    end: int


class Seed:
    """An input that a target reads without an error, with the positions of its parts."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.values: list[Span] = []
        self.keys: list[Span] = []
        self.frames = _frames(data)
        open_brackets: list[int] = []
        for token in _TOKEN.finditer(data):
            first, start, end = data[token.start()], token.start(), token.end()
            if first in b"{[":
                open_brackets.append(start)
            elif first in b"}]":
                if open_brackets:
                    self.values.append(Span(open_brackets.pop(), end))
            elif first == ord('"') and data[end : end + 2].lstrip()[:1] == b":":
                self.keys.append(Span(start, end))
            else:
                self.values.append(Span(start, end))


def _frames(data: bytes) -> list[Span]:
    """Return the places of the events or lines of a stream; none if it is one document."""
    for end in _FRAME_ENDS:
        parts = data.split(end)
        if len(parts) > 2:
            spans: list[Span] = []
            start = 0
            for part in parts[:-1]:
                stop = start + len(part) + len(end)
                spans.append(Span(start, stop))
                start = stop
            return spans
    return []


Pack = Callable[[bytes], bytes]
"""Makes the bytes that a target reads of what is changed: AWS frames of lines, for example."""


Run = Callable[[bytes], None]


class Target(NamedTuple):
    """One function of bytes, the seeds from which inputs are made, and how they are packed."""

    run: Run
    seeds: Callable[[], list[bytes]]
    pack: Pack | None = None


class Mutator:
    """Makes inputs of seeds; the same seed number gives the same inputs."""

    def __init__(self, inputs: Sequence[bytes], seed: int, pack: Pack | None = None) -> None:
        self._seeds = [Seed(data) for data in sorted(inputs, key=len)]
        self._random = random.Random(seed)  # noqa: S311 - inputs that can be made again
        self._pack = pack
        values = {bytes(s.data[a:b]) for s in self._seeds for a, b in s.values if b - a < 400}
        keys = {bytes(s.data[a:b]) for s in self._seeds for a, b in s.keys}
        self._values = [*_VALUES, *sorted(values)]
        self._keys = [b'""', b'"zz"', b'"type"', *sorted(keys)]

    def next(self) -> bytes:
        """Return the next input."""
        chance = self._random
        # The seeds are sorted by size: small ones are read several times faster.
        seed = self._seeds[int(len(self._seeds) * chance.random() ** 3)]
        data = seed.data
        kind = chance.random()
        if kind < 0.75:
            data = self._change_values(seed)
        elif kind < 0.9 and seed.frames:
            data = self._change_frames(seed)
        else:
            data = self._change_bytes(data)
        if chance.random() < 0.15:
            data = self._change_bytes(data)
        data = data[:_MAX_RANDOM_INPUT]
        if self._pack is not None:
            data = self._pack(data)
            if chance.random() < 0.1:
                data = self._change_bytes(data)
        return data[:MAX_INPUT]

    def amplified(self) -> bytes:
        """Return a long input: one part of a seed, repeated, or a nesting of it."""
        chance = self._random
        seed = chance.choice(self._seeds)
        size = chance.choice(_AMPLIFIED_BYTES)
        spans = [*seed.values, *seed.frames, *seed.frames]
        start, end = chance.choice(spans) if spans else (0, len(seed.data))
        part = seed.data[start:end]
        count = max(1, size // max(1, len(part) + 1))
        match chance.randint(0, 5):
            case 0 if part[:1] == b'"' and len(part) > 2:
                piece = chance.choice(
                    (part[1:-1], chance.choice(_PIECES), b"x", b"[", b"\\n", b"{}")
                )
                if b'"' in piece or b"\n" in piece:
                    piece = b"x"
                repeated = b'"' + piece * (size // len(piece)) + b'"'
            case 1:
                repeated = b",".join([part] * count)
            case 2:
                repeated = b"[" + b",".join([part] * count) + b"]"
            case 3:
                members = (b'"k%d":%b' % (n, part) for n in range(min(count, 60_000)))
                repeated = b"{" + b",".join(members) + b"}"
            case 4:
                repeated = chance.choice(_PIECES) * (size // 8)
            case _:
                repeated = part * count
        data = (seed.data[:start] + repeated + seed.data[end:])[: MAX_INPUT - MAX_INPUT // 4]
        return (self._pack(data) if self._pack else data)[:MAX_INPUT]

    def _change_values(self, seed: Seed) -> bytes:
        chance, data = self._random, seed.data
        count = chance.choice((1, 1, 1, 2, 3))
        end_of_rest = len(data) + 1
        spans = seed.values if chance.random() < 0.85 else seed.keys
        if not spans:
            return self._change_bytes(data)
        # From the back, so that the places before a change stay right.
        for span in sorted((chance.choice(spans) for _ in range(count)), reverse=True):
            start, end = span
            if end > end_of_rest:
                continue
            end_of_rest = start
            is_key = spans is seed.keys
            part = chance.choice(self._keys) if is_key else self._replacement(data[start:end])
            data = data[:start] + part + data[end:]
        return data

    def _replacement(self, part: bytes) -> bytes:
        chance = self._random
        match chance.randint(0, 9):
            case 0:
                return b"[" + part + b"]"
            case 1:
                return b'{"%b":%b}' % (chance.choice((b"text", b"content", b"type", b"a")), part)
            case 2:
                return part + b"," + part
            case 3:
                return b'"' + part.replace(b'"', b'\\"') + b'"'
            case 4 if part[:1] == b'"':
                place = chance.randint(1, max(1, len(part) - 1))
                return part[:place] + chance.choice(_PIECES) + part[place:]
            case _:
                return chance.choice(self._values)

    def _change_frames(self, seed: Seed) -> bytes:  # noqa: PLR0911 - a case a change
        chance, data = self._random, seed.data
        start, end = chance.choice(seed.frames)
        match chance.randint(0, 5):
            case 0:
                return data[:start] + data[end:]
            case 1:
                return data[:start] + data[start:end] * chance.choice((2, 3, 20)) + data[end:]
            case 2:
                return data[: chance.choice((start, end))]
            case 3:
                return data[end:]
            case 4:
                other_start, other_end = chance.choice(seed.frames)
                return data[:start] + data[other_start:other_end] + data[end:]
            case _:
                other = chance.choice(self._seeds)
                if not other.frames:
                    return data[:start]
                other_start, other_end = chance.choice(other.frames)
                return data[:start] + other.data[other_start:other_end] + data[start:]

    def _change_bytes(self, data: bytes) -> bytes:
        chance = self._random
        start = chance.randint(0, len(data))
        end = min(len(data), start + chance.choice((0, 1, 1, 4, 40, 400)))
        match chance.randint(0, 3):
            case 0:
                return data[:start] + data[end:]
            case 1:
                return data[:start] + chance.choice(_PIECES) + data[end:]
            case 2:
                return data[:end] + data[start:end] * chance.choice((1, 3, 50)) + data[end:]
            case _:
                return data[:start] + bytes((chance.randint(0, 255),)) + data[start + 1 :]
