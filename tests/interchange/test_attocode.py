"""attocode messages and responses, handwritten."""

import json
from typing import Any

import pytest

from build import EVERY_BLOCK, assistant, call, numbered, system, tool, tool_id, usage, user
from metis import adapters, interchange
from metis.canonical import (
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import EncodeError, ForeignDocumentError
from metis.interchange import LoadedDocument
from metis.wire.call import AdapterOptions

MARK = {"type": "ephemeral"}
CALL = {"id": "call_1", "name": "read_file", "arguments": {"path": "src/main.ts"}}
EXAMPLE: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a coding assistant..."},
    {"role": "user", "content": "Read the file"},
    {"role": "assistant", "content": "", "toolCalls": [CALL]},
    {"role": "tool", "content": "file contents here...", "toolCallId": "call_1"},
]


def loaded(*messages: Any) -> LoadedDocument:
    """Return the messages as entries, after checking that they round-trip."""
    result = interchange.load("attocode", json.dumps(messages))
    back = interchange.dump("attocode", result.entries)
    assert json.loads(back.data) == list(messages)
    assert back.losses == []
    return result


def result_of(message: Message) -> ToolResultBlock:
    block = message.content[0]
    assert isinstance(block, ToolResultBlock)
    return block


@pytest.mark.row("A-002", "A-003", "A-004", "A-006", "A-008", "A-009", "A-010")
def test_example_of_specification_has_no_loss() -> None:
    result = loaded(*EXAMPLE)
    assert result.losses == []
    assert [str(message.role) for message in result.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    called = result.messages[2].content[0]
    assert isinstance(called, ToolUseBlock)
    assert called.input == {"path": "src/main.ts"}
    assert result_of(result.messages[3]).tool_use_id == called.id


@pytest.mark.row("A-019", "A-021", "A-022")
def test_example_becomes_body_of_specification() -> None:
    options = AdapterOptions(model="claude-sonnet-4-20250514")
    result = loaded(*EXAMPLE)
    body = json.loads(adapters.get("anthropic").to_wire(result.messages, (), options).body)
    called = body["messages"][1]["content"][0]
    assert _plain(body["system"]) == "You are a coding assistant..."
    assert _plain(body["messages"][0]["content"]) == "Read the file"
    assert (called["type"], called["name"]) == ("tool_use", "read_file")
    assert called["input"] == {"path": "src/main.ts"}
    sent = body["messages"][2]
    assert sent["role"] == "user"
    assert sent["content"][0]["tool_use_id"] == called["id"]
    assert _plain(sent["content"][0]["content"]) == "file contents here..."


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


@pytest.mark.row("A-015", "A-016")
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_content_is_text_or_a_list_of_blocks(role: str) -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": MARK}]
    result = loaded({"role": role, "content": blocks}, {"role": role, "content": "c"})
    assert result.losses == []
    assert [len(message.content) for message in result.messages] == [2, 1]


def test_cache_mark_becomes_hint_of_its_block() -> None:
    blocks = [{"type": "text", "text": "a", "cache_control": MARK}, {"type": "text", "text": "b"}]
    result = loaded({"role": "system", "content": blocks}, {"role": "user", "content": blocks})
    assert [[hint.after for hint in m.metadata.hints] for m in result.messages] == [[0], [0]]


@pytest.mark.row("A-007")
def test_metadata_are_preserved_verbatim_and_reported() -> None:
    result = loaded({"role": "user", "content": "hi", "metadata": {"b": [1, 2.5], "a": None}})
    assert [(loss.path, loss.block_type) for loss in result.losses] == [
        ("$[0].metadata", "metadata")
    ]


@pytest.mark.row("A-011")
def test_non_json_arguments_are_never_an_input() -> None:
    broken: dict[str, Any] = {
        "id": "c",
        "name": "f",
        "arguments": {},
        "parseError": "Unexpected end",
    }
    stored = {"id": "d", "name": "f", "arguments": {"_raw": '{"a":'}, "parseError": "cut off"}
    result = loaded({"role": "assistant", "content": "", "toolCalls": [broken, stored]})
    blocks = result.messages[0].content
    assert all(isinstance(block, ToolUseBlock) and block.input == {} for block in blocks)
    raws = [b.invalid.raw for b in blocks if isinstance(b, ToolUseBlock) and b.invalid]
    assert raws == ["{}", '{"a":']


@pytest.mark.row("A-005", "A-012", "A-013")
@pytest.mark.parametrize("value", ["text", 1, 2.5, None, True, {"a": [1]}, []])
def test_results_keep_their_values(value: Any) -> None:
    calls = [CALL, CALL | {"id": "call_2"}]
    results = [{"callId": "call_1", "result": value}, {"callId": "call_2", "result": "x"}]
    result = loaded(
        {"role": "assistant", "content": "", "toolCalls": calls},
        {"role": "tool", "content": "", "toolResults": results},
    )
    assert [message.role for message in result.messages] == [Role.ASSISTANT, Role.TOOL, Role.TOOL]
    outcome = result.messages[1].metadata.outcome
    assert outcome is not None
    assert outcome.value == value
    assert result.losses == []


@pytest.mark.row("A-014")
def test_an_error_is_an_error_on_the_wire() -> None:
    results = [{"callId": "call_1", "result": None, "error": "no such file"}]
    result = loaded(EXAMPLE[1], EXAMPLE[2], {"role": "tool", "content": "", "toolResults": results})
    assert result_of(result.messages[-1]).is_error
    options = AdapterOptions(model="claude-sonnet-4-6")
    body = json.loads(adapters.get("anthropic").to_wire(result.messages, (), options).body)
    sent = body["messages"][2]["content"][0]
    assert sent["is_error"] is True
    assert _plain(sent["content"]) == "no such file"


@pytest.mark.parametrize(
    "unusual",
    [
        {"role": "tool", "content": "x", "toolCallId": "nobody"},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": "x", "toolResults": [{"callId": "nobody", "result": 1}]},
    ],
)
def test_result_without_call_becomes_text_and_is_reported(unusual: dict[str, Any]) -> None:
    result = loaded(unusual)
    assert {message.role for message in result.messages} == {Role.USER}
    assert "tool_result" in {loss.block_type for loss in result.losses}


def test_fields_without_meaning_are_reported() -> None:
    result = loaded({"role": "user", "content": "x", "toolCalls": [CALL], "toolCallId": "call_1"})
    assert sorted(loss.path for loss in result.losses) == ["$[0].toolCallId", "$[0].toolCalls"]


BAD: list[tuple[Any, str]] = [
    ({"role": "owner", "content": ""}, "$[1].role"),
    ({"role": "user"}, "$[1]"),
    ({"role": "user", "content": 3}, "$[1].content"),
    ({"role": "user", "content": [{"type": "image", "text": ""}]}, "$[1].content[0]"),
    ({"role": "user", "content": [{"type": "sound", "text": ""}]}, "$[1].content[0].type"),
    ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "$[1].tool_calls[0]"),
    ({"role": "tool", "tool_results": [{"call_id": 1}]}, "$[1].tool_results[0].call_id"),
    ({"role": "assistant", "content": "", "toolCalls": [{"id": "a"}]}, "$[1].toolCalls[0]"),
    ("text", "$[1]"),
]


@pytest.mark.row("A-002", "A-003", "A-008")
@pytest.mark.parametrize(("bad", "path"), BAD)
def test_invalid_message_error_names_line_and_path(bad: Any, path: str) -> None:
    data = '[\n{"role": "user", "content": "ok"},\n' + json.dumps(bad) + "\n]"
    with pytest.raises(ForeignDocumentError) as caught:
        interchange.load("attocode", data)
    assert (caught.value.path, caught.value.line) == (path, 3)


PICTURE = {"type": "base64", "media_type": "image/png", "data": "aWY="}
REMOTE = {"type": "url", "media_type": "image/jpeg", "data": "https://a/b.jpg"}


@pytest.mark.row("A-017")
def test_images_of_message_are_image_blocks_and_sent() -> None:
    blocks = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": PICTURE, "cache_control": MARK},
        {"type": "image", "source": REMOTE},
    ]
    result = loaded({"role": "user", "content": blocks})
    assert result.losses == []
    message = result.messages[0]
    assert message.content == (
        TextBlock("see"),
        ImageBlock(ImageSource("base64", "aWY="), "image/png"),
        ImageBlock(ImageSource("url", "https://a/b.jpg"), "image/jpeg"),
    )
    assert [hint.after for hint in message.metadata.hints] == [1]
    body = json.loads(adapters.get("openai").to_wire([message]).body)
    sent = [part.get("image_url", {}).get("url") for part in body["messages"][0]["content"]]
    assert sent == [None, "data:image/png;base64,aWY=", "https://a/b.jpg"]


def test_images_are_only_in_roles_that_allow_them() -> None:
    block = {"type": "image", "source": PICTURE}
    odd = {"type": "image", "source": PICTURE | {"media_type": "odd"}}
    calls = {"role": "assistant", "content": [block], "toolCalls": [CALL]}
    answer = {"role": "tool", "content": [block], "toolCallId": "call_1"}
    result = loaded(
        {"role": "system", "content": [block]}, {"role": "user", "content": [odd]}, calls, answer
    )
    kinds = [message.content[0].type for message in result.messages]
    assert kinds == ["opaque", "opaque", "artifact", "tool_result"]
    assert result_of(result.messages[3]).content == (
        ImageBlock(ImageSource("base64", "aWY="), "image/png"),
    )
    assert result.losses == []


def test_file_of_python_program_round_trips_in_snake_case() -> None:
    record: list[dict[str, Any]] = [
        {"role": "user", "content": "Read the file", "name": None, "metadata": None},
        {"role": "assistant", "tool_calls": [CALL, CALL | {"id": "c", "parse_error": "cut"}]},
        {"role": "tool", "content": "file contents", "tool_call_id": "call_1"},
        {"role": "tool", "tool_results": [{"call_id": "c", "result": None, "error": "no"}]},
    ]
    result = loaded(*record)
    assert result.losses == []
    called = result.messages[1].content
    assert isinstance(called[0], ToolUseBlock)
    assert isinstance(called[1], ToolUseBlock)
    assert called[0].input == CALL["arguments"]
    assert called[1].invalid is not None
    assert result_of(result.messages[2]).tool_use_id == called[0].id
    assert result_of(result.messages[3]).is_error


def test_the_keys_of_arguments_are_those_of_the_tool() -> None:
    arguments = {"tool_calls": [{"parse_error": 1}], "call_id": "x"}
    calls = [{"id": "a", "name": "f", "arguments": arguments}]
    result = loaded({"role": "assistant", "content": "", "tool_calls": calls})
    block = result.messages[0].content[0]
    assert isinstance(block, ToolUseBlock)
    assert block.input == arguments


def test_response_of_python_program_round_trips_in_snake_case() -> None:
    usage = {
        "input_tokens": 9,
        "output_tokens": 3,
        "total_tokens": 12,
        "cache_creation_tokens": 2,
        "cache_read_tokens": 4,
        "cost": 0.25,
    }
    record = {
        "content": "done",
        "stop_reason": "tool_use",
        "tool_calls": [CALL | {"parse_error": None}],
        "usage": usage,
        "thinking": None,
        "model": "anthropic:claude-sonnet-4-6",
    }
    result = interchange.load("attocode-response", json.dumps(record))
    assert result.losses == []
    about = result.messages[0].metadata
    assert about.stop_reason == StopReason.TOOL_USE
    assert about.usage is not None
    assert (about.usage.input_tokens, about.usage.output_tokens) == (9, 3)
    counts = (about.usage.cached_input_tokens, about.usage.cache_creation_input_tokens)
    assert counts == (4, 2)
    back = interchange.dump("attocode-response", result.entries)
    assert (json.loads(back.data), back.losses) == (record, [])


def test_canonical_conversation_is_exported_with_every_loss() -> None:
    messages = numbered(
        system("be kind"),
        user("hi"),
        assistant("ok", call("bash", tool_id(1), cmd="ls")),
        tool("out", answers=tool_id(1)),
    )
    dumped = interchange.dump("attocode", messages)
    back = interchange.load("attocode", dumped.data).messages
    assert [m.content_digest() for m in back] == [m.content_digest() for m in messages]
    assert {loss.path for loss in dumped.losses} == {
        "$.created_at",
        "$.metadata.model",
        "$.metadata.provider",
        "$.metadata.routing",
        "$.metadata.usage",
    }


@pytest.mark.parametrize("tag", sorted(EVERY_BLOCK))
def test_every_block_is_exported_or_a_loss(tag: str) -> None:
    message = assistant("x", EVERY_BLOCK[tag])
    dumped = interchange.dump("attocode", [message])
    back = interchange.load("attocode", dumped.data).messages[0]
    if back.content_digest() != message.content_digest():
        assert tag in {loss.block_type for loss in dumped.losses}


RESPONSE = {
    "content": "It says hello.",
    "toolCalls": [CALL],
    "usage": {
        "inputTokens": 10,
        "outputTokens": 5,
        "cacheReadTokens": 3,
        "cacheWriteTokens": 2,
        "cost": 0.25,
    },
    "model": "anthropic:claude-sonnet-4-6",
    "stopReason": "tool_use",
    "thinking": "hm",
}


@pytest.mark.row("A-038", "A-039", "A-040", "A-041", "A-042", "A-043", "A-044", "A-049")
def test_response_decodes_to_one_message() -> None:
    result = interchange.load("attocode-response", json.dumps(RESPONSE))
    message = result.messages[0]
    assert result.losses == []
    assert [type(block) for block in message.content] == [ThinkingBlock, TextBlock, ToolUseBlock]
    counts = message.metadata.usage
    assert counts is not None
    assert (counts.input_tokens, counts.output_tokens) == (10, 5)
    assert (counts.cached_input_tokens, counts.cache_creation_input_tokens) == (3, 2)
    assert str(counts.reported_cost_usd) == "0.25"
    assert json.loads(interchange.dump("attocode-response", result.entries).data) == RESPONSE


@pytest.mark.row("A-045", "A-046", "A-047", "A-048")
@pytest.mark.parametrize("word", ["end_turn", "tool_use", "max_tokens", "stop_sequence"])
def test_every_stop_reason(word: str) -> None:
    about = MessageMetadata(origin="x", stop_reason=StopReason(word), usage=usage())
    dumped = interchange.dump("attocode-response", [assistant("hi", metadata=about)])
    assert json.loads(dumped.data)["stopReason"] == word
    back = interchange.load("attocode-response", dumped.data).messages[0]
    assert back.metadata.stop_reason == StopReason(word)


def test_response_accepts_exactly_one_message() -> None:
    with pytest.raises(EncodeError, match="exactly one response"):
        interchange.dump("attocode-response", [user("hi")])
