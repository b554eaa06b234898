"""A response that exceeds a limit ends with a typed error that has the partial message."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metis import adapters
from metis.canonical import Message, MessageStatus, ToolUseBlock
from metis.canonical.errors import ResponseLimitError
from metis.streaming import StreamError, StreamEvent, StreamLimits, ToolUseEnd, ToolUseStart
from metis.streaming.aws_event_stream import encode_event_frame
from metis.streaming.events import provider_error
from metis.transport import Limits
from metis.wire.call import RequestContext

Wire = dict[str, Any]


def sse(wire: Wire) -> bytes:
    return b"data: %b\n\n" % json.dumps(wire).encode()


def frame(name: str, wire: Wire) -> bytes:
    headers = {":message-type": "event", ":event-type": name}
    return encode_event_frame(headers, json.dumps(wire).encode())


class Provider:
    """How one protocol writes the parts of a stream."""

    def __init__(
        self,
        start: bytes,
        text: Callable[[str], bytes],
        call: Callable[[int], bytes],
        arguments: Callable[[str], bytes] | None,
    ) -> None:
        self.start, self.text, self.call, self.arguments = start, text, call, arguments


def _anthropic_block(index: int, block: Wire) -> bytes:
    return sse({"type": "content_block_start", "index": index, "content_block": block})


def _anthropic_delta(index: int, delta: Wire) -> bytes:
    return sse({"type": "content_block_delta", "index": index, "delta": delta})


def _chat(delta: Wire) -> bytes:
    return sse({"id": "c", "choices": [{"index": 0, "delta": delta}]})


def _gemini(part: Wire) -> bytes:
    return sse({"candidates": [{"content": {"parts": [part]}}]})


def _ollama(message: Wire) -> bytes:
    return json.dumps({"model": "m", "message": message, "done": False}).encode() + b"\n"


def _item(index: int, item: Wire) -> bytes:
    return sse({"type": "response.output_item.added", "output_index": index, "item": item})


PROVIDERS = {
    "anthropic": Provider(
        sse({"type": "message_start", "message": {"id": "m"}})
        + _anthropic_block(0, {"type": "text", "text": ""}),
        lambda text: _anthropic_delta(0, {"type": "text_delta", "text": text}),
        lambda n: _anthropic_block(
            n, {"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}}
        ),
        lambda text: _anthropic_delta(1, {"type": "input_json_delta", "partial_json": text}),
    ),
    "openai": Provider(
        _chat({"role": "assistant", "content": "a"}),
        lambda text: _chat({"content": text}),
        lambda n: _chat({"tool_calls": [{"index": n, "id": f"t{n}", "function": {"name": "f"}}]}),
        lambda text: _chat({"tool_calls": [{"index": 1, "function": {"arguments": text}}]}),
    ),
    "openai-responses": Provider(
        sse({"type": "response.created", "response": {"id": "r"}})
        + _item(0, {"type": "message", "id": "m0", "role": "assistant"}),
        lambda text: sse({"type": "response.output_text.delta", "output_index": 0, "delta": text}),
        lambda n: _item(
            n, {"type": "function_call", "id": f"i{n}", "call_id": f"t{n}", "name": "f"}
        ),
        lambda text: sse(
            {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": text}
        ),
    ),
    "gemini": Provider(
        _gemini({"text": "a"}),
        lambda text: _gemini({"text": text}),
        lambda n: _gemini({"functionCall": {"id": f"t{n}", "name": "f", "args": {}}}),
        None,
    ),
    "ollama": Provider(
        _ollama({"role": "assistant", "content": "a"}),
        lambda text: _ollama({"content": text}),
        lambda _: _ollama({"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}),
        None,
    ),
    "bedrock-converse": Provider(
        frame("messageStart", {"role": "assistant"}),
        lambda text: frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}}),
        lambda n: frame(
            "contentBlockStart",
            {"contentBlockIndex": n, "start": {"toolUse": {"toolUseId": f"t{n}", "name": "f"}}},
        ),
        lambda text: frame(
            "contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": text}}}
        ),
    ),
}
IN_PIECES = [name for name, provider in PROVIDERS.items() if provider.arguments is not None]


def read(name: str, chunks: Iterator[bytes], **limits: int) -> list[StreamEvent]:
    """Feed chunks until the stream ends by itself; the number of chunks is bounded."""
    context = RequestContext(session_id="sess_t", limits=StreamLimits(**limits))
    decoder = adapters.get(name).stream_decoder(context)
    events: list[StreamEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
        if events and isinstance(events[-1], StreamError):
            assert decoder.feed(chunk) == []
            assert decoder.finish() == []
            return events
    raise AssertionError("the stream did not end")


def failed(events: list[StreamEvent], name: str) -> StreamError:
    """Return the end event of a stream that exceeded a limit."""
    end = events[-1]
    assert isinstance(end, StreamError)
    assert end.error_class == "ResponseLimitError"
    assert not end.is_retryable
    assert isinstance(provider_error(end, name), ResponseLimitError)
    assert end.message is not None
    assert end.message.metadata.status is MessageStatus.ERROR
    return end


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("limit", ["body_bytes", "events", "text_bytes"])
def test_endless_text_is_refused(name: str, limit: str) -> None:
    provider = PROVIDERS[name]
    chunks = iter([provider.start, *[provider.text("word ") for _ in range(3000)]])
    end = failed(read(name, chunks, **{limit: 2000}), name)
    assert "2,000" in end.text
    assert end.message is not None
    assert "word word" in str(end.message.content)


@pytest.mark.parametrize("name", PROVIDERS)
def test_endless_calls_are_refused(name: str) -> None:
    provider = PROVIDERS[name]
    chunks = iter([provider.start, *[provider.call(n) for n in range(1, 100)]])
    events = read(name, chunks, calls=20)
    end = failed(events, name)
    assert "20 tool calls" in end.text
    assert end.message is not None
    assert len([block for block in end.message.content if isinstance(block, ToolUseBlock)]) == 20
    assert len([event for event in events if isinstance(event, ToolUseStart)]) <= 20


@pytest.mark.parametrize("name", PROVIDERS)
def test_too_many_calls_in_one_chunk_are_refused(name: str) -> None:
    provider = PROVIDERS[name]
    chunk = provider.start + b"".join(provider.call(n) for n in range(1, 100))
    end = failed(read(name, iter([chunk]), calls=20), name)
    assert end.message is not None
    assert len([block for block in end.message.content if isinstance(block, ToolUseBlock)]) == 20


@pytest.mark.parametrize("name", IN_PIECES)
def test_endless_arguments_are_refused(name: str) -> None:
    provider = PROVIDERS[name]
    assert provider.arguments is not None
    piece = provider.arguments('{"a": "' + "x" * 100)
    chunks = iter([provider.start, provider.call(1), *[piece for _ in range(100)]])
    end = failed(read(name, chunks, argument_bytes=1000), name)
    assert "arguments of one call" in end.text
    assert end.message is not None
    (call,) = [block for block in end.message.content if isinstance(block, ToolUseBlock)]
    assert call.invalid is not None
    assert 900 < len(call.invalid.raw) < 1200


@pytest.mark.parametrize("name", IN_PIECES)
def test_arguments_of_buffered_call_count_towards_limit(name: str) -> None:
    """The second call is not reported while the first is open, but its arguments are counted."""
    provider = PROVIDERS[name]
    assert provider.arguments is not None
    piece = provider.arguments("x" * 100)
    chunks = iter(
        [provider.start, provider.call(2), provider.call(1), *[piece for _ in range(100)]]
    )
    assert "arguments of one call" in failed(read(name, chunks, argument_bytes=1000), name).text


@pytest.mark.parametrize("name", PROVIDERS)
def test_endless_frame_is_refused(name: str) -> None:
    provider = PROVIDERS[name]
    whole = provider.text("x" * 100_000)
    pieces = [whole[start : start + 50] for start in range(0, len(whole), 50)]
    events = read(name, iter([provider.start, *pieces]), frame_bytes=2000)
    end = events[-1]
    assert isinstance(end, StreamError)
    assert end.error_class == "ResponseLimitError"
    assert "bytes in one event" in end.text


@pytest.mark.parametrize("name", PROVIDERS)
def test_endless_empty_objects_are_refused(name: str) -> None:
    provider = PROVIDERS[name]
    junk = b"[" * 3000
    chunks = iter([provider.start, *[provider.text(junk.decode())] * 9])
    end = read(name, chunks, containers=5000)[-1]
    assert isinstance(end, StreamError)
    assert "JSON objects" in end.text


@pytest.mark.parametrize("raw", ["{}" * 3, "{}" * 50_000, '{"a":1}' * 65, "{} " * 1000 + '{"a":'])
def test_repeated_objects_are_one_broken_call(raw: str) -> None:
    provider = PROVIDERS["openai"]
    assert provider.arguments is not None
    context = RequestContext(session_id="sess_t", tools=("f",))
    decoder = adapters.get("openai").stream_decoder(context)
    events = [
        event
        for chunk in (
            provider.start,
            provider.call(1),
            provider.arguments(raw),
            b"data: [DONE]\n\n",
        )
        for event in decoder.feed(chunk)
    ]
    (call,) = [block for block in decoder.message.content if isinstance(block, ToolUseBlock)]
    assert call.invalid is not None
    assert call.invalid.raw == raw
    assert len([event for event in events if isinstance(event, ToolUseEnd)]) == 1


def test_parallel_wrapper_with_too_many_calls_stays_one_call() -> None:
    provider = PROVIDERS["openai"]
    uses: list[Wire] = [{"recipient_name": "functions.f", "parameters": {}}] * 5000
    arguments = json.dumps({"tool_uses": uses})
    call = {"index": 1, "id": "t1", "function": {"name": "parallel", "arguments": arguments}}
    context = RequestContext(session_id="sess_t", tools=("f",))
    decoder = adapters.get("openai").stream_decoder(context)
    for chunk in (provider.start, _chat({"tool_calls": [call]}), b"data: [DONE]\n\n"):
        decoder.feed(chunk)
    (block,) = [block for block in decoder.message.content if isinstance(block, ToolUseBlock)]
    assert block.name == "parallel"


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("place", [0, 1], ids=["first line", "later line"])
@pytest.mark.parametrize(
    "bad",
    [b'{"mess\xff', b"NOT safe", b'"text"', b"{]"],
    ids=["bytes", "words", "text", "brackets"],
)
def test_unreadable_line_is_an_error(name: str, place: int, bad: bytes) -> None:
    provider = PROVIDERS[name]
    if name == "ollama":
        line = bad + b"\n"
    elif name == "bedrock-converse":
        line = encode_event_frame(
            {":message-type": "event", ":event-type": "contentBlockDelta"}, bad
        )
    else:
        line = b"data: %b\n\n" % bad
    chunks = [provider.start, provider.text("safe to delete")]
    chunks.insert(place, line)
    end = read(name, iter(chunks))[-1]
    assert isinstance(end, StreamError)
    assert end.error_class == "NetworkError"


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-responses", "gemini"])
@pytest.mark.parametrize("line", [b"dat: NOT\n", b"NOT safe\n", b"\xef\xbb\xbfdata: {}\n"])
def test_sse_line_without_field_is_an_error(name: str, line: bytes) -> None:
    provider = PROVIDERS[name]
    events = read(name, iter([provider.start, line, provider.text("safe to delete")]))
    end = events[-1]
    assert isinstance(end, StreamError)
    assert end.error_class == "NetworkError"


def test_broken_aws_frame_ends_stream_at_once() -> None:
    provider = PROVIDERS["bedrock-converse"]
    broken = bytearray(provider.text("NOT "))
    broken[-6] ^= 1
    chunks = [provider.start, provider.text("a"), bytes(broken), provider.text("safe")]
    events = read("bedrock-converse", iter(chunks))
    assert isinstance(events[-1], StreamError)
    assert "checksum" in events[-1].text


@pytest.mark.parametrize(("limit", "kind"), [("calls", "tool_use"), ("blocks", "text")])
def test_a_plain_response_has_the_same_limits(limit: str, kind: str) -> None:
    block: Wire = {"type": kind, "id": "t", "name": "f", "input": {}, "text": "x"}
    body = json.dumps({"id": "m", "type": "message", "content": [block] * 21}).encode()
    context = RequestContext(session_id="sess_t", limits=StreamLimits(**{limit: 20}))
    with pytest.raises(ResponseLimitError) as raised:
        adapters.get("anthropic").from_wire_response(body, context)
    assert raised.value.code == limit
    partial = raised.value.message
    assert isinstance(partial, Message)
    assert partial.metadata.status is MessageStatus.ERROR
    assert [block.type for block in partial.content] == [kind] * 20


def test_endless_claude_event_in_aws_frame_is_refused() -> None:
    def chunk(data: bytes) -> bytes:
        payload = json.dumps({"bytes": base64.b64encode(data).decode()}).encode()
        return encode_event_frame({":message-type": "event", ":event-type": "chunk"}, payload)

    starts = [
        event.removeprefix(b"data: ") for event in PROVIDERS["anthropic"].start.split(b"\n\n")
    ]
    delta = {"type": "content_block_delta", "index": 0}
    events = [
        *starts[:2],
        json.dumps({**delta, "delta": {"type": "text_delta", "text": "word"}}).encode(),
        json.dumps({**delta, "delta": {"type": "text_delta", "text": "x" * 5000}}).encode(),
    ]
    end = failed(read("bedrock", map(chunk, events), frame_bytes=2000), "bedrock")
    assert "bytes in one event" in end.text
    assert "word" in str(end.message)


def test_the_documented_limits_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    for name in StreamLimits.__struct_fields__:
        (row,) = [line for line in page.splitlines() if f"`StreamLimits.{name}`" in line]
        assert f"{getattr(StreamLimits(), name):,}" in row
    (row,) = [line for line in page.splitlines() if "`Limits.response_bytes`" in line]
    assert f"{Limits().response_bytes:,}" in row
