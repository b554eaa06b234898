"""Any bytes give a value or a typed error in every decoder."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import body_of
from exchange import Exchange, handwritten
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, MetisError, decode, encode
from metis.streaming import MessageComplete, StreamError
from metis.wire.call import RequestContext
from strategies import json_texts, json_values

pytestmark = pytest.mark.slow

NAMES = adapters.names()
EXCHANGES = [
    exchange
    for protocol in ("anthropic_messages", "bedrock_converse", "openai_chat", "openai_responses")
    for exchange in handwritten(protocol).values()
]
REQUESTS = [exchange.request for exchange in EXCHANGES if exchange.request is not None]
RESPONSES = [exchange.response for exchange in EXCHANGES if isinstance(exchange.response, dict)]
STREAMS = [exchange for exchange in EXCHANGES if exchange.stream]

statuses = st.sampled_from([None, 200, 400, 429, 500])
sizes = st.integers(1, 200)
any_bytes = st.binary(max_size=300) | json_texts()


def context(status: int | None = None) -> RequestContext:
    return RequestContext(session_id="sess_fuzz", status=status)


def read_request(adapter: Adapter, body: bytes | dict[str, Any]) -> None:
    """Decode a request; what decodes can be stored and sent again."""
    with contextlib.suppress(MetisError):
        request = adapter.from_wire_request(body, context())
        stored = [decode(encode(message)) for message in request.messages]
        json.loads(adapter.to_wire(stored, request.tools, request.options).body)


def read_response(adapter: Adapter, body: bytes | dict[str, Any], status: int | None) -> None:
    with contextlib.suppress(MetisError):
        keep(adapter.from_wire_response(body, context(status)), adapter)


def read_stream(adapter: Adapter, data: bytes, status: int | None, size: int) -> None:
    """Decode a stream: it has one end event, and the partial message can be stored."""
    decoder = adapter.stream_decoder(context(status))
    events = [
        event
        for start in range(0, len(data), size)
        for event in decoder.feed(data[start : start + size])
    ]
    events += decoder.finish()
    ends = [event for event in events if isinstance(event, MessageComplete | StreamError)]
    assert ends == events[-1:]
    keep(decoder.message, adapter)


def keep(message: Message, adapter: Adapter) -> None:
    """Store a message, and encode it for a client."""
    stored = decode(encode(message))
    assert encode(stored) == encode(message)
    json.loads(adapter.to_wire_response(stored, context()))


@pytest.mark.parametrize("name", NAMES)
@given(data=any_bytes)
def test_any_bytes_as_request(name: str, data: bytes) -> None:
    read_request(adapters.get(name), data)


@pytest.mark.parametrize("name", NAMES)
@given(data=any_bytes, status=statuses)
def test_any_bytes_as_response(name: str, data: bytes, status: int | None) -> None:
    read_response(adapters.get(name), data, status)


def framed(texts: list[bytes]) -> bytes:
    return b"".join(b"data: %b\n\n" % text for text in texts)


@pytest.mark.parametrize("name", NAMES)
@given(data=any_bytes | st.lists(json_texts()).map(framed), status=statuses, size=sizes)
def test_any_bytes_as_stream(name: str, data: bytes, status: int | None, size: int) -> None:
    read_stream(adapters.get(name), data, status, size)


@st.composite
def mutated_bodies(draw: st.DrawFn, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """A real body with up to three values removed, duplicated or replaced."""
    body: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(bodies))))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(body))
        if places:
            draw(st.sampled_from(places))(draw)
    return body


def _places(value: Any) -> list[Callable[[st.DrawFn], None]]:
    """Return the possible changes of each value inside a value."""
    found: list[Callable[[st.DrawFn], None]] = []
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)  # pyright: ignore[reportUnknownArgumentType] - JSON
    elif isinstance(value, list):
        keys = list(range(len(value)))  # pyright: ignore[reportUnknownArgumentType] - JSON
    for key in keys:
        found.append(_spoiler(value, key))
        found += _places(value[key])
    return found


def _spoiler(holder: Any, key: Any) -> Callable[[st.DrawFn], None]:
    def spoil(draw: st.DrawFn) -> None:
        match draw(st.sampled_from(["gone", "other", "doubled"])):
            case "gone":
                del holder[key]
            case "doubled":
                holder[key] = [holder[key], holder[key]]
            case _:
                holder[key] = draw(json_values())

    return spoil


@st.composite
def corrupted_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Real bytes that were truncated, or with some bytes missing or replaced."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 40)))
    match draw(st.sampled_from(["cut", "missing", "other"])):
        case "cut":
            return data[:start]
        case "missing":
            return data[:start] + data[end:]
        case _:
            return data[:start] + draw(st.binary(max_size=20)) + data[end:]


@pytest.mark.parametrize("name", NAMES)
@given(body=mutated_bodies(REQUESTS))
def test_request_with_replaced_values(name: str, body: dict[str, Any]) -> None:
    read_request(adapters.get(name), body_of(body))


@pytest.mark.parametrize("name", NAMES)
@given(body=mutated_bodies(REQUESTS), data=st.data())
def test_request_with_corrupted_bytes(name: str, body: dict[str, Any], data: st.DataObject) -> None:
    read_request(adapters.get(name), data.draw(corrupted_bytes(body_of(body))))


@pytest.mark.parametrize("name", NAMES)
@given(body=mutated_bodies(RESPONSES), status=statuses)
def test_response_with_replaced_values(name: str, body: dict[str, Any], status: int | None) -> None:
    read_response(adapters.get(name), body_of(body), status)


@pytest.mark.parametrize("name", NAMES)
@given(exchange=st.sampled_from(STREAMS), data=st.data(), status=statuses, size=sizes)
def test_stream_with_corrupted_bytes(
    name: str, exchange: Exchange, data: st.DataObject, status: int | None, size: int
) -> None:
    read_stream(
        adapters.get(name), data.draw(corrupted_bytes(exchange.stream_bytes())), status, size
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [b'{"id', b'{"id":"x","choices":[{"delta":{"content":"a'])
def test_bytes_that_are_not_utf8(name: str, place: bytes) -> None:
    """Such bytes may be in a value, or in a key that no decoder reads."""
    started = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}'
    read_stream(adapters.get(name), framed([started, started, place + b'\xff":1}']), None, 4096)


@pytest.mark.parametrize("name", NAMES)
@given(exchange=st.sampled_from(STREAMS), data=st.data(), size=sizes)
def test_stream_with_replaced_values(
    name: str, exchange: Exchange, data: st.DataObject, size: int
) -> None:
    events = [event for event in exchange.stream or () if isinstance(event, dict)]
    place = data.draw(st.integers(0, len(events) - 1)) if events else 0
    wrong = [data.draw(mutated_bodies([event])) for event in events[place : place + 1]]
    kept = [*events[:place], *wrong, *events[place + 1 :]]
    written = framed([body_of(event) for event in kept])
    read_stream(adapters.get(name), written, None, size)
