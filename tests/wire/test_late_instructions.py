"""Developer messages after the first turn: where each protocol puts them, and under which role."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from any_conversations import reject_empty_requests
from build import NOW, SESSION, assistant, call, developer, image, system, tool, tool_id, ulid, user
from exchange import turns_of
from judges import complaints
from metis import adapters
from metis.canonical import ImageSource, Message, MessageMetadata, Role, TextBlock
from metis.projection import Change
from metis.wire.call import RequestContext
from metis.wire.json_access import maybe_list, maybe_object
from strategies import conversations
from test_laws import ADAPTERS, JOINING, faults, strings

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def without_empty_requests() -> Iterator[None]:
    """Skip conversations of which nothing can be sent: they are refused with an error."""
    with pytest.MonkeyPatch.context() as patch:
        reject_empty_requests(patch)
        yield


CONTEXT = RequestContext(session_id=SESSION)
PICTURE = "iVBORw0KGgo="
A, B = call("f", tool_id(1)), call("g", tool_id(2))
NOTE = "mind the gap"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="metis.adapters")


def numbered(*messages: Message) -> list[Message]:
    return [replace(message, id=ulid(number)) for number, message in enumerate(messages)]


def note(*, is_first: bool = False) -> Message:
    return developer(NOTE, image(PICTURE), metadata=MessageMetadata(prepended=is_first))


def sent(name: str, *messages: Message) -> Any:
    """Return the turns of a request, after the official SDK's types have accepted it."""
    body = json.loads(adapters.get(name).to_wire(numbered(*messages)).body)
    assert complaints(name, body) == []
    assert faults(name, body) == []
    return turns_of(body)


def texts_of(turn: Any) -> list[str]:
    """Return the texts of a turn, part by part, for any protocol."""
    if isinstance(turn, str):
        return [turn]
    if isinstance(turn, list):
        return [text for each in maybe_list(turn) for text in texts_of(each)]
    keys = ("content", "output", "parts", "functionResponse", "response", "text", "toolResult")
    own = maybe_object(turn)
    return [text for key in own if key in keys for text in texts_of(own[key])]


def is_shown(turn: Any) -> bool:
    return any(PICTURE in text for text in strings(turn))


@pytest.mark.row("K-016", "K-089", "K-090", "K-092", "KX-14")
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("name", ADAPTERS)
def test_late_instruction_joins_user_turn(name: str, *, is_first: bool) -> None:
    (turn,) = sent(name, user("go"), note(is_first=is_first))
    assert turn["role"] == "user"
    turn_text = "".join(texts_of(turn))
    assert f"{NOTE}\n" in turn_text
    assert (turn_text.index(NOTE) < turn_text.index("go")) is is_first
    if name != "ollama":
        assert f"{NOTE}\n" in texts_of(turn)
        assert is_shown(turn)


@pytest.mark.row("K-016", "K-089", "K-090", "K-092", "KX-14")
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("name", ADAPTERS)
def test_late_instruction_joins_preceding_tool_result(name: str, *, is_first: bool) -> None:
    talk = [user("ask"), assistant(A, B), tool("one", answers=A.id), note(is_first=is_first)]
    turns = sent(name, *talk, tool("two", answers=B.id))
    (turn,) = [turn for turn in turns if f"{NOTE}\n" in "".join(texts_of(turn))]
    turn_text = "".join(texts_of(_result_in(turn)))
    assert f"{NOTE}\n" in turn_text
    assert "two" not in turn_text
    assert (turn_text.index(NOTE) < turn_text.index("one")) is is_first
    if name != "ollama":
        assert is_shown(turns)


def _result_in(turn: Any) -> Any:
    """Return the one tool result with the note, in a turn that may have several."""
    parts = map(maybe_object, maybe_list(turn.get("parts") or turn.get("content")))
    results = [
        part
        for part in parts
        if part.keys() & {"functionResponse", "toolResult"} or part.get("type") == "tool_result"
    ]
    return next((part for part in results if NOTE in json.dumps(part)), turn)


@pytest.mark.row("K-090")
@pytest.mark.parametrize("name", ADAPTERS)
def test_late_instruction_after_response_keeps_its_place(name: str) -> None:
    turns = sent(name, user("ask"), assistant("yes"), developer(NOTE), user("go"))
    # Where turns alternate, the next prompt joins the same turn.
    assert texts_of(turns[2]) == ([NOTE, "go"] if name in JOINING else [NOTE])
    assert turns[2]["role"] == "user"


@pytest.mark.row("K-016", "K-090")
@pytest.mark.parametrize("name", adapters.names())
@given(talk=conversations(), data=st.data())
def test_instruction_role_is_not_sent_after_first_turn(
    name: str, talk: list[Message], data: st.DataObject
) -> None:
    notes_in_talk = list(_with_notes(talk, data))
    body = json.loads(adapters.get(name).to_wire(notes_in_talk).body)
    assert "developer" not in {turn.get("role") for turn in turns_of(body)}
    turn_text = "".join(strings(body))
    for message in notes_in_talk:
        if message.role is Role.DEVELOPER:
            (text,) = (block.text for block in message.content if isinstance(block, TextBlock))
            assert turn_text.count(text) == 1
    if name in ADAPTERS:
        assert complaints(name, body) == []


def _with_notes(talk: list[Message], data: st.DataObject) -> Iterator[Message]:
    for number, message in enumerate(talk):
        yield message
        if number and data.draw(st.booleans()):
            about = MessageMetadata(prepended=data.draw(st.booleans()))
            yield developer(f"<note {number}>", id=ulid(100 + number), metadata=about)


@pytest.mark.row("T176")
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("name", adapters.names())
def test_note_after_request_gives_same_body_as_new_adapter(name: str, *, is_first: bool) -> None:
    profile = adapters.get(name).profile
    growing = adapters.Adapter(profile)
    notes = [note(is_first=is_first), developer("two")]
    talk = [system("be brief"), user("ask"), *notes, assistant(A), tool("one", answers=A.id)]
    talk = numbered(*talk, *notes, assistant("yes"), *notes, user("go"), *notes)
    for count in range(
        2, len(talk) + 1
    ):  # not every provider accepts a request with instructions only
        again = growing.to_wire(talk[:count])
        fresh = adapters.Adapter(profile).to_wire(talk[:count])
        assert again.body == fresh.body
        assert again.losses == fresh.losses


@pytest.mark.row("T176")
@pytest.mark.parametrize("name", ADAPTERS)
def test_turns_before_response_stay_unchanged(name: str) -> None:
    talk = numbered(user("ask"), note(), assistant("yes"), developer("late"), user("go"))
    adapter = adapters.get(name)
    before = turns_of(json.loads(adapter.to_wire(talk[:2]).body))
    assert turns_of(json.loads(adapter.to_wire(talk).body))[: len(before)] == before


CLIENTS: dict[str, dict[str, Any]] = {
    "openai": {
        "model": "gpt-5",
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "ask"},
            {"role": "developer", "content": "note"},
            {"role": "assistant", "content": "yes"},
            {"role": "developer", "content": [{"type": "text", "text": "more"}]},
            {"role": "user", "content": "go"},
        ],
    },
    "openai-responses": {
        "model": "gpt-5",
        "input": [
            {"role": "user", "content": "ask"},
            {"role": "developer", "content": "note"},
            {"type": "message", "role": "assistant", "content": "yes"},
            {"role": "developer", "content": [{"type": "input_text", "text": "more"}]},
            {"role": "user", "content": "go"},
        ],
    },
}
SAME_PROTOCOL_PAIRS = {"openai": "azure", "openai-responses": "azure-responses"}


@pytest.mark.row("M-010")
@pytest.mark.parametrize("name", CLIENTS)
def test_instruction_role_of_client_is_preserved_in_its_protocol(name: str) -> None:
    request = adapters.get(name).from_wire_request(CLIENTS[name], CONTEXT)
    wire = adapters.get(name).to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body) == CLIENTS[name]
    assert wire.losses == []
    kin = json.loads(adapters.get(SAME_PROTOCOL_PAIRS[name]).to_wire(request.messages).body)
    roles = [turn["role"] for turn in turns_of(CLIENTS[name])]
    assert [turn["role"] for turn in turns_of(kin)] == roles
    for target in ADAPTERS.keys() - {name}:
        options = replace(request.options, model=None)
        body = json.loads(adapters.get(target).to_wire(request.messages, (), options).body)
        turns = turns_of(body)
        assert "developer" not in {turn.get("role") for turn in turns[1:]}
        assert "note\n" in "".join(strings(turns))


@pytest.mark.parametrize("name", ADAPTERS)
def test_note_joins_text_of_client_request(name: str) -> None:
    adapter = adapters.get(name)
    plain = adapter.to_wire(numbered(user("ask"))).body
    request = adapter.from_wire_request(plain, CONTEXT)
    wire = adapter.to_wire([*request.messages, developer(NOTE, id=ulid(9))], (), request.options)
    body = json.loads(wire.body)
    assert complaints(name, body) == []
    (turn,) = turns_of(body)
    assert "".join(texts_of(turn)).replace("\n\n", "") == f"ask{NOTE}\n"
    assert [loss.change for loss in wire.losses] == [Change.ALTERED]


def test_unmapped_keys_of_joined_block_are_sent() -> None:
    """Keys of a block that another message was attached to are sent as received."""
    odd = {"type": "text", "text": "ask", "x_new": 1}
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9}
    request = adapters.get("anthropic").from_wire_request(
        body | {"messages": [{"role": "user", "content": [odd]}]}, CONTEXT
    )
    adapter = adapters.get("anthropic")
    wire = adapter.to_wire([*request.messages, developer(NOTE, id=ulid(9))], (), request.options)
    paths = {(loss.message_id, loss.path, loss.change) for loss in wire.losses}
    assert (request.messages[0].id, "$.content[0].x_new", Change.DROPPED) not in paths
    assert json.loads(wire.body)["messages"][0]["content"][0] == odd


def test_chat_keeps_image_detail_of_client() -> None:
    url = {"url": "https://example.org/a.png", "detail": "high"}
    parts = [{"type": "image_url", "image_url": url}]
    request = adapters.get("openai").from_wire_request(
        {"model": "gpt-5", "messages": [{"role": "user", "content": parts}]}, CONTEXT
    )
    own = [*request.messages, developer(NOTE, id=ulid(9))]
    wire = adapters.get("openai").to_wire(own, (), request.options)
    (turn,) = json.loads(wire.body)["messages"]
    assert turn["content"] == [*parts, {"type": "text", "text": f"{NOTE}\n"}]
    assert [loss.path for loss in wire.losses] == ["$.role"]


def test_note_does_not_replace_computer_screenshot() -> None:
    """The output of OpenAI's computer tool is one image, with no place for text."""
    shown = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PICTURE}"}
    items: list[Any] = [
        {"role": "user", "content": "look"},
        {
            "type": "computer_call",
            "id": "cu_1",
            "call_id": "call_1",
            "action": {"type": "screenshot"},
            "pending_safety_checks": [],
            "status": "completed",
        },
        {"type": "computer_call_output", "call_id": "call_1", "output": shown},
    ]
    adapter = adapters.get("openai-responses")
    request = adapter.from_wire_request({"model": "gpt-5", "input": items}, CONTEXT)
    wire = adapter.to_wire([*request.messages, developer(NOTE, id=ulid(9))], (), request.options)
    assert json.loads(wire.body)["input"] == [*items, {"role": "user", "content": NOTE}]


def test_unreadable_file_is_reported_as_loss() -> None:
    picture = replace(image(), source=ImageSource("file_ref", "a.png"))
    talk = numbered(user("go"), developer(picture, created_at=NOW))
    wire = adapters.get("openai").to_wire(talk)
    assert "not shown to this model" in wire.body.decode()
