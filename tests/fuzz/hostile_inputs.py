"""Hostile inputs of any size for every parser and renderer, by name.

Each case is a function of a number: it prepares an input of that many parts and returns the work of
reading or writing it. The limits of responses do not apply, so that growth is visible.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from build import NOW, assistant, call, tool, ulid, user
from fuzz.seeds import aws_frames, document, transcript
from metis import adapters, interchange
from metis.canonical import Message, MetisError, ToolUseBlock, decode, encode
from metis.canonical.schema.widen import widen_schema
from metis.cli.chat.markdown import MarkdownStream
from metis.cli.chat.turn_parts import call_rows, result_rows
from metis.cli.conversion import print_difference
from metis.cli.message_files import print_problems
from metis.cli.render import first_code, render_conversation
from metis.cli.text import fold, one_line, styled_text
from metis.cli.trace import trace_steps
from metis.events import Event
from metis.events.export import otlp_json
from metis.events.turn_events import LlmCallStarted, TurnStarted
from metis.interchange.export import Conversation
from metis.interchange.writers import WRITERS
from metis.store import SessionRecord
from metis.store.entries import entry_of
from metis.store.transfer import read_transcript, with_new_ids
from metis.streaming import (
    EventStreamParser,
    JsonArrayParser,
    NdjsonParser,
    SseParser,
    parse_arguments,
)
from metis.streaming.arguments import partial_arguments, split_joined_objects
from metis.streaming.limits import NO_LIMITS
from metis.tools.builtin import RunCommand
from metis.tools.caution import cautions
from metis.tools.html_text import html_to_text
from metis.wire.call import RequestContext
from sample_events import recording_bus

Wire = dict[str, Any]
Work = Callable[[], object]
Case = Callable[[int], Work]

CONTEXT = RequestContext(session_id="sess_s", tools=("f",), limits=NO_LIMITS)
_WIDTH = 60
_RECORD = SessionRecord(
    id="sess_42", workspace_path="/w", schema_version=1, created_at=NOW, updated_at=NOW
)


def _suppressed(function: Callable[..., object], *arguments: object) -> Work:
    """Return work that ignores typed errors."""

    def run() -> None:
        with contextlib.suppress(MetisError):
            function(*arguments)

    return run


def _body(wire: object) -> bytes:
    return json.dumps(wire).encode()


# Texts that a parser may rescan at every delimiter.
TEXTS: dict[str, Callable[[int], str]] = {
    "words": lambda n: "word " * n,
    "one word": lambda n: "x" * 4 * n,
    "lines": lambda n: "a line\n" * n,
    "blank lines": lambda n: "\n" * n,
    "brackets": lambda n: "[" * n,
    "links": lambda n: "[a](" * n,
    "images": lambda n: "![a][" * n,
    "stars": lambda n: "*a **b " * n,
    "underscores": lambda n: "_a" * n,
    "ticks": lambda n: "".join("`" * (i % 50 + 1) + "a" for i in range(n // 8 + 1)),
    "fences": lambda n: "```\n" * (n | 1),
    "fences of any length": lambda n: "".join("`" * (i % 90 + 3) + "\n" for i in range(n // 8 + 1)),
    "tildes": lambda n: "~~~ a\n" * (n | 1),
    "quotes": lambda n: "> " * n,
    "quoted lines": lambda n: "> a\n" * n,
    "lists": lambda n: "".join(" " * (i % 200) + "* a\n" for i in range(n // 20 + 1)),
    "pipes": lambda n: "|" * n,
    "table": lambda n: "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * n,
    "wide table": lambda n: "|a" * n + "|\n" + "|-" * n + "|\n",
    "angles": lambda n: "<a " * n,
    "comments": lambda n: "<!--" * n,
    "entities": lambda n: "&#" * n + "&amp" * n,
    "backslashes": lambda n: "\\" * n,
    "controls": lambda n: "\x1b[31m\x07" * n,
    "wide characters": lambda n: "世" * n,
    "accents": lambda n: "e\u0301" * n,
    "hashes": lambda n: "#" * n,
    "dashes": lambda n: "-\n" * n,
    "references": lambda n: "[a]: b\n" * n,
    "spaces": lambda n: " " * n + "x",
    "tabs": lambda n: "\t" * n,
    "think tags": lambda n: "<think>" * n,
    "call tags": lambda n: "<tool_call>" * n,
    "braces": lambda n: '{"name":"f","arguments":' * n,
}


ARGUMENTS: dict[str, Callable[[int], str]] = {
    "empty objects": lambda n: "{}" * n,
    "objects": lambda n: '{"a":1} ' * n,
    "brackets": lambda n: "[" * n,
    "open objects": lambda n: '{"a":' * n,
    "quotes": lambda n: '{"a":"' + '\\"' * n,
    "backslashes": lambda n: '{"a":"' + "\\" * n,
    "marks": lambda n: '"' * (n | 1),
    "commas": lambda n: '{"a":1' + "," * n,
    "digits": lambda n: '{"a":' + "1" * n,
    "values": lambda n: '{"a":[' + "1," * n,
}


def _argument_cases() -> Iterator[tuple[str, Case]]:
    for parse in (parse_arguments, partial_arguments, split_joined_objects):
        for kind, text_of in ARGUMENTS.items():
            yield f"{parse.__name__}: {kind}", lambda n, p=parse, t=text_of: partial(p, t(n))


def _frame_cases() -> Iterator[tuple[str, Case]]:
    def feed(make: Callable[..., Any], piece: bytes, n: int) -> None:
        parser = make(NO_LIMITS)
        for _ in range(n):
            parser.feed(piece)
        parser.finish()

    pieces = (b"data: x", b"data: x\n", b"\n", b"\r", b"[{", b'"', b"{},", b"\\", b": x\n", b"x")
    for make in (SseParser, NdjsonParser, JsonArrayParser):
        for piece in pieces:
            yield (
                f"{make.__name__}: {piece.decode()!r}",
                lambda n, m=make, p=piece: partial(feed, m, p, n),
            )
    frame = aws_frames(b"contentBlockDelta|" + b"x" * 5000)
    for size in (1, 100):
        yield (
            f"EventStreamParser: frames in pieces of {size}",
            lambda n, s=size: partial(_feed_cut, frame * (1 + n * s // 5000), s),
        )


def _feed_cut(data: bytes, size: int) -> None:
    parser = EventStreamParser(NO_LIMITS)
    for start in range(0, len(data), size):
        parser.feed(data[start : start + size])
    parser.finish()


def _sse(events: list[Wire]) -> list[bytes]:
    return [b"data: %b\n\n" % _body(event) for event in events]


def _chat(delta: Wire, **choice: Any) -> Wire:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, **choice}]}


def _chat_call(index: int, arguments: str, **fields: Any) -> Wire:
    function = {"name": "f", "arguments": arguments}
    return _chat({"tool_calls": [{"index": index, "function": function, **fields}]})


def _gemini(*parts: Wire, **fields: Any) -> Wire:
    return {"candidates": [{"content": {"parts": list(parts)}, **fields}]}


def _gemini_piece(path: str, text: str) -> Wire:
    piece = {"jsonPath": path, "stringValue": text, "willContinue": True}
    return _gemini({"functionCall": {"name": "f", "partialArgs": [piece], "willContinue": True}})


def _block(index: int, block: Wire) -> Wire:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, delta: Wire) -> Wire:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _item(index: int, item: Wire) -> Wire:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


_START: Wire = {"type": "message_start", "message": {"id": "m"}}
_TEXT: Wire = {"type": "text", "text": "x"}
_CALL: Wire = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
_REASONING: Wire = {"type": "reasoning.text", "index": 0, "text": "x" * 20}

# The events of streams, by provider and kind.
STREAMS: dict[tuple[str, str], Callable[[int], list[Wire]]] = {
    ("anthropic", "texts"): lambda n: (
        [_START, _block(0, _TEXT)] + [_delta(0, {"type": "text_delta", "text": "x" * 20})] * n
    ),
    ("anthropic", "blocks"): lambda n: [_START, *(_block(i, _TEXT) for i in range(n))],
    ("anthropic", "calls"): lambda n: (
        [_START] + [_block(i, {**_CALL, "id": f"t{i}"}) for i in range(n)]
    ),
    ("anthropic", "arguments"): lambda n: (
        [_START, _block(0, _CALL)]
        + [_delta(0, {"type": "input_json_delta", "partial_json": '{"a":"}'})] * n
    ),
    ("anthropic", "other deltas"): lambda n: (
        [_START, _block(0, _TEXT)]
        + [_delta(0, {"type": "other", f"k{i}": "x", "data": "y" * 20}) for i in range(n)]
    ),
    ("anthropic", "citations"): lambda n: (
        [_START, _block(0, _TEXT)]
        + [_delta(0, {"type": "citations_delta", "citation": {"type": "page", "n": 1}})] * n
    ),
    ("anthropic", "usages"): lambda n: (
        [_START] + [{"type": "message_delta", "delta": {}, "usage": {f"k{i}": i}} for i in range(n)]
    ),
    ("anthropic", "deltas without an index"): lambda n: (
        [_START]
        + [_block(i, _TEXT) for i in range(n)]
        + [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}] * n
    ),
    ("openai", "texts"): lambda n: [_chat({"content": "x" * 20})] * n,
    ("openai", "empty texts"): lambda n: [_chat({"content": ""}), _chat({})] * n,
    ("openai", "parts"): lambda n: [_chat({"content": [{"type": "text", "text": "x" * 20}]})] * n,
    ("openai", "parts with keys"): lambda n: [
        _chat({"content": [{"type": "text", "text": "x", f"k{i}": 1}]}) for i in range(n)
    ],
    ("openai", "thinking parts"): lambda n: (
        [
            _chat(
                {
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "x" * 20}]}
                    ]
                }
            )
        ]
        * n
    ),
    ("openai", "parts of two kinds"): lambda n: (
        [_chat({"content": [{"type": "text", "text": "x"}, {"type": "thinking", "thinking": "y"}]})]
        * n
    ),
    ("openai", "details"): lambda n: [_chat({"reasoning_details": [_REASONING]})] * n,
    ("openai", "many details"): lambda n: [
        _chat({"reasoning_details": [{**_REASONING, "index": i}]}) for i in range(n)
    ],
    ("openai", "audio"): lambda n: [_chat({"audio": {"data": "eA==", "transcript": "x" * 20}})] * n,
    ("openai", "lists"): lambda n: [
        _chat({"annotations": [{"index": i, "a": i}]}) for i in range(n)
    ],
    ("openai", "lists without an index"): lambda n: [_chat({"annotations": [{"a": 1}]})] * n,
    ("openai", "keys of one item"): lambda n: [
        _chat({"annotations": [{"index": 0, f"k{i}": i}]}) for i in range(n)
    ],
    ("openai", "unknown texts"): lambda n: [_chat({"other": "x" * 20})] * n,
    ("openai", "probabilities"): lambda n: (
        [_chat({"content": "x"}, logprobs={"content": [{"token": "x", "logprob": 0.1}]})] * n
    ),
    ("openai", "calls"): lambda n: [_chat_call(i, "{}", id=f"t{i}") for i in range(n)],
    ("openai", "calls at one index"): lambda n: [_chat_call(0, "{}", id=f"t{i}") for i in range(n)],
    ("openai", "calls without an id"): lambda n: [_chat_call(i, '{"a":') for i in range(n)],
    ("openai", "arguments"): lambda n: [_chat_call(0, '{"a":"}', id="t")] * n,
    ("openai", "fragments beside an open call"): lambda n: (
        [_chat_call(0, '{"a":', id="a")] + [_chat_call(1, "{", id="b")] * n
    ),
    ("openai", "fragments of many calls"): lambda n: [
        _chat_call(i % 500, "x", id=f"t{i % 500}") for i in range(n)
    ],
    ("openai", "choices"): lambda n: [
        {"id": "c", "choices": [{"index": i, "delta": {"content": "x"}}]} for i in range(n)
    ],
    ("openai", "usages"): lambda n: [{**_chat({}), "usage": {f"k{i}": i}} for i in range(n)],
    ("openai", "keys of chunks"): lambda n: [{**_chat({}), f"k{i}": i} for i in range(n)],
    ("openai-responses", "texts"): lambda n: (
        [_item(0, {"type": "message", "id": "m", "role": "assistant"})]
        + [{"type": "response.output_text.delta", "output_index": 0, "delta": "x" * 20}] * n
    ),
    ("openai-responses", "parts"): lambda n: [
        {"type": "response.output_text.delta", "output_index": 0, "content_index": i, "delta": "x"}
        for i in range(n)
    ],
    ("openai-responses", "items"): lambda n: [
        _item(i, {"type": "message", "id": f"m{i}", "role": "assistant"}) for i in range(n)
    ],
    ("openai-responses", "final items with other ids"): lambda n: [
        *(_item(i, {"type": "message", "id": f"m{i}", "role": "assistant"}) for i in range(n)),
        {
            "type": "response.completed",
            "response": {
                "status": "completed",
                "output": [
                    {"type": "message", "id": f"n{i}", "role": "assistant", "content": []}
                    for i in range(n)
                ],
            },
        },
    ],
    ("openai-responses", "items that end in reverse"): lambda n: [
        *(_item(i, {"type": "message", "id": f"m{i}", "role": "assistant"}) for i in range(n)),
        *(
            {
                "type": "response.output_item.done",
                "output_index": n - i - 1,
                "item": {"type": "message", "id": f"m{n - i - 1}", "content": []},
            }
            for i in range(n)
        ),
    ],
    ("openai-responses", "calls"): lambda n: [
        _item(i, {"type": "function_call", "id": f"i{i}", "call_id": f"t{i}", "name": "f"})
        for i in range(n)
    ],
    ("openai-responses", "arguments"): lambda n: (
        [_item(0, {"type": "function_call", "id": "i", "call_id": "t", "name": "f"})]
        + [
            {
                "type": "response.function_call_arguments.delta",
                "output_index": 0,
                "delta": '{"a":"}',
            }
        ]
        * n
    ),
    ("openai-responses", "summaries"): lambda n: [
        {
            "type": "response.reasoning_summary_text.delta",
            "output_index": 0,
            "summary_index": i,
            "delta": "x",
        }
        for i in range(n)
    ],
    ("openai-responses", "annotations"): lambda n: (
        [
            {
                "type": "response.output_text.annotation.added",
                "output_index": 0,
                "annotation": {"type": "url_citation", "url": "u"},
            }
        ]
        * n
    ),
    ("openai-responses", "snapshots"): lambda n: [
        {"type": "response.in_progress", "response": {f"k{i}": i}} for i in range(n)
    ],
    ("gemini", "texts"): lambda n: [_gemini({"text": "x" * 20})] * n,
    ("gemini", "texts and thoughts"): lambda n: (
        [_gemini({"text": "x"}, {"text": "y", "thought": True})] * n
    ),
    ("gemini", "calls"): lambda n: [
        _gemini({"functionCall": {"id": f"t{i}", "name": "f", "args": {}}}) for i in range(n)
    ],
    ("gemini", "calls without an id"): lambda n: (
        [_gemini({"functionCall": {"name": "f", "args": {}}})] * n
    ),
    ("gemini", "pieces of one argument"): lambda n: [_gemini_piece("$.a", "x" * 20)] * n,
    ("gemini", "pieces of many arguments"): lambda n: [
        _gemini_piece(f"$.a[{i}]", "x") for i in range(n)
    ],
    ("gemini", "metadata"): lambda n: [_gemini({"text": "x"}, **{f"k{i}": i}) for i in range(n)],
    ("ollama", "texts"): lambda n: [{"model": "m", "message": {"content": "x" * 20}}] * n,
    ("ollama", "thinking and texts"): lambda n: (
        [
            {"model": "m", "message": {"thinking": "x"}},
            {"model": "m", "message": {"content": "x"}},
        ]
        * n
    ),
    ("ollama", "calls"): lambda n: (
        [{"model": "m", "message": {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}}]
        * n
    ),
    ("ollama", "keys"): lambda n: [{"model": "m", "message": {}, f"k{i}": i} for i in range(n)],
    ("bedrock-converse", "texts"): lambda n: (
        [{"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "x" * 20}}}] * n
    ),
    ("bedrock-converse", "blocks"): lambda n: [
        {"contentBlockDelta": {"contentBlockIndex": i, "delta": {"text": "x"}}} for i in range(n)
    ],
    ("bedrock-converse", "calls"): lambda n: [
        {
            "contentBlockStart": {
                "contentBlockIndex": i,
                "start": {"toolUse": {"toolUseId": f"t{i}", "name": "f"}},
            }
        }
        for i in range(n)
    ],
    ("bedrock-converse", "arguments"): lambda n: (
        [{"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"name": "f"}}}}]
        + [{"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": '{"a}'}}}}]
        * n
    ),
    ("bedrock-converse", "reasoning"): lambda n: (
        [
            {
                "contentBlockDelta": {
                    "contentBlockIndex": 0,
                    "delta": {"reasoningContent": {"text": "x" * 20}},
                }
            }
        ]
        * n
    ),
}


def _chunks(name: str, events: list[Wire]) -> list[bytes]:
    if name == "ollama":
        return [_body(event) + b"\n" for event in events]
    if name == "bedrock-converse":
        lines = ((key, value) for event in events for key, value in event.items())
        return [aws_frames(b"%b|%b" % (key.encode(), _body(value))) for key, value in lines]
    return _sse(events)


def _read_stream(name: str, chunks: list[bytes]) -> None:
    decoder = adapters.get(name).stream_decoder(CONTEXT)
    for chunk in chunks:
        decoder.feed(chunk)
    decoder.finish()


def _stream_cases() -> Iterator[tuple[str, Case]]:
    for (name, kind), events_of in STREAMS.items():
        yield (
            f"{name} stream: {kind}",
            lambda n, a=name, e=events_of: partial(_read_stream, a, _chunks(a, e(n))),
        )
    for kind, text_of in TEXTS.items():
        # The text of a host that marks thinking and calls with tags.
        yield (
            f"vllm stream: {kind}",
            lambda n, t=text_of: partial(
                _read_stream, "vllm", _sse([_chat({"content": c}) for c in _cut(t(n))])
            ),
        )


def _cut(text: str) -> list[str]:
    return [text[start : start + 40] for start in range(0, len(text), 40)]


def _chat_calls(n: int) -> list[Wire]:
    return [
        {"id": f"t{i}", "type": "function", "function": {"name": f"f{i}", "arguments": "{}"}}
        for i in range(n)
    ]


# The bodies of plain responses, by provider and kind.
RESPONSES: dict[tuple[str, str], Callable[[int], Wire]] = {
    ("anthropic", "blocks"): lambda n: {"id": "m", "type": "message", "content": [_TEXT] * n},
    ("anthropic", "calls"): lambda n: {"id": "m", "type": "message", "content": [_CALL] * n},
    ("anthropic", "unknown blocks"): lambda n: {
        "id": "m",
        "type": "message",
        "content": [{"type": "x", "n": i} for i in range(n)],
    },
    ("anthropic", "keys"): lambda n: {
        "id": "m",
        "type": "message",
        "content": [],
        **{f"k{i}": i for i in range(n)},
    },
    ("openai", "calls"): lambda n: {"choices": [{"message": {"tool_calls": _chat_calls(n)}}]},
    ("openai", "parts"): lambda n: {"choices": [{"message": {"content": [_TEXT] * n}}]},
    ("openai", "other parts"): lambda n: {
        "choices": [{"message": {"content": [{"type": "x", "n": i} for i in range(n)]}}]
    },
    ("openai", "choices"): lambda n: {
        "choices": [{"index": i, "message": {"content": "x"}} for i in range(n)]
    },
    ("openai", "details"): lambda n: {
        "choices": [{"message": {"content": "x", "reasoning_details": [_REASONING] * n}}]
    },
    ("openai-responses", "items"): lambda n: {
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", **_TEXT}]}
        ]
        * n
    },
    ("openai-responses", "calls"): lambda n: {
        "output": [
            {"type": "function_call", "call_id": f"t{i}", "name": "f", "arguments": "{}"}
            for i in range(n)
        ]
    },
    ("openai-responses", "reasoning"): lambda n: {
        "output": [{"type": "reasoning", "id": f"r{i}", "summary": []} for i in range(n)]
    },
    ("gemini", "parts"): lambda n: {"candidates": [{"content": {"parts": [{"text": "x"}] * n}}]},
    ("gemini", "calls"): lambda n: {
        "candidates": [
            {"content": {"parts": [{"functionCall": {"name": f"f{i}"}} for i in range(n)]}}
        ]
    },
    ("gemini", "candidates"): lambda n: {
        "candidates": [{"content": {"parts": [{"text": "x"}]}}] * n
    },
    ("ollama", "calls"): lambda n: {
        "message": {
            "tool_calls": [{"function": {"name": f"f{i}", "arguments": {}}} for i in range(n)]
        }
    },
    ("bedrock-converse", "blocks"): lambda n: {
        "output": {"message": {"role": "assistant", "content": [{"text": "x"}] * n}}
    },
    ("bedrock-converse", "calls"): lambda n: {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"toolUse": {"toolUseId": f"t{i}", "name": "f", "input": {}}} for i in range(n)
                ],
            }
        }
    },
}


def _read_response(name: str, data: bytes) -> None:
    adapter = adapters.get(name)
    message = adapter.from_wire_response(data, CONTEXT)
    stored = decode(encode(message))
    adapter.to_wire_response(stored, CONTEXT)


def _response_cases() -> Iterator[tuple[str, Case]]:
    for (name, kind), body_of in RESPONSES.items():
        yield (
            f"{name} response: {kind}",
            lambda n, a=name, b=body_of: _suppressed(_read_response, a, _body(b(n))),
        )
    for kind, text_of in TEXTS.items():
        yield (
            f"vllm response: {kind}",
            lambda n, t=text_of: _suppressed(
                _read_response, "vllm", _body({"choices": [{"message": {"content": t(n)}}]})
            ),
        )


def _chat_request(*messages: Wire, **fields: Any) -> Wire:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}, *messages], **fields}


# The bodies of requests, by provider and kind.
REQUESTS: dict[tuple[str, str], Callable[[int], Wire]] = {
    ("openai", "calls"): lambda n: _chat_request(
        {"role": "assistant", "content": None, "tool_calls": _chat_calls(n)},
        *({"role": "tool", "tool_call_id": f"t{n - i - 1}", "content": "r"} for i in range(n)),
    ),
    ("openai", "results of no call"): lambda n: _chat_request(
        *({"role": "tool", "tool_call_id": f"t{i}", "content": "r"} for i in range(n))
    ),
    ("openai", "messages"): lambda n: _chat_request(
        *({"role": ("user", "assistant")[i % 2], "content": "x"} for i in range(n))
    ),
    ("openai", "system messages"): lambda n: _chat_request(
        *({"role": "system", "content": f"x{i}"} for i in range(n))
    ),
    ("openai", "other parts"): lambda n: _chat_request(
        {"role": "user", "content": [{"type": "x", "n": i} for i in range(n)]}
    ),
    ("openai", "tools"): lambda n: _chat_request(
        tools=[
            {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}}
            for i in range(n)
        ]
    ),
    ("openai", "properties"): lambda n: _chat_request(
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "parameters": {
                        "type": "object",
                        "properties": {f"p{i}": {"type": "string"} for i in range(n)},
                        "required": [f"p{i}" for i in range(n)],
                    },
                },
            }
        ]
    ),
    ("anthropic", "calls"): lambda n: _chat_request(
        {"role": "assistant", "content": [{**_CALL, "id": f"t{i}"} for i in range(n)]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": f"t{n - i - 1}", "content": "r"}
                for i in range(n)
            ],
        },
        max_tokens=1,
    ),
    ("anthropic", "blocks"): lambda n: _chat_request(
        {"role": "user", "content": [_TEXT] * n}, max_tokens=1
    ),
    ("anthropic", "marks"): lambda n: _chat_request(
        {"role": "user", "content": [{**_TEXT, "cache_control": {"type": "ephemeral"}}] * n},
        max_tokens=1,
    ),
    ("openai-responses", "reasoning"): lambda n: {
        "model": "m",
        "input": [
            {"type": "reasoning", "id": f"r{i}", "summary": [], "encrypted_content": "e"}
            for i in range(n)
        ],
    },
    ("openai-responses", "calls"): lambda n: {
        "model": "m",
        "input": [
            *(
                {"type": "function_call", "call_id": f"t{i}", "name": "f", "arguments": "{}"}
                for i in range(n)
            ),
            *(
                {"type": "function_call_output", "call_id": f"t{n - i - 1}", "output": "r"}
                for i in range(n)
            ),
        ],
    },
    ("gemini", "names in reverse"): lambda n: {
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
    ("ollama", "names in reverse"): lambda n: _chat_request(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": f"f{i}", "arguments": {}}} for i in range(n)],
        },
        *({"role": "tool", "content": "r", "tool_name": f"f{n - i - 1}"} for i in range(n)),
    ),
    ("bedrock-converse", "calls"): lambda n: {
        "messages": [
            {"role": "user", "content": [{"text": "x"}]},
            {
                "role": "assistant",
                "content": [
                    {"toolUse": {"toolUseId": f"t{i}", "name": "f", "input": {}}} for i in range(n)
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": f"t{n - i - 1}", "content": [{"text": "r"}]}}
                    for i in range(n)
                ],
            },
        ]
    },
}


def _read_request(name: str, data: bytes) -> None:
    adapter = adapters.get(name)
    request = adapter.from_wire_request(data, CONTEXT)
    adapter.to_wire(request.messages, request.tools, request.options)
    other = adapters.get("gemini" if name == "anthropic" else "anthropic")
    other.to_wire(request.messages, request.tools)


def _request_cases() -> Iterator[tuple[str, Case]]:
    for (name, kind), body_of in REQUESTS.items():
        yield (
            f"{name} request: {kind}",
            lambda n, a=name, b=body_of: _suppressed(_read_request, a, _body(b(n))),
        )
    large = REQUESTS["anthropic", "blocks"]
    yield "diff", lambda n: partial(_show_difference, _body(large(n)))
    repeated = REQUESTS["anthropic", "calls"]
    yield "diff of calls", lambda n: partial(_show_difference, _body(repeated(n)))


def _show_difference(data: bytes) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        print_difference(io.BytesIO(data), "openai", "gemini", from_name="anthropic", json=False)


def _conversation(n: int) -> list[Message]:
    messages: list[Message] = []
    for i in range(0, n, 3):
        call_id = f"tu_{ulid(i + 1)}"
        messages += (
            user("x", id=ulid(3 * i + 1)),
            assistant("y", call("f", call_id), id=ulid(3 * i + 2)),
            tool("r", answers=call_id, id=ulid(3 * i + 3)),
        )
    return messages


def _import(name: str, data: bytes) -> None:
    with contextlib.suppress(MetisError):
        interchange.detect(data)
    if name == "metis":
        with_new_ids(read_transcript(data.splitlines()))
    else:
        interchange.load(name, data)


def _document_of(name: str, messages: list[Message]) -> bytes:
    if name == "metis":
        return transcript(messages)
    return interchange.dump(name, messages[-2:] if name == "attocode-response" else messages).data


def _import_cases() -> Iterator[tuple[str, Case]]:
    for name in ("metis", *interchange.formats()):
        if name != "attocode-response":
            yield (
                f"import {name}: messages",
                lambda n, f=name: _suppressed(_import, f, _document_of(f, _conversation(n))),
            )
        text = document(name)
        damages: dict[str, Callable[[int, bytes], bytes]] = {
            "brackets": lambda n, d: d.replace(b'"because', b"[" * n, 1) if b'"because' in d else d,
            "deep arrays": lambda n, d: d[:-3] + b"[" * n + d[-3:],
            "repeated document": lambda n, d: d * (n // 40 + 1),
            "quotation marks": lambda n, d: d + b'"' * n,
            "lines": lambda n, d: b"{}\n" * n + d,
            "keys": lambda n, d: d.replace(
                b"{", b"{" + b"".join(b'"k%d":%d,' % (i, i) for i in range(n)), 1
            ),
            "items": lambda n, d: b"[" + b"{}," * n + b"{}]" + d[:0],
            "spaces": lambda n, d: d + b" " * n + b"\n" * n,
        }
        for kind, damage in damages.items():
            yield (
                f"import {name}: {kind}",
                lambda n, f=name, d=damage, t=text: _suppressed(_import, f, d(n, t)),
            )
    files: dict[str, Callable[[int], bytes]] = {
        "lines": lambda n: b"\n".join(encode(message) for message in _conversation(n)),
        "array": lambda n: b"[" + b",\n".join(map(encode, _conversation(n))) + b"]",
        "empty objects": lambda n: b"[" + b"{},\n" * n + b"{}]",
        "problems": lambda n: _body({"content": [{"type": "text", "text": i} for i in range(n)]}),
        "brackets": lambda n: b"[" * n,
    }
    for kind, data_of in files.items():
        yield f"message file: {kind}", lambda n, d=data_of: partial(_validate, d(n))


def _validate(data: bytes) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        print_problems(io.BytesIO(data), profile="strict", single=False)


def _show(messages: list[Message]) -> None:
    for text in render_conversation(messages):
        styled_text(text, has_colour=True)
    for message in messages:
        result_rows(message, _WIDTH)
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                call_rows(block, _WIDTH)


def _draw_markdown(text: str) -> None:
    stream = MarkdownStream()
    for start in range(0, len(text), 2000):
        stream.feed(text[start : start + 2000], _WIDTH)
        stream.tail(_WIDTH)
    stream.end(_WIDTH)


def _trace(messages: list[Message]) -> None:
    for step in trace_steps(map(entry_of, messages)):
        styled_text("".join(step.text(_WIDTH)), has_colour=False)


def _written(text: str) -> list[Message]:
    arguments = {"path": text, "n": [text[:50]] * (len(text) // 50)}
    return [
        user(text, id=ulid(1)),
        assistant(text, call("f", "tu_1", **arguments), id=ulid(2)),
        tool(text, answers="tu_1", id=ulid(3)),
    ]


def _renderer_cases() -> Iterator[tuple[str, Case]]:
    writers: dict[str, Callable[[list[Message]], object]] = {
        name: lambda messages, write=write: write(Conversation(_RECORD, messages))
        for name, write in WRITERS.items()
    }
    for name in interchange.formats():
        writers[name] = partial(interchange.dump, name)
    writers |= {"show": _show, "trace": _trace}
    for name, write in writers.items():
        if name != "attocode-response":
            yield (
                f"write {name}: messages",
                lambda n, w=write: _suppressed(w, _conversation(n)),
            )
        if name in ("html", "markdown", "show", "trace", "klaude-code"):
            for kind, text_of in TEXTS.items():
                yield (
                    f"write {name}: {kind}",
                    lambda n, w=write, t=text_of: _suppressed(w, _written(t(n))),
                )
    for kind, text_of in TEXTS.items():
        yield f"chat: {kind}", lambda n, t=text_of: partial(_draw_markdown, t(n))
        yield f"fold: {kind}", lambda n, t=text_of: partial(_fold, t(n))
        yield f"web page: {kind}", lambda n, t=text_of: partial(html_to_text, t(n))


def _fold(text: str) -> None:
    one_line(text, _WIDTH)
    first_code(text)
    for line in text.split("\n")[:200]:
        fold(line, _WIDTH)
    styled_text(text, has_colour=True)


PAGES: dict[str, Callable[[int], str]] = {
    "unclosed tags": lambda n: "<p" * n,
    "attributes": lambda n: "<a " + "b=c " * n,
    "quoted values": lambda n: '<a b="' * n,
    "single quotes": lambda n: "<a b='x" * n,
    "links": lambda n: '<a href="http://x' * n,
    "scripts": lambda n: "<script>" * n,
    "titles": lambda n: "<title>" * n + "</titl" * n,
    "hidden": lambda n: "<svg>" * n + "</template>" * n,
    "comments": lambda n: "<!-- -" * n,
    "declarations": lambda n: "<!a " * n,
    "numbers": lambda n: "&#" + "1" * n,
    "names": lambda n: "&" + "a" * n,
    "end tags": lambda n: "</" * n,
    "textareas": lambda n: "<textarea>" * n,
    "equal signs": lambda n: "<a " + "=" * n,
    "spaces in a tag": lambda n: "<a =" + " " * n,
    "href": lambda n: "<a " + "href= " * n + ">",
}


def _page_cases() -> Iterator[tuple[str, Case]]:
    for kind, page_of in PAGES.items():
        yield f"web page: {kind}", lambda n, p=page_of: partial(html_to_text, p(n))


COMMANDS: dict[str, str] = {
    "pipes": "| ",
    "downloads": "curl -o x;",
    "variables": "X=1 $X ",
    "patterns": "A*S.md {a,b} ",
    "substitutions": "$(` ",
    "settings": "git config a.b.c ",
    "quotes": "'\\\n",
}


def _command_of(text: str) -> ToolUseBlock:
    return ToolUseBlock("tu_1", "run_command", {"command": text})


def _references(count: int) -> dict[str, Any]:
    chain = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    return {"type": "object", "properties": {"p": {"$ref": "#/$defs/a0"}}, "$defs": chain}


def _causes(count: int) -> list[Event]:
    """Return a turn of many calls, each of which is the cause of the next."""
    bus, emitted = recording_bus()
    cause = bus.emit(TurnStarted(user_message_hash="h", estimated_input_tokens=9), turn_id="t")
    ask = LlmCallStarted(model="m", provider="p", request_id="r")
    for _ in range(count // 8):
        cause = bus.emit(ask, turn_id="t", parent=cause)
    return emitted


def _tool_cases() -> Iterator[tuple[str, Case]]:
    definition = RunCommand().definition
    for kind, unit in COMMANDS.items():
        yield (
            f"command: {kind}",
            lambda n, u=unit: partial(cautions, _command_of(u * n), definition, None),
        )
    yield "schema: references", lambda n: partial(widen_schema, _references(n))
    yield "otlp: causes", lambda n: partial(otlp_json, _causes(n))


CASES: dict[str, Case] = dict(
    (
        *_argument_cases(),
        *_frame_cases(),
        *_stream_cases(),
        *_response_cases(),
        *_request_cases(),
        *_import_cases(),
        *_renderer_cases(),
        *_page_cases(),
        *_tool_cases(),
    )
)
