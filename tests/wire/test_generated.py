"""The protocol laws on generated conversations, for every adapter and every pair."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from any_conversations import reject_empty_requests, wild_conversations
from build import assistant, tool_id, user
from exchange import LISTS, turns_of
from judges import complaints
from metis import adapters
from metis.adapters.tool_options import placeholder_tools
from metis.canonical import (
    ContentBlock,
    Message,
    RedactedThinkingBlock,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    decode,
    encode,
)
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
from strategies import conversations, json_objects
from test_laws import (
    ADAPTERS,
    JOINING,
    faults,
    is_carried,
    is_gone,
    is_reported_loss,
    strings,
    turn_ends,
)

pytestmark = pytest.mark.slow

CONTEXT = RequestContext(session_id="sess_42")

any_conversation = conversations() | wild_conversations()


@pytest.fixture(autouse=True, scope="module")
def without_empty_requests() -> Iterator[None]:
    """Skip conversations of which nothing can be sent: they are refused with an error."""
    with pytest.MonkeyPatch.context() as patch:
        reject_empty_requests(patch)
        yield


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


@pytest.mark.row("M-224", "T87", "T183")
@pytest.mark.parametrize("name", ADAPTERS)
@given(messages=any_conversation)
def test_request_is_valid_for_target(name: str, messages: list[Message]) -> None:
    body = json.loads(adapters.get(name).to_wire(messages).body)
    assert complaints(name, body) == []


@pytest.mark.row("M-021", "M-138", "M-170", "T15", "T19", "T20")
@pytest.mark.parametrize("name", ADAPTERS)
@given(messages=any_conversation)
def test_every_call_has_one_result_in_next_turn(name: str, messages: list[Message]) -> None:
    body = json.loads(adapters.get(name).to_wire(messages).body)
    assert broken(name, body) == []


def broken(name: str, body: dict[str, Any]) -> list[str]:
    """Return the faults of a request; a blank text may accompany signed thinking (T39)."""
    found = faults(name, body)
    signed = any(text in ("signature", "redacted_thinking") for text in strings(body))
    return [fault for fault in found if fault != "a blank text" or not signed]


@pytest.mark.row("M-054", "M-055", "M-063", "M-065", "T210", "T211", "T212")
@pytest.mark.parametrize("name", adapters.names())
@given(messages=any_conversation)
def test_no_silent_loss(name: str, messages: list[Message]) -> None:
    before = [encode(message) for message in messages]
    wire = adapters.get(name).to_wire(messages)
    assert [encode(message) for message in messages] == before
    sent_texts = set(strings(json.loads(wire.body)))
    for message in messages:
        for index, block in enumerate(message.content):
            facts = is_reported_loss(message, index, wire.losses)
            assert facts or is_sent(block, sent_texts), (message.role, block)


def is_sent(block: ContentBlock, sent_texts: set[str]) -> bool:
    """Return whether a block was sent; thinking is sent only to its issuer."""
    match block:
        case ThinkingBlock():
            return block.text in sent_texts and block.signature in sent_texts
        case RedactedThinkingBlock():
            return block.data in sent_texts
        case _:
            return is_carried(block, sent_texts)


@pytest.mark.row("T176")
@pytest.mark.parametrize("name", ADAPTERS)
@given(messages=conversations())
def test_prefix_stable(name: str, messages: list[Message]) -> None:
    adapter = adapters.get(name)
    # Where calls require definitions (T36), these are sent from the first turn on.
    tools = placeholder_tools(messages, 128)
    whole = adapter.to_wire(messages, tools)
    all_sent = json.loads(whole.body)
    for count in turn_ends(tuple(messages)):
        request = adapter.to_wire(messages[:count], tools)
        if is_gone(messages[count - 1], request):
            continue  # the last message is empty: its placeholder is replaced by the response
        if name in JOINING and is_gone(messages[count], whole):
            continue  # the response is empty: the next prompt joins the same turn
        part = json.loads(request.body)
        sent = turns_of(part)
        assert sent == turns_of(all_sent)[: len(sent)]
        rest = {key: value for key, value in part.items() if key not in LISTS}
        assert rest == {key: value for key, value in all_sent.items() if key not in LISTS}


@pytest.mark.row("T176")
@pytest.mark.parametrize("name", ADAPTERS)
@given(messages=any_conversation)
def test_growing_conversation_gives_same_request_as_one_sent_at_once(
    name: str, messages: list[Message]
) -> None:
    profile = adapters.get(name).profile
    growing = adapters.Adapter(profile)
    # Every prefix can be sent: it has at least this text.
    messages = [user(TextBlock("begin")), *messages]
    for count in range(1, len(messages) + 1):
        sent = growing.to_wire(messages[:count])
        fresh = adapters.Adapter(profile).to_wire(messages[:count])
        assert sent.body == fresh.body
        assert sent.losses == fresh.losses


@pytest.mark.parametrize("name", adapters.names())
def test_placeholder_for_blank_prompt_is_replaced_by_response(name: str) -> None:
    profile = adapters.get(name).profile
    growing = adapters.Adapter(profile)
    messages = [user("begin"), assistant("hi"), user("  "), assistant("x"), user("more")]
    for count in range(1, len(messages) + 1):
        fresh = adapters.Adapter(profile).to_wire(messages[:count])
        assert growing.to_wire(messages[:count]).body == fresh.body


@pytest.mark.row("M-171", "T13")
@pytest.mark.parametrize("name", adapters.names())
@given(messages=any_conversation)
def test_stored_conversation_gives_equal_bytes(name: str, messages: list[Message]) -> None:
    adapter = adapters.get(name)
    stored = [decode(encode(message)) for message in messages]
    assert adapter.to_wire(stored).body == adapter.to_wire(messages).body


@pytest.mark.parametrize("source", ADAPTERS)
@pytest.mark.parametrize("target", ADAPTERS)
@given(messages=any_conversation)
def test_encoded_request_can_be_decoded_and_sent_to_any_provider(
    source: str, target: str, messages: list[Message]
) -> None:
    """A request to one provider can be read as a client's request, and sent to any other."""
    sent = adapters.get(source).to_wire(messages).body
    read = adapters.get(source).from_wire_request(sent, CONTEXT)
    again = adapters.get(source).to_wire(read.messages, read.tools, read.options)
    assert json.loads(again.body) == json.loads(sent)
    options = read.options if source == target else replace(read.options, model=None)
    body = json.loads(adapters.get(target).to_wire(read.messages, read.tools, options).body)
    assert complaints(target, body) == []
    assert broken(target, body) == []


@st.composite
def answers(draw: st.DrawFn) -> Message:
    """Draw a response: thinking, a text and calls, each optional."""
    content: list[ContentBlock] = []
    sent_texts = st.text(min_size=1, max_size=20)
    if draw(st.booleans()):
        content.append(ThinkingBlock(draw(sent_texts), "c2ln"))
    if draw(st.booleans()):
        content.append(TextBlock(draw(sent_texts)))
    calls = range(draw(st.integers(0 if content else 1, 2)))
    content += [ToolUseBlock(tool_id(n), "f", draw(json_objects(simple=True))) for n in calls]
    return assistant(*content)


@pytest.mark.parametrize("name", adapters.names())
@given(answer=answers())
def test_response_round_trip(name: str, answer: Message) -> None:
    adapter = adapters.get(name)
    body = adapter.to_wire_response(answer, CONTEXT)
    read = adapter.from_wire_response(body, CONTEXT)
    assert essence(read.content) == essence(answer.content)
    assert json.loads(adapter.to_wire_response(read, CONTEXT)) == json.loads(body)


@pytest.mark.parametrize("name", adapters.names())
@given(answer=answers(), size=st.integers(1, 40))
def test_streamed_response_round_trip(name: str, answer: Message, size: int) -> None:
    adapter = adapters.get(name)
    encoder, decoder = adapter.stream_encoder(CONTEXT), adapter.stream_decoder(CONTEXT)
    data = b"".join(encoder.encode(event) for event in events(answer)) + encoder.finish()
    for start in range(0, len(data), size):
        decoder.feed(data[start : start + size])
    decoder.finish()
    assert essence(decoder.message.content) == essence(answer.content)


def essence(content: tuple[ContentBlock, ...]) -> list[Any]:
    """Return the part of a response that every protocol can express."""
    facts: list[Any] = []
    for block in content:
        match block:
            case ThinkingBlock(text=""):
                pass  # Gemini sends a signature without text as a separate part
            case ThinkingBlock() | TextBlock():
                facts.append((block.type, block.text))
            case ToolUseBlock():
                facts.append((block.type, block.name, block.input))
            case _:
                facts.append(block)
    return facts


def events(answer: Message) -> Iterator[StreamEvent]:
    """Return stream events that add up to a response."""
    yield MessageStart(answer.id, "m", "resp_1")
    for index, block in enumerate(answer.content):
        match block:
            case ThinkingBlock():
                yield ThinkingDelta(answer.id, index, block.text)
                yield ThinkingDelta(answer.id, index, "", block.signature)
            case TextBlock():
                for letter in block.text:
                    yield TextDelta(answer.id, index, letter)
            case ToolUseBlock():
                yield ToolUseStart(answer.id, index, block.id, block.name)
                written = json.dumps(block.input)
                yield ToolUseInputDelta(answer.id, index, block.id, written[:3])
                yield ToolUseInputDelta(answer.id, index, block.id, written[3:])
                yield ToolUseEnd(answer.id, index, block.id, block.input)
            case _:
                raise AssertionError(block)
    yield MessageComplete(answer.id, StopReason.END_TURN, answer)
