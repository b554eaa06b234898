"""An ended stream is freed at once, not at a later collection of reference cycles.

A gateway has hundreds of streams at a time. Each lives long enough to reach the oldest generation,
which is collected rarely, so that cycles would multiply their memory.
"""

import gc
from collections.abc import Iterator

import pytest

from metis import adapters
from metis.adapters import Adapter
from metis.canonical import StopReason
from metis.streaming import (
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.wire.call import RequestContext

ID = "01KR3QAYG00000000000000000"
CALLS = ("toolu_01KR3QAYG00000000000000001", "toolu_01KR3QAYG00000000000000002")
PROTOCOLS = ("anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses")
PARTIAL_CALL = (
    b'data: {"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"look",'
    b'"partialArgs":[{"jsonPath":"$.path","stringValue":"a"}],"willContinue":true}}]}}]}\n\n'
)


def context(adapter: Adapter) -> RequestContext:
    return RequestContext(session_id="s", model=f"{adapter.name}:m", provider=adapter.name)


def events() -> Iterator[StreamEvent]:
    """Return the events of a response before its end."""
    yield MessageStart(ID, "m", "resp_1")
    yield ThinkingDelta(ID, 0, "Hm.")
    yield TextDelta(ID, 1, "Two calls.")
    for index, call in enumerate(CALLS, 2):
        yield ToolUseStart(ID, index, call, "look")
        yield ToolUseInputDelta(ID, index, call, '{"path":"a"}')
        yield ToolUseEnd(ID, index, call, {"path": "a"})


def stream(adapter: Adapter) -> tuple[bytes, list[StreamEvent]]:
    """Encode a response, decode it again, and encode it with the end that was decoded."""
    cut = adapter.stream_encoder(context(adapter))
    data = b"".join([cut.encode(event) for event in events()])
    decoder = adapter.stream_decoder(context(adapter))
    decoded = [*decoder.feed(data), *decoder.finish()]
    assert decoder.message.content
    encoder = adapter.stream_encoder(context(adapter))
    for event in (*events(), MessageComplete(ID, StopReason.TOOL_USE, decoder.message)):
        data += encoder.encode(event)
    return data + encoder.finish(), decoded


def partial_call(adapter: Adapter) -> None:
    """Decode a Gemini call whose arguments arrive value by value."""
    decoder = adapter.stream_decoder(context(adapter))
    decoder.feed(PARTIAL_CALL)
    assert decoder.finish()


def cyclic_types() -> set[str]:
    """Return the types of the project whose objects only a collection frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        objects: list[object] = list(gc.garbage)
        owners: list[object] = [getattr(one, "__self__", one) for one in objects]
        types = {type(one) for one in owners}
        return {one.__name__ for one in types if one.__module__.startswith("metis.")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_ended_stream_has_no_reference_cycles(name: str) -> None:
    adapter = adapters.get(name)
    stream(adapter)  # first use imports modules and fills caches, which stay
    gc.collect()
    gc.disable()
    try:
        data, decoded = stream(adapter)
        assert data
        assert len(decoded) > 1
        del data, decoded
        assert cyclic_types() == set()
    finally:
        gc.enable()


def test_unfinished_gemini_call_has_no_reference_cycles() -> None:
    adapter = adapters.get("gemini")
    partial_call(adapter)
    gc.collect()
    gc.disable()
    try:
        partial_call(adapter)
        assert cyclic_types() == set()
    finally:
        gc.enable()
