"""gpt2099 contexts, threads and stored turns, handwritten."""

import base64
import json
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from build import (
    NOW,
    SESSION,
    assistant,
    call,
    developer,
    numbered,
    system,
    tool,
    tool_id,
    ulid,
    user,
)
from documents import scru128
from metis import adapters, interchange
from metis.canonical import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    MessageMetadata,
    OpaqueBlock,
    Outcome,
    OutcomeStatus,
    Role,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import ForeignDocumentError
from metis.interchange import LoadedDocument
from metis.interchange.gpt2099.turns import is_turn_id, turn_id, turn_time
from metis.store.entries import BookmarkEntry
from metis.store.threads import Threads
from metis.wire.call import AdapterOptions

MARK = {"type": "ephemeral"}
USE = {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a"}}
RESULT = {
    "type": "tool_result",
    "name": "read",
    "content": [{"type": "text", "text": "out"}],
    "tool_use_id": "call_1",
}


def text_block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def spoke(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def context(*messages: Any, **options: Any) -> LoadedDocument:
    document = {"messages": list(messages), "options": options}
    return _proved("gpt2099-context", json.dumps(document))


def frames(*lines: dict[str, Any]) -> LoadedDocument:
    return _proved("gpt2099", "".join(json.dumps(line) + "\n" for line in lines))


def frame(number: int, content: Any = None, **meta: Any) -> dict[str, Any]:
    blocks = [text_block(f"t{number}")] if content is None else content
    stated = {"content_type": "application/json", **meta}
    return {"topic": "gpt.turn", "id": scru128(number), "meta": stated, "content": blocks}


def _proved(name: str, data: str) -> LoadedDocument:
    """Return the document as entries, after checking that it round-trips."""
    result = interchange.load(name, data)
    back = interchange.dump(name, result.entries)
    if name == "gpt2099":
        assert back.data.decode() == data
    else:
        assert json.loads(back.data) == json.loads(data)
    assert back.losses == []
    return result


def threads(result: LoadedDocument) -> Threads:
    return Threads(result.entries)


@pytest.mark.row("G-001", "G-002", "G-003", "G-008", "G-011", "G-013", "G-015")
def test_results_in_user_messages_become_tool_messages() -> None:
    result = context(
        spoke("system", text_block("be kind")),
        spoke("user", text_block("hi", cache_control=MARK)),
        spoke("assistant", text_block("ok"), USE),
        spoke("user", RESULT, text_block("and now?")),
    )
    assert result.losses == []
    roles = [str(message.role) for message in result.messages]
    assert roles == ["system", "user", "assistant", "tool", "user"]


@pytest.mark.row("G-012", "G-014")
def test_calls_without_ids_are_paired_by_the_name_of_the_tool() -> None:
    use: dict[str, Any] = {"type": "tool_use", "name": "read", "input": {}}
    answer: dict[str, Any] = {"type": "tool_result", "name": "read", "content": []}
    result = context(spoke("assistant", use, use), spoke("user", answer, answer))
    calls = [block.id for block in result.messages[0].content if isinstance(block, ToolUseBlock)]
    results = [message.content[0] for message in result.messages[1:]]
    assert [r.tool_use_id for r in results if isinstance(r, ToolResultBlock)] == calls
    assert len(set(calls)) == 2


@pytest.mark.row("G-016")
def test_an_error_reaches_the_provider() -> None:
    failed = RESULT | {"is_error": True}
    result = context(
        spoke("user", text_block("go")), spoke("assistant", USE), spoke("user", failed)
    )
    options = AdapterOptions(model="claude-sonnet-4-6")
    body = json.loads(adapters.get("anthropic").to_wire(result.messages, (), options).body)
    assert body["messages"][2]["content"][0]["is_error"] is True


@pytest.mark.row("G-009")
@pytest.mark.parametrize(
    ("media", "kind"),
    [
        ("application/pdf", DocumentBlock),
        ("text/markdown", DocumentBlock),
        ("image/png", ImageBlock),
        ("audio/wav", AudioBlock),
        ("odd", OpaqueBlock),
    ],
)
def test_media_type_decides_block_type_of_document(media: str, kind: type[object]) -> None:
    source = {"type": "base64", "media_type": media, "data": "aWY="}
    result = context(spoke("user", {"type": "document", "source": source, "cache_control": MARK}))
    assert isinstance(result.messages[0].content[0], kind)
    assert result.losses == []


@pytest.mark.row("G-004", "G-038")
def test_options_apply_from_the_first_message() -> None:
    result = context(spoke("user", text_block("hi")), provider_ptr="kilo", search=True)
    assert threads(result).view().options == {"provider_ptr": "kilo", "search": True}
    assert context(spoke("user", text_block("hi"))).messages[0].metadata.options is None
    assert context(provider_ptr="kilo").messages == []


@pytest.mark.row("G-038", "G-039")
def test_exported_context_has_merged_options() -> None:
    messages = numbered(
        user("a", metadata=MessageMetadata(options={"provider_ptr": "nano", "servers": ["x"]})),
        user("b", metadata=MessageMetadata(options={"provider_ptr": "kilo"})),
    )
    window = json.loads(interchange.dump("gpt2099-context", messages).data)
    assert window["options"] == {"provider_ptr": "kilo", "servers": ["x"]}


@pytest.mark.row("G-034", "G-036", "G-041")
def test_thread_round_trips_ids_options_and_cache_flags() -> None:
    turn = {
        "id": scru128(1),
        "role": "user",
        "content": [text_block("hi")],
        "options": {"search": True},
        "cache": True,
    }
    result = _proved("gpt2099-thread", json.dumps([turn]))
    message = result.messages[0]
    assert result.losses == []
    assert message.metadata.options == {"search": True}
    assert [hint.after for hint in message.metadata.hints] == [0]
    assert message.metadata.external == {"gpt2099": {"id": scru128(1)}}


@pytest.mark.row("G-019", "G-027")
def test_stored_turn_has_user_role_by_default() -> None:
    result = frames(frame(1, cache=True), frame(2, role="assistant", continues=scru128(1)))
    assert [message.role for message in result.messages] == [Role.USER, Role.ASSISTANT]
    assert result.messages[0].metadata.hints[0].after == 0
    assert result.losses == []


@pytest.mark.row("G-020")
@pytest.mark.parametrize("name", ["options", "inherited"])
def test_options_are_read_under_both_names(name: str) -> None:
    result = frames(frame(1, **{name: {"provider_ptr": "nano"}}))
    assert result.messages[0].metadata.options == {"provider_ptr": "nano"}
    assert result.losses == []


@pytest.mark.row("G-020", "G-052")
def test_new_option_key_is_written_and_old_key_round_trips() -> None:
    ours = user("go", metadata=MessageMetadata(options={"search": True}))
    (line,) = interchange.dump("gpt2099", numbered(ours)).data.splitlines()
    assert json.loads(line)["meta"]["inherited"] == {"search": True}
    assert "options" not in json.loads(line)["meta"]
    old = frames(frame(1, options={"provider_ptr": "nano"}))
    new = frames(frame(1, inherited={"provider_ptr": "nano"}))
    both = frames(frame(1, options={"search": True}, inherited={"provider_ptr": "nano"}))
    assert old.messages[0].metadata.options == new.messages[0].metadata.options
    assert both.messages[0].metadata.options == {"search": True, "provider_ptr": "nano"}


class OldMeta(Struct):
    """The metadata of a turn for a reader that only has the old key."""

    role: str = "user"
    options: dict[str, Any] = {}


class OldFrame(Struct):
    """A frame for a reader that only has the old key."""

    topic: str
    id: str
    meta: OldMeta


@pytest.mark.row("G-052")
@pytest.mark.parametrize(("name", "shown"), [("options", {"search": True}), ("inherited", {})])
def test_reader_of_old_key_reads_continued_turns(name: str, shown: dict[str, Any]) -> None:
    result = frames(frame(1, **{name: {"provider_ptr": "nano"}}))
    more = user("go on", metadata=MessageMetadata(options={"search": True}))
    dumped = interchange.dump("gpt2099", [*result.entries, *numbered(more)])
    lines = [msgspec.json.decode(line, type=OldFrame) for line in dumped.data.splitlines()]
    assert lines[1].meta.options == shown
    back = interchange.load("gpt2099", dumped.data)
    assert threads(back).view().options == {"provider_ptr": "nano", "search": True}


@pytest.mark.row("G-018")
def test_last_four_of_five_marked_turns_stay_marked() -> None:
    turns = [frame(1, cache=True)]
    turns += [frame(n, cache=True, continues=scru128(n - 1)) for n in range(2, 6)]
    options = AdapterOptions(model="claude-sonnet-4-6")
    wire = adapters.get("anthropic").to_wire(frames(*turns).messages, (), options)
    blocks = [b for m in json.loads(wire.body)["messages"] for b in m["content"]]
    assert [block["text"] for block in blocks] == ["t1", "t2", "t3", "t4", "t5"]
    assert [block.get("cache_control") for block in blocks] == [None, MARK, MARK, MARK, MARK]


@pytest.mark.row("G-034")
def test_the_cache_flag_of_a_message_in_a_window_marks_its_last_block() -> None:
    flagged = {**spoke("user", text_block("a"), text_block("b")), "cache": True}
    answered = {**spoke("user", RESULT), "cache": True}
    result = context(flagged, spoke("assistant", USE), answered, spoke("user", text_block("c")))
    assert result.losses == []
    options = AdapterOptions(model="claude-sonnet-4-6")
    wire = adapters.get("anthropic").to_wire(result.messages, (), options)
    blocks = [b for m in json.loads(wire.body)["messages"] for b in m["content"]]
    marked = [(block["type"], "cache_control" in block) for block in blocks]
    kinds = ["text", "text", "tool_use", "tool_result", "text"]
    assert marked == list(zip(kinds, [False, True, False, True, False], strict=True))


@pytest.mark.row("G-026", "G-037")
def test_turns_continue_ids_and_bookmarks_one_or_several() -> None:
    result = frames(
        frame(1, head="work"),
        frame(2, continues=scru128(1)),
        frame(3, continues="work"),
        frame(4, continues=[scru128(2), scru128(3)]),
    )
    assert result.losses == []
    shown = [message.content[0] for message in threads(result).path()]
    assert [getattr(block, "text", "") for block in shown] == ["t1", "t2", "t3", "t4"]
    ids = [message.id for message in result.messages]
    assert result.messages[2].metadata.parents == (ids[0],)
    assert result.messages[3].metadata.parents == (ids[1], ids[2])


@pytest.mark.row("G-025", "G-043", "G-046")
def test_a_head_is_a_bookmark_that_resolves_to_the_newest_turn() -> None:
    result = frames(frame(1, head="work"), frame(2, head="work", continues=scru128(1)))
    assert threads(result).resolve("work") == result.messages[1].id
    assert [type(entry) for entry in result.entries].count(BookmarkEntry) == 2


def test_a_second_root_and_a_missing_parent_are_reported() -> None:
    result = frames(frame(1), frame(2), frame(3, continues=scru128(77)))
    assert [loss.path for loss in result.losses] == ["$.meta.continues", "$.meta.continues"]


@pytest.mark.row("G-028")
def test_content_is_blocks_json_or_plain_text() -> None:
    inline = frame(1, json.dumps([text_block("a")]))
    legacy = {"topic": "gpt.turn", "id": scru128(2)}
    legacy |= {"meta": {"continues": scru128(1)}, "content": "b"}
    result = frames(inline, legacy)
    assert [getattr(m.content[0], "text", "") for m in result.messages] == ["a", "b"]
    assert result.losses == []


@pytest.mark.row("G-029", "G-032", "G-033")
def test_an_uploaded_file_is_a_document_with_its_name() -> None:
    data = base64.b64encode(b"%PDF").decode()
    meta = {
        "role": "user",
        "type": "document",
        "content_type": "application/pdf",
        "document_name": "a.pdf",
        "original_path": "/docs/a.pdf",
        "file_size": 4,
        "cache_control": "ephemeral",
    }
    result = frames({"topic": "gpt.turn", "id": scru128(1), "meta": meta, "content": data})
    block = result.messages[0].content[0]
    assert isinstance(block, DocumentBlock)
    assert (block.name, block.media_type, block.source.data) == ("a.pdf", "application/pdf", data)
    assert result.messages[0].metadata.hints
    assert [loss.path for loss in result.losses] == ["$.meta.original_path"]
    about = MessageMetadata(external={"gpt2099": {"document": True}})
    bare = replace(result.messages[0], metadata=about)
    written = json.loads(interchange.dump("gpt2099", [bare]).data)
    assert (written["meta"]["document_name"], written["meta"]["file_size"]) == ("a.pdf", 4)


@pytest.mark.row("G-030", "G-031", "G-032")
def test_file_without_name_gets_file_name_and_wrong_facts_are_losses() -> None:
    data = base64.b64encode(b"a,b").decode()
    meta: dict[str, Any] = {"type": "document", "content_type": "text/csv"}
    line: dict[str, Any] = {"topic": "gpt.turn", "id": scru128(1), "content": data}
    result = frames(line | {"meta": meta | {"original_path": "/docs/t.csv", "file_size": 3}})
    block = result.messages[0].content[0]
    assert isinstance(block, DocumentBlock)
    assert block.name == "t.csv"
    result = frames(line | {"meta": meta | {"original_path": "docs/t.csv", "file_size": 5}})
    reasons = {loss.path: loss.reason for loss in result.losses}
    assert "not an absolute path" in reasons["$.meta.original_path"]
    assert reasons["$.meta.file_size"] == "the frame states 5 bytes, the file has 3"
    assert frames(line | {"meta": meta}).losses == []


@pytest.mark.row("G-030")
def test_file_without_name_is_sent_with_file_name() -> None:
    data = base64.b64encode(b"%PDF").decode()
    meta = {
        "role": "user",
        "type": "document",
        "content_type": "application/pdf",
        "original_path": "/docs/tides.pdf",
        "file_size": 4,
    }
    result = frames({"topic": "gpt.turn", "id": scru128(1), "meta": meta, "content": data})
    block = result.messages[0].content[0]
    assert isinstance(block, DocumentBlock)
    assert block.name == "tides.pdf"


@pytest.mark.row("G-035", "G-041", "G-042")
def test_message_ids_become_unique_turn_ids_in_same_order() -> None:
    ours = [ulid(number * 7919) for number in range(100_000)]
    foreign = [turn_id(item) for item in ours]
    assert len(set(foreign)) == len(ours)
    assert sorted(foreign) == foreign
    assert all(is_turn_id(item) for item in foreign[:100])
    moment = turn_time(foreign[0])
    assert moment is not None
    assert int(moment.timestamp() * 1000) == 1_778_241_600_000
    assert turn_time("research") is None
    assert turn_id("m1") == "m1"


def test_canonical_thread_is_exported_with_parents_and_bookmarks() -> None:
    outcome = Outcome(status=OutcomeStatus.SUCCESS, tool_name="bash")
    about = MessageMetadata(parent_tool_use_id=tool_id(1), outcome=outcome)
    messages = numbered(
        system("be kind"),
        user("hi"),
        assistant("ok", call("bash", tool_id(1), cmd="ls")),
        tool("out", answers=tool_id(1), metadata=about),
    )
    name = BookmarkEntry(
        id=ulid(999), session_id=SESSION, created_at=NOW, message_id=messages[1].id, name="work"
    )
    dumped = interchange.dump("gpt2099", [*messages, name])
    lines = [json.loads(line) for line in dumped.data.splitlines()]
    assert [line["meta"].get("continues") for line in lines] == [
        None,
        *[line["id"] for line in lines[:-1]],
    ]
    assert [line["meta"].get("head") for line in lines] == [None, "work", None, None]
    back = interchange.load("gpt2099", dumped.data)
    assert [m.content_digest() for m in back.messages] == [m.content_digest() for m in messages]
    assert not [loss for loss in dumped.losses if loss.path.startswith("$.content")]


@pytest.mark.parametrize("name", ["gpt2099", "gpt2099-thread", "gpt2099-context"])
def test_unsupported_role_is_a_loss(name: str) -> None:
    dumped = interchange.dump(name, numbered(user("hi"), developer("note")))
    assert [loss.change for loss in dumped.losses if loss.block_type == "message"] == ["dropped"]


BAD = [
    ("gpt2099", '{"topic": "gpt.turn", "id": "x", "meta": {}}', "$"),
    ("gpt2099", '{"topic": "other", "id": "x", "content": ""}', "$.topic"),
    ("gpt2099", json.dumps(frame(1, "[1")), "$.content[0]"),
    ("gpt2099", json.dumps(frame(1, '{"a": 1}')), "$.content"),
    ("gpt2099", json.dumps(frame(1, continues=3)), "$.meta.continues"),
    ("gpt2099-thread", '[{"id": 1, "content": []}]', "$[0].id"),
    ("gpt2099-context", "[]", "$"),
    ("gpt2099-context", '{"messages": 1}', "$.messages"),
    ("gpt2099-context", '{"messages": [], "options": 1}', "$.options"),
    ("gpt2099-context", '{"messages": [{"role": "tool", "content": []}]}', "$.messages[0].role"),
    (
        "gpt2099-context",
        '{"messages": [{"role": "user", "content": [{"text": "x"}]}]}',
        "$.messages[0].content[0].type",
    ),
]


@pytest.mark.row("G-002")
@pytest.mark.parametrize(("name", "data", "path"), BAD, ids=[f"{n}{p}" for n, _, p in BAD])
def test_invalid_document_error_names_line_and_path(name: str, data: str, path: str) -> None:
    with pytest.raises(ForeignDocumentError) as caught:
        interchange.load(name, data)
    assert (caught.value.format, caught.value.path, caught.value.line) == (name, path, 1)
