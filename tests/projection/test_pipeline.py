"""The projection pipeline: each step that fits messages to a target, with its losses."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from build import (
    assistant,
    call,
    developer,
    image,
    message,
    opaque,
    system,
    text,
    thinking,
    tool,
    tool_id,
    user,
)
from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    Citation,
    ContentBlock,
    DocumentBlock,
    InvalidInput,
    MediaSource,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
    encode,
)
from metis.canonical.errors import CriticalLossError
from metis.projection import Change, Projection, Target, project
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.projection.tool_calls import NO_RESULT, PORTABLE_NAME, wire_tool_name

PLAIN = Target(adapter="plain", issuers=frozenset({"plain"}))
RICH = Target(
    adapter="rich",
    issuers=frozenset({"rich"}),
    user_blocks=frozenset({"text", "image", "document"}),
    result_blocks=frozenset({"text", "image"}),
    image_media_types=frozenset({"image/png"}),
    accepts_thinking=True,
    developer_role=True,
    system="anywhere",
    accepts_blank_text=False,
)
A, B = call("f", tool_id(1), a=1), call("g", tool_id(2))
ANSWER_A = tool("one", answers=A.id)
ANSWER_B = tool("two", answers=B.id)


def losses_of(projection: Projection) -> list[tuple[str, str, str]]:
    return [(loss.change.value, loss.block_type, loss.path) for loss in projection.losses]


def calls_and_results(messages: Sequence[Message]) -> list[str]:
    return [
        block.name if isinstance(block, ToolUseBlock) else block.tool_use_id
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock | ToolResultBlock)
    ]


def test_supported_content_is_unchanged() -> None:
    done = assistant(text("done"))
    messages = [system("s"), user("go"), assistant(text("yes"), A), ANSWER_A, done]
    projection = project(messages, PLAIN)
    assert projection.messages == messages
    assert all(sent is given for sent, given in zip(projection.messages, messages, strict=True))
    assert projection.losses == []


@pytest.mark.row("T19", "T21", "T82")
def test_unanswered_call_gets_neutral_result() -> None:
    projection = project([user("go"), assistant(A, B), ANSWER_A, user("well?")], PLAIN)
    sent = projection.messages
    assert [message.role for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    made_up = sent[3].content[0]
    assert isinstance(made_up, ToolResultBlock)
    assert (made_up.tool_use_id, made_up.is_error) == (B.id, True)
    assert made_up.content == (TextBlock(NO_RESULT),)
    assert losses_of(projection) == [("synthesised", "tool_result", "$.content")]


@pytest.mark.row("T20")
def test_a_result_without_its_call_becomes_text() -> None:
    projection = project([user("go"), ANSWER_A, assistant(text("ok"))], PLAIN)
    assert [message.role for message in projection.messages] == ["user", "user", "assistant"]
    assert projection.messages[1].content[1] == TextBlock("one")
    assert losses_of(projection) == [("altered", "tool_result", "$.content[0]")]


@pytest.mark.row("T17", "T22", "T23")
def test_results_occur_once_directly_after_their_calls() -> None:
    late = tool("later", answers=A.id)
    given = [user("go"), assistant(A, B), ANSWER_B, ANSWER_A, user("and"), late]
    projection = project(given, PLAIN)
    assert calls_and_results(projection.messages) == ["f", "g", A.id, B.id]
    assert projection.messages[2] is late
    assert ("dropped", "tool_result", "$.content[0]") in losses_of(projection)


@pytest.mark.row("M-225", "M-227", "T40", "T41", "T63")
def test_sealed_parts_are_sent_only_to_their_issuer() -> None:
    mine = replace(thinking("mine"), signature="s", issuer="rich")
    foreign = replace(thinking("theirs"), signature="s", issuer="other")
    unsigned = replace(thinking("unsigned"), signature=None, issuer="rich")
    sealed = RedactedThinkingBlock("x", issuer="other")
    part = replace(opaque(), issuer="rich")
    message = assistant(mine, foreign, unsigned, sealed, part, text("hi"))
    projection = project([user("go"), message], RICH)
    assert projection.messages[1].content == (mine, part, text("hi"))
    assert losses_of(projection) == [
        ("dropped", "thinking", "$.content[1]"),
        ("dropped", "thinking", "$.content[2]"),
        ("dropped", "redacted_thinking", "$.content[3]"),
    ]


@pytest.mark.row("M-226", "M-065", "T27", "T28", "T101")
def test_unsupported_media_becomes_note_and_stored_message_is_unchanged() -> None:
    message = user(text("look"), image())
    before = encode(message)
    projection = project([message], PLAIN)
    assert projection.messages[0].content[0] == text("look")
    note = projection.messages[0].content[1]
    assert isinstance(note, TextBlock)
    assert note.text == "[image image/png: not shown to this model]"
    assert losses_of(projection) == [("altered", "image", "$.content[1]")]
    assert encode(message) == before
    assert project([message], RICH).losses == []


def test_unsupported_image_type_is_a_loss() -> None:
    projection = project([user(replace(image(), media_type="image/tiff"))], RICH)
    assert losses_of(projection) == [("altered", "image", "$.content[0]")]


@pytest.mark.row("T29")
def test_media_in_result_follows_rules_for_results() -> None:
    document = DocumentBlock(MediaSource("base64", "AA=="), "application/pdf", "a.pdf")
    answer = tool(text("see"), image(), document, answers=A.id)
    projection = project([user("go"), assistant(A), answer], RICH)
    block = projection.messages[2].content[0]
    assert isinstance(block, ToolResultBlock)
    assert block.content[:2] == (text("see"), image())
    assert losses_of(projection) == [("altered", "document", "$.content[0].content[2]")]


@pytest.mark.row("M-064", "T212")
@pytest.mark.parametrize(
    "given",
    [
        user(replace(image(), critical=True)),
        assistant(replace(thinking("x"), critical=True), text("hi")),
    ],
)
def test_a_critical_block_fails_the_request(given: Message) -> None:
    with pytest.raises(CriticalLossError) as caught:
        project([given], PLAIN)
    assert caught.value.message_id == given.id
    assert caught.value.path == "$.content[0]"


@pytest.mark.row("T73", "T75")
def test_instructions_keep_their_place() -> None:
    given = [system("first"), user("a"), assistant(text("b")), system("later"), developer("note")]
    projection = project(given, PLAIN)
    roles = [message.role for message in projection.messages]
    assert roles == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER, Role.USER]
    assert projection.messages[3].content == (TextBlock("<system>\nlater\n</system>"),)
    assert losses_of(projection) == [
        ("altered", "system", "$.role"),
        ("altered", "developer", "$.role"),
    ]
    rich = project(given, RICH)
    assert [message.role for message in rich.messages[-2:]] == [Role.SYSTEM, Role.USER]
    assert losses_of(rich) == [("altered", "developer", "$.role")]


@pytest.mark.row("T39", "T83", "T84", "T88")
def test_blank_texts_are_removed_where_refused_except_in_signed_turns() -> None:
    signed = assistant(replace(thinking(""), signature="s", issuer="rich"), text(""), text("x"))
    given = [user("go"), assistant(text(" "), text("x")), user("on"), signed, assistant(text(""))]
    projection = project(given, RICH)
    assert [len(message.content) for message in projection.messages] == [1, 1, 1, 3]
    assert losses_of(projection) == [
        ("dropped", "text", "$.content[0]"),
        ("dropped", "text", "$.content[0]"),
        ("dropped", "message", "$"),
    ]
    assert projection.losses[0].change is Change.DROPPED


def test_messages_issued_by_target_are_unchanged() -> None:
    blind: Any = user(image(), text(""))
    native = replace(blind, metadata=replace(blind.metadata, origin="plain"))
    projection = project([native], PLAIN)
    assert projection.messages == [native]
    assert projection.losses == []


@pytest.mark.row("T83", "T88", "T211")
def test_empty_message_of_target_is_not_sent_back() -> None:
    blank = assistant(text(""))
    native = replace(blank, metadata=replace(blank.metadata, origin="rich"))
    projection = project([user("go"), native, user("on")], RICH)
    assert [message.role for message in projection.messages] == ["user", "user"]
    assert losses_of(projection)[-1] == ("dropped", "message", "$")


@pytest.mark.row("T198")
def test_unsupported_citations_are_losses() -> None:
    cited = TextBlock("see", (Citation("mine"), Citation("theirs")))
    target = replace(RICH, citation_kinds=frozenset({"mine"}))
    projection = project([user("go"), assistant(cited)], target)
    assert projection.messages[1].content == (TextBlock("see", (Citation("mine"),)),)
    assert losses_of(projection) == [("altered", "text", "$.content[0].citations")]


@pytest.mark.row("T92", "T97", "T99")
@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (DocumentBlock(MediaSource("url", "https://x/a.pdf"), "application/pdf"), "by URL"),
        (
            DocumentBlock(MediaSource("file_id", "f", "other"), "application/pdf"),
            "was uploaded to other",
        ),
        (DocumentBlock(MediaSource("file_ref", "a.pdf"), "application/pdf"), "not read"),
        (AudioBlock(MediaSource("base64", "AA=="), "audio/ogg"), "audio/ogg is not accepted"),
        (
            AudioBlock(MediaSource("file_id", "f", "rich"), "audio/wav"),
            "audio is not accepted by id",
        ),
        (
            VideoBlock(MediaSource("base64", "AA=="), "video/mp4"),
            "video is not supported by the model",
        ),
    ],
)
def test_media_support_depends_on_type_and_source(block: ContentBlock, reason: str) -> None:
    target = replace(
        RICH,
        user_blocks=RICH.user_blocks | {"audio"},
        audio_media_types=frozenset({"audio/wav"}),
    )
    projection = project([user(block)], target)
    assert losses_of(projection) == [("altered", block.type, "$.content[0]")]
    assert reason in projection.losses[0].reason
    uploaded = DocumentBlock(MediaSource("file_id", "f", "rich"), "application/pdf")
    assert project([user(uploaded)], target).losses == []


@pytest.mark.row("T62", "T68")
def test_thinking_without_other_content_is_dropped_where_refused() -> None:
    target = replace(RICH, pairs_thinking=True)
    thought = replace(thinking("hm"), signature="s", issuer="rich")
    sealed = RedactedThinkingBlock("x", issuer="rich")
    loose = assistant(thought, text("so"), thought, sealed)
    projection = project([user("go"), loose, user("?"), assistant(thought), user("?")], target)
    assert [each.content for each in projection.messages if each.role == Role.ASSISTANT] == [
        (thought, text("so"))
    ]
    assert losses_of(projection) == [
        ("dropped", "redacted_thinking", "$.content[3]"),
        ("dropped", "thinking", "$.content[2]"),
        ("dropped", "thinking", "$.content[0]"),
        ("dropped", "message", "$"),
    ]
    assert project([user("go"), loose], replace(target, stores_history=True)).losses == []
    assert project([user("go"), loose], RICH).losses == []


@pytest.mark.row("T210")
def test_loss_of_blank_text_has_original_path() -> None:
    answer = assistant(replace(thinking("hm"), signature=None), text(" "), text("so"))
    assert losses_of(project([user("go"), answer], RICH)) == [
        ("dropped", "thinking", "$.content[0]"),
        ("dropped", "text", "$.content[1]"),
    ]


@pytest.mark.row("T76", "T176")
def test_message_after_instructions_is_the_first_turn() -> None:
    target = replace(RICH, starts_with_user=True)
    assert project([system(text("be brief"))], PLAIN).call_ids is None
    assert project([system(text("")), user(text(""))], target).call_ids is None
    assert project([system(text("x")), user(text("go"))], target).call_ids == set()


@pytest.mark.row("T40")
def test_seal_without_issuer_belongs_to_provider_of_message() -> None:
    thought = replace(thinking("hm"), signature="s", issuer=None)
    answer = assistant(thought, text("so"))
    assert answer.metadata.provider == "anthropic"
    projection = project([user("go"), answer], RICH)
    assert losses_of(projection) == [("dropped", "thinking", "$.content[0]")]
    assert projection.losses[0].reason == "it was sealed by anthropic"
    target = replace(RICH, issuers=frozenset({"anthropic"}))
    assert project([user("go"), answer], target).losses == []
    empty = assistant(RedactedThinkingBlock("", issuer="rich"), text("so"))
    assert losses_of(project([user("go"), empty], RICH)) == [
        ("dropped", "redacted_thinking", "$.content[0]")
    ]


@pytest.mark.row("M-064")
def test_critical_part_is_never_dropped_as_blank_or_duplicate() -> None:
    blank = assistant(TextBlock(" ", critical=True), text("x"))
    with pytest.raises(CriticalLossError):
        project([user("go"), blank], RICH)
    marked = replace(ANSWER_A, content=(ToolResultBlock(A.id, (text("one"),), critical=True),))
    with pytest.raises(CriticalLossError):
        project([user("go"), assistant(A), marked, user("?"), ANSWER_A], RICH)


@pytest.mark.row("T75")
def test_a_developer_message_at_the_start_is_a_system_message_elsewhere() -> None:
    projection = project([developer("be brief"), user("go")], PLAIN)
    assert [message.role for message in projection.messages] == [Role.SYSTEM, Role.USER]
    assert losses_of(projection) == [("altered", "developer", "$.role")]


def test_calls_and_results_become_text_for_a_model_without_tools() -> None:
    target = replace(PLAIN, accepts_tools=False)
    projection = project([user("go"), assistant(text("yes"), A), ANSWER_A, user("on")], target)
    assert [message.role for message in projection.messages] == [
        "user",
        "assistant",
        "user",
        "user",
    ]
    assert projection.messages[1].content[1] == TextBlock('[called f with {"a":1}]')
    assert projection.messages[2].content[1] == TextBlock("one")
    assert [block for _, block, _ in losses_of(projection)] == ["tool_use", "tool_result"]


def test_a_tool_message_with_two_results_answers_both_calls() -> None:
    both = replace(ANSWER_A, content=(*ANSWER_A.content, *ANSWER_B.content, text("and")))
    projection = project([user("go"), assistant(A, B), both], PLAIN)
    assert calls_and_results(projection.messages) == ["f", "g", A.id, B.id]
    assert projection.messages[-1].content == (text("and"),)
    assert losses_of(projection) == [
        ("altered", "tool_result", "$.content[0]"),
        ("altered", "tool_result", "$.content[1]"),
        ("altered", "text", "$.content[2]"),
    ]


@pytest.mark.row("T25")
def test_blank_text_in_result_is_removed_where_refused() -> None:
    projection = project([user("go"), assistant(A), tool("", answers=A.id)], RICH)
    result = projection.messages[2].content[0]
    assert isinstance(result, ToolResultBlock)
    assert result.content == ()
    assert losses_of(projection) == [("dropped", "text", "$.content[0].content[0]")]


@pytest.mark.row("T27", "T29", "T30")
def test_media_unsupported_in_results_follows_the_results() -> None:
    target = replace(RICH, result_blocks=frozenset({"text"}))
    given = [user("go"), assistant(A, B), tool(image(), answers=A.id), ANSWER_B, user("so?")]
    projection = project(given, target)
    roles = [message.role for message in projection.messages]
    assert roles == ["user", "assistant", "tool", "tool", "user", "user"]
    hoisted = projection.messages[4]
    assert hoisted.content == (text("[image from the result of call 1 of 2, f]"), image())
    message_text = projection.messages[2].content[0]
    assert isinstance(message_text, ToolResultBlock)
    assert message_text.content == (text("[image: shown in the message after the results]"),)
    assert losses_of(projection) == [("altered", "image", "$.content[0].content[0]")]


@pytest.mark.row("T08")
def test_duplicate_call_in_turn_is_sent_once() -> None:
    projection = project([user("go"), assistant(A, A), ANSWER_A], PLAIN)
    assert calls_and_results(projection.messages) == ["f", A.id]
    assert losses_of(projection) == [("dropped", "tool_use", "$.content[1]")]


@pytest.mark.row("T09", "T10")
def test_empty_or_repeated_ids_are_made_unique() -> None:
    for call_id in ("", "functions.f:0"):
        given = [user("go")]
        for reply in ("one", "two"):
            response = assistant(replace(A, id=call_id), replace(B, id=call_id))
            answers = (ToolResultBlock(call_id, (text(each),)) for each in (reply, f"{reply}!"))
            given += [response, *(message(Role.TOOL, answer) for answer in answers)]
        projection = project(given, PLAIN)
        calls = [
            block.id
            for message in projection.messages
            for block in message.content
            if isinstance(block, ToolUseBlock)
        ]
        assert len(set(calls)) == len(calls) == 4
        answers = [m.content[0] for m in projection.messages if m.role == Role.TOOL]
        assert [a.tool_use_id for a in answers if isinstance(a, ToolResultBlock)] == calls
        assert [a.content for a in answers if isinstance(a, ToolResultBlock)] == [
            (text("one"),),
            (text("one!"),),
            (text("two"),),
            (text("two!"),),
        ]
        shorter = project(given[:4], PLAIN).messages
        assert projection.messages[:4] == shorter
        assert all(loss.change is Change.ALTERED for loss in projection.losses)


@pytest.mark.row("T17", "T20", "T212")
@pytest.mark.parametrize("between", [assistant(text("hm")), developer("note"), user("and?")])
def test_moved_result_is_reported(between: Message) -> None:
    projection = project([user("go"), assistant(A), between, ANSWER_A], RICH)
    assert projection.messages[2] is ANSWER_A
    moved = [loss for loss in losses_of(projection) if loss[1] != "developer"]
    assert moved == [("altered", "tool_result", "$.content[0]")]


BAD = ToolUseBlock(A.id, "f", {}, InvalidInput('{"a":', "unexpected end"))


@pytest.mark.row("M-042", "T32", "KX-05")
def test_result_of_invalid_call_explains_the_error() -> None:
    projection = project([user("go"), assistant(BAD), ANSWER_A], PLAIN)
    assert projection.messages[1].content == (replace(BAD, input={"_raw": '{"a":'}, invalid=None),)
    answer = projection.messages[2].content[0]
    assert isinstance(answer, ToolResultBlock)
    assert answer.is_error
    assert answer.content == (
        text("The arguments of this call were not valid: unexpected end"),
        text("one"),
    )
    assert losses_of(projection) == [
        ("altered", "tool_use", "$.content[0].input"),
        ("altered", "tool_result", "$.content[0]"),
    ]
    raw = project([user("go"), assistant(BAD)], replace(PLAIN, accepts_raw_arguments=True))
    assert raw.messages[1].content == (BAD,)
    answer = raw.messages[2].content[0]
    assert isinstance(answer, ToolResultBlock)
    assert answer.content[0] == text("The arguments of this call were not valid: unexpected end")


@pytest.mark.row("T111")
def test_invalid_tool_name_is_shortened() -> None:
    long = "mcp__" + "x" * 80
    given_names = ("ok", "a.b", "a:b", long, f"{long}y", "", "$READ", "1password", "-x")
    names = [wire_tool_name(name) for name in given_names]
    assert names[0] == "ok"
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 and PORTABLE_NAME.fullmatch(name) for name in names)
    given = [user("go"), assistant(replace(A, name="a.b")), ANSWER_A]
    projection = project(given, PLAIN)
    assert calls_and_results(projection.messages) == [names[1], A.id]
    assert losses_of(projection) == [("altered", "tool_use", "$.content[0].name")]
    with pytest.raises(CriticalLossError):
        project([assistant(replace(A, name="a.b", critical=True)), ANSWER_A], PLAIN)


@pytest.mark.row("T83")
@pytest.mark.parametrize("blank", ["", " \n"])
def test_late_empty_system_message_is_dropped(blank: str) -> None:
    given = [system("s"), user("go"), system(blank), user("on")]
    projection = project(given, PLAIN)
    assert [message.role for message in projection.messages] == ["system", "user", "user"]
    assert ("dropped", "message", "$") in losses_of(projection)


@pytest.mark.row("T87", "T210")
def test_blocks_are_only_in_roles_the_protocol_supports() -> None:
    given = [
        user(thinking("x"), text("go"), A),
        assistant(image(), text("so")),
        message(Role("narrator"), text("meanwhile")),
    ]
    projection = project(given, RICH)
    assert projection.messages[0].content == (text("go"), text('[called f with {"a":1}]'))
    assert projection.messages[1].content[0] == text("[image image/png: not shown to this model]")
    assert len(projection.messages) == 2
    assert losses_of(projection) == [
        ("dropped", "thinking", "$.content[0]"),
        ("altered", "tool_use", "$.content[2]"),
        ("altered", "image", "$.content[0]"),
        ("dropped", "message", "$"),
    ]


@pytest.mark.row("T98")
def test_text_document_becomes_text_where_documents_are_unsupported() -> None:
    notes = DocumentBlock(MediaSource("text", "abc"), "text/plain", "notes", "of May")
    for target in (PLAIN, replace(RICH, accepts_text_documents=False)):
        projection = project([user(notes)], target)
        assert projection.messages[0].content == (text("notes\n\nof May\n\nabc"),)
        assert losses_of(projection) == [("altered", "document", "$.content[0]")]
    assert project([user(notes)], RICH).losses == []
    pdf = replace(notes, source=MediaSource("base64", "AA=="))
    projection = project([user(pdf)], replace(RICH, accepts_document_context=False))
    assert projection.messages[0].content == (replace(pdf, context=None),)
    assert losses_of(projection) == [("dropped", "document", "$.content[0].context")]


def test_unsupported_audio_becomes_its_transcript() -> None:
    sound = AudioBlock(MediaSource("base64", "AA=="), "audio/wav", "good morning")
    (sent,) = project([user(sound)], PLAIN).messages
    assert sent.content == (text("[audio audio/wav: not shown to this model]\ngood morning"),)


@pytest.mark.row("T195", "T197")
def test_provider_run_call_is_sent_only_with_its_result() -> None:
    def half(raw: bytes, kind: str) -> OpaqueBlock:
        return replace(opaque(raw, kind=kind), issuer="rich")

    server_call = half(b'{"type":"server_tool_use","id":"s1"}', "server_tool_use")
    server_result = half(b'{"tool_use_id":"s1","content":[]}', "web_search_tool_result")
    lonely = half(b'{"tool_use_id":"s2"}', "advisor_tool_result")
    pair = assistant(server_call, server_result, text("so"))
    assert project([user("go"), pair, user("on")], RICH).losses == []
    torn = project([user("go"), assistant(server_call, text("so"), lonely), user("on")], RICH)
    assert torn.messages[1].content == (text("so"),)
    assert losses_of(torn) == [
        ("dropped", "opaque", "$.content[0]"),
        ("dropped", "opaque", "$.content[2]"),
    ]
    paused = project([user("go"), assistant(text("so"), server_call)], RICH)
    assert paused.messages[1].content == (text("so"), server_call)
    with pytest.raises(CriticalLossError):
        project([assistant(replace(lonely, critical=True)), user("on")], RICH)


SIGNING = replace(RICH, placeholder_signature="placeholder")


@pytest.mark.row("T56", "T57")
def test_a_foreign_answer_with_calls_gets_one_placeholder_before_its_first_call() -> None:
    talk = [
        user("go"),
        assistant("so", call("f", tool_id(1)), call("f", tool_id(2))),
        tool("1", answers=tool_id(1)),
        tool("2", answers=tool_id(2)),
    ]
    projection = project(talk, SIGNING)
    _, seal, first, second = projection.messages[1].content
    assert isinstance(seal, ThinkingBlock)
    assert (seal.text, seal.signature, seal.format) == ("", "placeholder", SIGNATURE_ON_NEXT)
    assert (first, second) == talk[1].content[1:]
    assert [(loss.change, loss.path) for loss in projection.losses] == [
        (Change.SYNTHESISED, "$.content[1]")
    ]
    assert project(talk, RICH).losses == []


@pytest.mark.row("T57")
def test_signed_call_free_or_client_message_gets_no_placeholder() -> None:
    signed = thinking("", signature="s", issuer="rich")
    native = replace(assistant("x").metadata, origin="rich", model=None)
    for answer in (
        assistant(signed, call("f")),
        assistant("x"),
        assistant(call("f"), metadata=native),
    ):
        talk = [user("go"), answer, *([tool("1")] if len(answer.content) > 1 else [])]
        sent = project(talk, SIGNING)
        assert sent.messages[1].content == answer.content


def test_artifacts_are_sent_where_supported_if_bytes_are_available() -> None:
    drawn = ArtifactBlock(MediaSource("base64", "aWY="), "image/png")
    far = ArtifactBlock(MediaSource("url", "https://a.example/x.png"), "image/png")
    taking = replace(RICH, accepts_artifacts="any")
    assert project([user("draw"), assistant(drawn)], taking).losses == []
    assert len(project([user("draw"), assistant(drawn)], RICH).losses) == 1
    assert len(project([user("draw"), assistant(far)], taking).losses) == 1
