"""klaude-code histories, handwritten: how each event, message and part is imported."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from build import (
    EVERY_BLOCK,
    NOW,
    assistant,
    call,
    developer,
    image,
    numbered,
    provenance,
    system,
    text,
    thinking,
    tool,
    tool_id,
    ulid,
    user,
)
from documents import klaude_bytes
from metis import adapters, interchange
from metis.canonical import (
    ArtifactBlock,
    ImageBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    OpaqueBlock,
    Outcome,
    OutcomeStatus,
    RedactedThinkingBlock,
    Role,
    StopReason,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import ForeignDocumentError
from metis.interchange import LoadedDocument
from metis.projection.loss import Change
from metis.store.entries import (
    CompactionEntry,
    ErrorEntry,
    MessageEntry,
    RetractionEntry,
    RewindEntry,
    SidecarEntry,
    TaskMetadataEntry,
)
from metis.store.replay import Interrupt, ReplayedToolResult, replay
from metis.store.threads import view
from metis.wire.call import AdapterOptions

T = "2026-01-01T10:00:00Z"
COMMON = {"id": None, "created_at": T, "response_id": None}


def line(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": {**COMMON, **data}}


def user_line(*parts: Any) -> dict[str, Any]:
    return line("UserMessage", role="user", parts=list(parts))


def answer_line(*parts: Any, **fields: Any) -> dict[str, Any]:
    given = {"role": "assistant", "parts": list(parts), "usage": None, "stop_reason": None}
    return line("AssistantMessage", **given | fields)


def result_line(**fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "role": "tool",
        "call_id": "call_1",
        "tool_name": "bash",
        "status": "success",
        "output_text": "out",
        "parts": [],
        "ui_extra": None,
        "side_effects": None,
        "task_metadata": None,
    }
    return line("ToolResultMessage", **given | fields)


def text_part(texts: str) -> dict[str, Any]:
    return {"type": "text", "text": texts}


def called(arguments: str = '{"cmd": "ls"}') -> dict[str, Any]:
    return {
        "type": "tool_call",
        "call_id": "call_1",
        "tool_name": "bash",
        "arguments_json": arguments,
    }


def thought(texts: str, **fields: Any) -> dict[str, Any]:
    return {"type": "thinking_text", "id": None, "text": texts, "model_id": None, **fields}


def seal(signature: str, **fields: Any) -> dict[str, Any]:
    given = {"id": None, "signature": signature, "model_id": None, "format": None}
    return {"type": "thinking_signature", **given, **fields}


def loaded(*lines: Any) -> LoadedDocument:
    """Return the lines as entries, after checking that they round-trip."""
    data = klaude_bytes(list(lines))
    result = interchange.load("klaude-code", data)
    back = interchange.dump("klaude-code", result.entries)
    assert back.data == data
    assert back.losses == []
    return result


def wire(adapter: str, result: LoadedDocument) -> bytes:
    """Return the request of the messages of a history."""
    options = AdapterOptions(model="claude-sonnet-4-6")
    return adapters.get(adapter).to_wire(result.messages, (), options).body


def only(*lines: Any) -> Message:
    return loaded(*lines).messages[-1]


@pytest.mark.row("K-026", "K-029", "K-030", "K-031", "K-032", "K-033", "K-049")
def test_user_messages_have_no_loss() -> None:
    result = loaded(
        user_line(text_part("hi"), {"type": "image_url", "url": "https://a/b.png", "id": None})
    )
    message = result.messages[0]
    assert result.losses == []
    assert message.role == Role.USER
    assert message.content[0] == text("hi")
    assert message.created_at.isoformat() == "2026-01-01T10:00:00+00:00"


@pytest.mark.row("K-027", "K-045", "K-046", "K-074", "K-088", "K-093", "K-123")
def test_all_five_kinds_of_messages_are_read() -> None:
    result = loaded(
        line("SystemMessage", role="system", parts=[text_part("be kind")]),
        line("DeveloperMessage", role="developer", parts=[text_part("note")]),
        user_line(text_part("hi")),
        answer_line(called(), stop_reason="tool_use"),
        result_line(),
    )
    assert [str(message.role) for message in result.messages] == [
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
    ]
    assert result.losses == []
    with pytest.raises(ForeignDocumentError, match="expected the role system, got 'user'"):
        loaded(line("SystemMessage", role="user", parts=[text_part("be kind")]))


@pytest.mark.row("K-047", "K-091")
def test_display_part_of_developer_message_is_not_sent() -> None:
    result = loaded(
        user_line(text_part("hi")),
        line(
            "DeveloperMessage",
            role="developer",
            parts=[text_part("note")],
            command_output={"x": "HIDE"},
        ),
    )
    assert [loss.path for loss in result.losses] == ["$.data.command_output"]
    for name in ("anthropic", "openai"):
        assert b"note" in wire(name, result)
        assert b"HIDE" not in wire(name, result)


@pytest.mark.row("KX-14")
@pytest.mark.parametrize("position", ["append", "prepend"])
def test_attachment_position_of_developer_message_is_preserved(position: str) -> None:
    note = line(
        "DeveloperMessage",
        role="developer",
        parts=[text_part("note")],
        attachment_position=position,
    )
    data = klaude_bytes([user_line(text_part("hi")), note])
    result = interchange.load("klaude-code", data)
    assert result.losses == []
    assert result.messages[1].metadata.prepended is (position == "prepend")
    body = wire("openai", result)
    assert (body.index(b"note") < body.index(b"hi")) is (position == "prepend")
    assert interchange.dump("klaude-code", result.entries).data == data
    reread = interchange.dump("klaude-code", result.messages).data
    assert (
        interchange.load("klaude-code", reread).messages[1].metadata == result.messages[1].metadata
    )


@pytest.mark.row("K-005", "K-038", "K-040", "K-043", "K-099", "K-129")
def test_signature_belongs_to_nearest_preceding_thinking() -> None:
    result = loaded(
        answer_line(thought("a"), seal("A"), text_part("x"), thought("b"), thought("c"), seal("C"))
    )
    blocks = result.messages[0].content
    assert [(b.text, b.signature) for b in blocks if isinstance(b, ThinkingBlock)] == [
        ("a", "A"),
        ("b", None),
        ("c", "C"),
    ]
    assert result.losses == []


@pytest.mark.row("K-043")
def test_signature_after_other_parts_is_matched_to_its_thinking() -> None:
    message = only(answer_line(thought("a"), called(), seal("A")), result_line())
    assert message.role == Role.TOOL
    result = loaded(answer_line(thought("a"), text_part("x"), seal("A")))
    sealed = thinking("a", signature="A", issuer="klaude-code")
    assert result.messages[0].content == (sealed, text("x"))
    assert result.losses  # the position of the signature is stored and reported


@pytest.mark.row("K-044")
def test_signature_without_thinking_keeps_its_position() -> None:
    sealed = seal("A", format="f", id="rs_1")
    result = loaded(answer_line(sealed, text_part("x")))
    assert result.messages[0].content[0] == RedactedThinkingBlock("A", "rs_1", "f", "klaude-code")


@pytest.mark.row("K-044")
def test_lone_claude_signature_is_thinking_without_text() -> None:
    sealed = seal("A", model_id="claude-sonnet-4-6")
    result = loaded(user_line(text_part("hi")), answer_line(sealed, text_part("x")))
    assert result.messages[1].content[0] == thinking("", signature="A", issuer="anthropic")
    sent = json.loads(wire("anthropic", result))["messages"][1]["content"]
    assert sent[0] == {"type": "thinking", "thinking": "", "signature": "A"}
    again = interchange.dump("klaude-code", result.messages).data.splitlines()[1]
    kinds = [part["type"] for part in json.loads(again)["data"]["parts"]]
    assert kinds == ["thinking_signature", "text"]


@pytest.mark.row("K-043", "K-044")
def test_signature_of_catalogued_model_is_sent_to_its_provider() -> None:
    expected: dict[str, Any] = {"model_id": "claude-sonnet-4-6"}
    parts = [
        thought("a", **expected),
        seal("A", **expected),
        thought("b", **expected),
        seal("B", **expected),
    ]
    result = loaded(user_line(text_part("hi")), answer_line(*parts, seal("odd"), text_part("so")))
    assert result.messages[1].content[0] == thinking("a", signature="A", issuer="anthropic")
    sent = json.loads(wire("anthropic", result))["messages"][1]["content"]
    assert [(block["type"], block.get("signature")) for block in sent] == [
        ("thinking", "A"),
        ("thinking", "B"),
        ("text", None),
    ]


@pytest.mark.row("K-041", "K-042")
@pytest.mark.parametrize(
    "raw", ['{"a":1}', '{ "a" : 1.10 }', "", "{", "[1]", '{"a":1,"a":2}', '"\\u00e9"']
)
def test_arguments_round_trip_as_raw_text(raw: str) -> None:
    result = loaded(answer_line(called(raw)))
    block = result.messages[0].content[0]
    assert isinstance(block, ToolUseBlock)
    if raw in ("{", "[1]", '"\\u00e9"'):
        assert block.invalid is not None
        assert block.invalid.raw == raw
        assert block.input == {}


@pytest.mark.row("K-035", "K-131")
def test_images_by_url_and_data_url() -> None:
    inline = {"type": "image_url", "url": "data:image/png;base64,aWY=", "id": None}
    remote = {"type": "image_url", "url": "https://a/b.png", "id": None}
    result = loaded(user_line(inline, remote))
    blocks = result.messages[0].content
    for name in ("anthropic", "openai"):
        assert b"aWY=" in wire(name, result)
        assert b"https://a/b.png" in wire(name, result)
    assert blocks[0] == image("aWY=")
    assert isinstance(blocks[1], ImageBlock)
    assert (blocks[1].source.kind, blocks[1].media_type) == ("url", "image/*")


@pytest.mark.row("K-037", "K-131")
def test_generated_image_is_an_artifact() -> None:
    part = {
        "type": "image_file",
        "file_path": "/w/a.png",
        "mime_type": "image/png",
        "byte_size": 3,
        "sha256": "ab",
    }
    result = loaded(answer_line(part))
    block = result.messages[0].content[0]
    assert isinstance(block, ArtifactBlock)
    assert (block.source.kind, block.source.data) == ("file_ref", "/w/a.png")
    paths = sorted(loss.path for loss in result.losses)
    assert paths == ["$.data.parts[0].byte_size", "$.data.parts[0].sha256"]


@pytest.mark.row("K-036")
def test_optional_file_facts_round_trip(tmp_path: Path) -> None:
    """Everything but the path may be absent; the digest stays that of the file."""
    file = tmp_path / "a.png"
    file.write_bytes(b"a picture")
    digest = hashlib.sha256(b"a picture").hexdigest()
    about = {"mime_type": "image/png", "byte_size": 9, "sha256": digest}
    bare = {"type": "image_file", "file_path": str(file)}
    for part in (bare, bare | about):
        document = answer_line(part)
        result = loaded(document)
        block = result.messages[0].content[0]
        assert isinstance(block, ArtifactBlock)
        assert block.source.data == str(file)
        reread = interchange.dump("klaude-code", result.entries).data
        (line,) = [json.loads(item) for item in reread.splitlines()]
        reasons = line["data"]["parts"][0]
        assert reasons == part
        if "sha256" in reasons:
            assert reasons["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.row("K-003", "K-052", "K-053", "K-056", "K-057", "K-058", "K-132")
def test_a_result_keeps_its_typed_fields() -> None:
    picture = {"type": "image_url", "url": "https://a/b.png", "id": None}
    result = loaded(
        user_line(text_part("hi")),
        answer_line(called()),
        result_line(
            parts=[picture], ui_extra={"type": "diff", "files": ["HIDE"]}, side_effects=["todo"]
        ),
    )
    message = result.messages[-1]
    assert b"HIDE" not in wire("anthropic", result)
    assert result.losses == []
    outcome = message.metadata.outcome
    assert outcome is not None
    assert outcome.tool_name == "bash"
    assert outcome.ui == {"files": ["HIDE"], "type": "diff"}
    assert outcome.side_effects == ("todo",)
    calls = [block.id for block in result.messages[1].content if isinstance(block, ToolUseBlock)]
    assert [message.metadata.parent_tool_use_id] == calls
    block = message.content[0]
    assert isinstance(block, ToolResultBlock)
    assert [inner.type for inner in block.content] == ["text", "image"]


def test_sub_task_usage_stays_with_the_result() -> None:
    result = loaded(answer_line(called()), result_line(task_metadata={"turn_count": 2}))
    assert [loss.path for loss in result.losses] == ["$.data.task_metadata"]


@pytest.mark.row("K-054", "K-065", "K-066", "K-067", "K-068", "K-069")
@pytest.mark.parametrize("status", ["success", "error", "aborted"])
def test_every_tool_status(status: str) -> None:
    result = loaded(answer_line(called()), result_line(status=status))
    outcome = result.messages[1].metadata.outcome
    assert outcome is not None
    assert outcome.status == OutcomeStatus(status)
    shown = list(replay(result.entries[1:]))
    assert isinstance(shown[0], ReplayedToolResult)
    assert shown[0].status == ("success" if status == "success" else "error")
    assert [type(event) for event in shown[1:]] == ([Interrupt] if status == "aborted" else [])


STOPS = [
    ("stop", StopReason.END_TURN, MessageStatus.COMPLETE),
    ("length", StopReason.MAX_TOKENS, MessageStatus.COMPLETE),
    ("tool_use", StopReason.TOOL_USE, MessageStatus.COMPLETE),
    ("error", StopReason.ERROR, MessageStatus.ERROR),
    ("aborted", StopReason.CANCELLED, MessageStatus.CANCELLED),
]


@pytest.mark.row("K-050", "K-060", "K-061", "K-062", "K-063", "K-064")
@pytest.mark.parametrize(("word", "reason", "status"), STOPS)
def test_every_stop_reason(word: str, reason: StopReason, status: MessageStatus) -> None:
    metadata = only(answer_line(text_part("hi"), stop_reason=word)).metadata
    assert (metadata.stop_reason, metadata.status) == (reason, status)


@pytest.mark.row("K-015")
def test_interrupted_response_is_aborted_despite_provider_stop_reason() -> None:
    stopped = provenance(status=MessageStatus.CANCELLED, stop_reason=StopReason.END_TURN)
    data = interchange.dump("klaude-code", [assistant("x", metadata=stopped)]).data
    assert json.loads(data)["data"]["stop_reason"] == "aborted"


@pytest.mark.row("K-050")
def test_usage_is_split_into_disjoint_counts() -> None:
    counts = {"input_tokens": 10, "cached_tokens": 4, "reasoning_tokens": 1, "output_tokens": 5}
    usage = counts | {"model_name": "claude-sonnet-4-6", "provider": "anthropic"}
    result = loaded(answer_line(text_part("hi"), usage=usage))
    metadata = result.messages[0].metadata
    assert metadata.usage is not None
    assert (metadata.usage.input_tokens, metadata.usage.cached_input_tokens) == (6, 4)
    assert metadata.model == "anthropic:claude-sonnet-4-6"
    assert result.losses == []


@pytest.mark.row("K-004", "K-028", "K-073", "K-075", "K-076", "K-097")
def test_non_message_events_keep_their_position() -> None:
    result = loaded(
        user_line(text_part("hi")),
        {"type": "StreamErrorItem", "data": {"error": "overloaded", "created_at": T}},
        answer_line(text_part("ok")),
        {"type": "TaskMetadataItem", "data": {"main_agent": {"turn_count": 1}, "created_at": T}},
    )
    kinds = [MessageEntry, ErrorEntry, MessageEntry, TaskMetadataEntry]
    assert [type(entry) for entry in result.entries] == kinds
    assert result.losses == []


@pytest.mark.row("KX-09", "KX-10")
def test_summaries_and_retractions_change_the_view() -> None:
    brief: dict[str, Any] = {
        "summary": "long ago",
        "first_kept_index": 1,
        "tokens_before": 9,
        "details": None,
        "kept_items_brief": [],
        "created_at": T,
    }
    result = loaded(
        user_line(text_part("one")),
        answer_line(text_part("two")),
        user_line(text_part("three")),
        {"type": "CompactionEntry", "data": brief},
        user_line(text_part("oops")),
        {"type": "RetractEntry", "data": {"created_at": T}},
    )
    assert isinstance(result.entries[3], CompactionEntry)
    assert isinstance(result.entries[5], RetractionEntry)
    shown = view(result.entries).messages
    texts = [getattr(block, "text", "") for message in shown for block in message.content]
    assert texts == ["long ago", "two", "three"]


def checkpoint(number: int) -> dict[str, Any]:
    reminder = f"<system-reminder>Checkpoint {number}</system-reminder>"
    return line("DeveloperMessage", role="developer", parts=[text_part(reminder)])


def rewind(number: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "checkpoint_id": number,
        "note": "the file is there",
        "rationale": "too long",
        "reverted_from_index": 4,
        "original_user_message": "one",
        "created_at": T,
    }
    return {"type": "RewindEntry", "data": data}


def shown(result: LoadedDocument) -> list[str]:
    blocks = [block for message in view(result.entries).messages for block in message.content]
    return [getattr(block, "text", "") for block in blocks]


@pytest.mark.row("KX-10")
def test_a_rewind_goes_back_to_its_checkpoint_and_leaves_a_note() -> None:
    result = loaded(
        user_line(text_part("one")),
        checkpoint(0),
        answer_line(text_part("long way")),
        checkpoint(1),
        answer_line(text_part("longer")),
        rewind(0),
        answer_line(text_part("short")),
        checkpoint(1),
        answer_line(text_part("dead end")),
        rewind(1),
    )
    entries = result.entries
    assert [entry.to_id for entry in entries if isinstance(entry, RewindEntry)] == [
        entries[1].id,
        entries[7].id,
    ]
    reminders = [f"<system-reminder>Checkpoint {n}</system-reminder>" for n in (0, 1)]
    note = "the file is there"
    assert shown(result) == ["one", reminders[0], note, "short", reminders[1], note]
    assert result.losses == []


@pytest.mark.row("KX-10")
def test_a_rewind_goes_to_the_first_message_that_names_its_checkpoint() -> None:
    result = loaded(checkpoint(0), answer_line(text_part("one")), checkpoint(0), rewind(0))
    reminder = "<system-reminder>Checkpoint 0</system-reminder>"
    assert shown(result) == [reminder, "the file is there"]


@pytest.mark.row("KX-10")
def test_a_rewind_to_an_unnamed_checkpoint_hides_nothing() -> None:
    result = loaded(user_line(text_part("one")), answer_line(text_part("two")), rewind(7))
    assert shown(result) == ["one", "two", "the file is there"]


def test_a_rewind_that_names_no_checkpoint_is_a_loss() -> None:
    result = loaded(user_line(text_part("one")), checkpoint(0), answer_line(text_part("two")))
    common: dict[str, Any] = {"session_id": result.messages[0].session_id, "created_at": NOW}
    for number, target in ((None, result.messages[1].id), (0, result.messages[0].id)):
        entry = RewindEntry(id=ulid(9), checkpoint=number, to_id=target, **common)
        dumped = interchange.dump("klaude-code", [*result.entries, entry])
        assert [loss.block_type for loss in dumped.losses] == ["rewind"]
        assert b"RewindEntry" not in dumped.data


@pytest.mark.row("KX-10")
def test_retraction_refers_to_message_by_line_or_text() -> None:
    first, second = user_line(text_part("one")), user_line(text_part("two"))

    def retract(**data: Any) -> list[str]:
        entry = {"type": "RetractEntry", "data": {**data, "created_at": T}}
        return shown(loaded(first, second, entry))

    assert retract(retracted_text="two") == ["one"]
    assert retract(retracted_text="two", retracted_line=1) == ["one"]
    assert retract(retracted_text="two", retracted_line=9) == ["one"]
    assert retract(retracted_line=0) == []
    assert retract(retracted_text="never sent") == ["one", "two"]


def test_a_line_names_the_first_message_after_a_summary() -> None:
    data = {"summary": "s", "first_kept_index": 9, "first_kept_line": 1, "created_at": T}
    result = loaded(
        user_line(text_part("one")),
        user_line(text_part("two")),
        {"type": "CompactionEntry", "data": data},
    )
    assert shown(result) == ["s", "two"]


@pytest.mark.parametrize(
    "counts",
    [
        {"input_tokens": -1},
        {"output_tokens": -1},
        {"cached_tokens": -1},
        {"reasoning_tokens": -1},
        {"input_tokens": 1, "cached_tokens": 2},
        {"output_tokens": 1, "reasoning_tokens": 2},
        {"input_tokens": 2**63},
    ],
)
def test_impossible_counts_are_not_usage(counts: dict[str, int]) -> None:
    answer = answer_line(text_part("x"))
    answer["data"]["usage"] = {"input_tokens": 5, "output_tokens": 5, **counts}
    result = loaded(user_line(text_part("hi")), answer)
    assert result.messages[1].metadata.usage is None
    assert {loss.path.partition(".usage")[0] for loss in result.losses} == {"$.data"}


@pytest.mark.row("KX-11")
def test_unknown_event_is_a_sidecar_hidden_from_models() -> None:
    away = {"type": "AwaySummaryEntry", "data": {"text": "later", "created_at": T}}
    result = loaded(user_line(text_part("hi")), away)
    assert isinstance(result.entries[1], SidecarEntry)
    assert [loss.block_type for loss in result.losses] == ["AwaySummaryEntry"]
    assert len(view(result.entries).messages) == 1


@pytest.mark.row("K-020", "K-021", "K-077", "K-078", "K-079", "K-080")
@pytest.mark.parametrize(
    "kind",
    [
        "AssistantTextDelta",
        "ThinkingTextDelta",
        "ToolCallStartDelta",
        "InterruptItem",
        "ResponseMetadataItem",
        "UserMessageItem",
        "ToolCallItem",
    ],
)
def test_invalid_history_is_refused(kind: str) -> None:
    data = klaude_bytes([user_line(text_part("hi")), {"type": kind, "data": {"content": "x"}}])
    with pytest.raises(ForeignDocumentError, match=kind) as caught:
        interchange.load("klaude-code", data)
    assert (caught.value.line, caught.value.path) == (2, "$.type")


BAD: list[tuple[dict[str, Any], str, str]] = [
    (result_line(parts=[text_part("no")]), "$.data.parts[0]", "output_text"),
    (line("SystemMessage", role="system", parts=[called()]), "$.data.parts[0]", "text only"),
    (user_line({"type": "text", "text": 1}), "$.data.parts[0].text", "expected `str`"),
    (user_line({"text": "x"}), "$.data.parts[0].type", "no type"),
    (line("UserMessage", role="user", parts="x"), "$.data.parts", "expected `array`"),
    (line("UserMessage", role="assistant", parts=[]), "$.data.role", "the role user"),
    (answer_line(stop_reason="tired"), "$.data.stop_reason", "tired"),
    (result_line(status="done"), "$.data.status", "done"),
    (
        user_line(text_part("x")) | {"data": {"parts": [], "created_at": "noon"}},
        "$.data.created_at",
        "noon",
    ),
    ({"type": "UserMessage"}, "$", "data"),
]


@pytest.mark.row("K-018", "K-034", "K-046", "K-071")
@pytest.mark.parametrize(("bad", "path", "texts"), BAD, ids=[case[1] + case[2] for case in BAD])
def test_invalid_line_error_names_line_and_path(bad: Any, path: str, texts: str) -> None:
    with pytest.raises(ForeignDocumentError, match=texts) as caught:
        interchange.load("klaude-code", klaude_bytes([user_line(text_part("ok")), bad]))
    assert (caught.value.format, caught.value.line, caught.value.path) == ("klaude-code", 2, path)


@pytest.mark.parametrize("junk", [b"{", b"[]", b'{"type":"UserMessage","type":"x"}', b"\xff"])
def test_non_object_line_error_names_the_line(junk: bytes) -> None:
    with pytest.raises(ForeignDocumentError) as caught:
        interchange.load("klaude-code", b"\n" + junk)
    assert caught.value.line == 2


def test_blank_lines_and_missing_last_newline_are_accepted() -> None:
    data = b"\n" + klaude_bytes([user_line(text_part("hi"))]).rstrip()
    assert len(interchange.load("klaude-code", data).messages) == 1


def test_result_without_call_becomes_user_text() -> None:
    result = loaded(result_line())
    assert result.messages[0].role == Role.USER
    assert [loss.reason for loss in result.losses] == [
        "no open call of this history matches it; it became a user message"
    ]


def test_a_message_without_parts_and_a_time_without_a_zone_are_reported() -> None:
    bare = user_line()
    bare["data"]["created_at"] = "2026-01-01T10:00:00"
    result = loaded(bare)
    assert {(loss.block_type, loss.change) for loss in result.losses} == {
        ("text", Change.SYNTHESISED),
        ("created_at", Change.ALTERED),
    }


def test_misplaced_parts_become_opaque() -> None:
    result = loaded(user_line(called(), text_part("x")))
    assert isinstance(result.messages[0].content[0], OpaqueBlock)


def test_canonical_conversation_is_exported_with_every_loss() -> None:
    sealed = thinking("hm", signature="s", issuer="anthropic")
    outcome = Outcome(status=OutcomeStatus.SUCCESS, tool_name="bash")
    about = MessageMetadata(parent_tool_use_id=tool_id(1), outcome=outcome)
    messages = numbered(
        system("be kind"),
        user("hi", image()),
        assistant(sealed, call("bash", tool_id(1), cmd="ls")),
        tool("out", answers=tool_id(1), metadata=about),
        developer("note"),
    )
    dumped = interchange.dump("klaude-code", messages)
    back = interchange.load("klaude-code", dumped.data).messages
    assert [m.content_digest() for m in back] == [m.content_digest() for m in messages]
    lost = {loss.path for loss in dumped.losses}
    assert "$.metadata.routing" in lost
    assert not [path for path in lost if path.startswith("$.content")]


@pytest.mark.parametrize("tag", sorted(EVERY_BLOCK))
def test_every_block_is_exported_or_a_loss(tag: str) -> None:
    message = assistant("x", EVERY_BLOCK[tag])
    dumped = interchange.dump("klaude-code", [message])
    back = interchange.load("klaude-code", dumped.data).messages[0]
    if back.content_digest() != message.content_digest():
        assert tag in {loss.block_type for loss in dumped.losses}


def test_history_is_recognised_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(klaude_bytes([user_line(text_part("hi"))]))
    assert interchange.detect(path.read_bytes()) == "klaude-code"
