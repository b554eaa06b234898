"""Developer messages during a conversation join the adjacent user message or tool result."""

from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, developer, image, system, text, tool, tool_id, ulid, user
from metis.canonical import (
    CacheHint,
    ContentBlock,
    ImageBlock,
    Message,
    MessageMetadata,
    Role,
    ToolResultBlock,
)
from metis.canonical.errors import CriticalLossError
from metis.projection import Change, Projection, Target, project

TARGET = Target(
    adapter="there",
    issuers=frozenset({"there"}),
    user_blocks=frozenset({"text", "image"}),
    result_blocks=frozenset({"text", "image"}),
    image_media_types=frozenset({"image/png"}),
    accepts_blank_text=False,
    system="anywhere",
    developer_role=True,
)
FIRST = MessageMetadata(prepended=True)
NATIVE = MessageMetadata(origin="there")
A, B = call("f", tool_id(1)), call("g", tool_id(2))


def numbered(*messages: Message) -> list[Message]:
    return [replace(message, id=ulid(number)) for number, message in enumerate(messages)]


def projected(*messages: Message, **facts: Any) -> Projection:
    return project(numbered(*messages), replace(TARGET, **facts))


def texts_of(projection: Projection, place: int) -> list[str]:
    """Return the texts of a message, or of its tool result."""
    content = projection.messages[place].content
    if content and isinstance(content[0], ToolResultBlock):
        content = content[0].content
    return [getattr(block, "text", block.type) for block in content]


def roles(projection: Projection) -> list[str]:
    return [str(message.role) for message in projection.messages]


def losses_of(projection: Projection) -> list[tuple[str, str, str]]:
    return [(loss.message_id, loss.block_type, loss.path) for loss in projection.losses]


@pytest.mark.row("K-016", "K-089", "K-092")
def test_late_instruction_joins_user_message() -> None:
    given = numbered(user("go"), developer("mind", image(), "the gap"))
    before = [message.digest() for message in given]
    projection = project(given, TARGET)
    (sent,) = projection.messages
    assert sent.role == Role.USER
    assert sent.content == (text("go"), text("mind\n"), image(), text("the gap\n"))
    assert [message.digest() for message in given] == before
    (loss,) = projection.losses
    assert (loss.message_id, loss.block_type, loss.path) == (given[1].id, "developer", "$.role")
    assert (loss.change, loss.reason) == (
        Change.ALTERED,
        "attached to the user message before it",
    )


@pytest.mark.row("K-016", "K-089", "K-092")
def test_late_instruction_joins_preceding_result() -> None:
    talk = [user("go"), assistant(A, B), tool("one", answers=A.id), developer("note")]
    projection = projected(*talk, tool("two", answers=B.id), developer("more", image()))
    assert roles(projection) == ["user", "assistant", "tool", "tool"]
    assert texts_of(projection, 2) == ["one", "note\n"]
    assert texts_of(projection, 3) == ["two", "more\n", "image"]
    assert {loss.block_type for loss in projection.losses} == {"developer"}


def test_late_instruction_stays_after_assistant_message() -> None:
    projection = projected(user("go"), assistant("yes"), developer("note"), developer("more"))
    assert roles(projection) == ["user", "assistant", "user", "user"]
    assert (texts_of(projection, 2), texts_of(projection, 3)) == (["note"], ["more"])
    assert [loss.reason for loss in projection.losses] == [
        "sent as a user message at the same position"
    ] * 2


def test_instruction_before_conversation_is_a_system_message() -> None:
    projection = projected(system("a"), developer("b"), user("c"))
    assert roles(projection) == ["system", "developer", "user"]
    assert projection.losses == []


def test_only_assistant_message_separates_instruction_from_turn() -> None:
    projection = projected(user("go"), system("late"), developer("note"))
    assert roles(projection) == ["user", "system"]
    assert texts_of(projection, 0) == ["go", "note\n"]


@pytest.mark.row("KX-14")
def test_late_instruction_is_before_or_after_joined_text() -> None:
    notes = [
        developer("one", metadata=FIRST),
        developer("last"),
        developer("two", image(), metadata=FIRST),
    ]
    expected = ["one\n", "two\n", "image", "go", "last\n"]
    assert texts_of(projected(user("go"), *notes), 0) == expected
    talk = [user("?"), assistant(A), tool("go", answers=A.id), *notes]
    assert texts_of(projected(*talk), 2) == expected


@pytest.mark.row("KX-13")
def test_instruction_media_unsupported_in_results_follows_them() -> None:
    talk = [user("go"), assistant(A, B), tool("one", image(), answers=A.id)]
    talk += [developer("note", image("aWYy")), tool("two", answers=B.id), user("and?")]
    projection = projected(*talk, result_blocks=frozenset({"text"}))
    assert roles(projection) == ["user", "assistant", "tool", "tool", "user", "user", "user"]
    note = "[image: shown in the message after the results]"
    assert texts_of(projection, 2) == ["one", note, "note\n", f"{note}\n"]
    assert texts_of(projection, 5) == ["[image from the tool results]", "image"]
    shown = projection.messages[5].content[1]
    assert isinstance(shown, ImageBlock)
    assert shown.source.data == "aWYy"
    assert (ulid(3), "image", "$.content[1]") in losses_of(projection)


@pytest.mark.parametrize("is_first", [True, False])
def test_losses_have_original_paths(*, is_first: bool) -> None:
    note = developer("note", image(), metadata=MessageMetadata(prepended=is_first))
    projection = projected(user("see", image()), note, user_blocks=frozenset({"text"}))
    assert sorted(losses_of(projection)) == [
        (ulid(0), "image", "$.content[1]"),
        (ulid(1), "developer", "$.role"),
        (ulid(1), "image", "$.content[1]"),
    ]


def test_empty_late_instruction_is_a_loss() -> None:
    projection = projected(user("go"), developer(" "))
    assert texts_of(projection, 0) == ["go"]
    assert (ulid(1), "message", "$") in losses_of(projection)
    talk = [user("go"), assistant(A), tool("one", answers=A.id), developer(" ")]
    projection = projected(*talk)
    assert texts_of(projection, 2) == ["one"]
    assert (ulid(3), "message", "$") in losses_of(projection)


def test_critical_part_of_late_instruction_is_not_omitted() -> None:
    critical: ContentBlock = replace(image(), critical=True)
    with pytest.raises(CriticalLossError) as caught:
        projected(user("go"), developer(critical), user_blocks=frozenset({"text"}))
    assert (caught.value.message_id, caught.value.path) == (ulid(1), "$.content[0]")


@pytest.mark.row("T170")
@pytest.mark.parametrize("is_first", [True, False])
def test_marks_stay_with_their_blocks(*, is_first: bool) -> None:
    hints = (CacheHint(after=0),)
    note = developer("note", metadata=MessageMetadata(hints=hints, prepended=is_first))
    host = user("go", "on", metadata=MessageMetadata(hints=hints))
    projection = projected(host, note, cache_marks=4)
    (sent,) = projection.messages
    marked = {getattr(sent.content[hint.after], "text", "") for hint in sent.metadata.hints}
    assert marked == {"go", "note\n"}
    talk = [user("go"), assistant(A), tool("one", answers=A.id), note]
    (*_, sent) = projected(*talk, cache_marks=4).messages
    assert [hint.after for hint in sent.metadata.hints] == [0]


def test_a_client_of_the_target_keeps_its_developer_messages() -> None:
    talk = [user("go", metadata=NATIVE), developer("note", metadata=NATIVE)]
    projection = projected(*talk)
    assert (roles(projection), projection.losses) == (["user", "developer"], [])
    kin = frozenset({"there", "kin"})
    for name in ("there", "kin"):
        projection = projected(*talk, adapter=name, developer_origins=kin)
        assert (roles(projection), projection.losses) == (["user", "developer"], [])
    projection = projected(*talk, adapter="elsewhere")
    assert roles(projection) == ["user"]


def test_own_instruction_joins_text_of_client() -> None:
    hints = (CacheHint(after=0),)
    note = developer("note", metadata=MessageMetadata(hints=hints))
    projection = projected(user("go", metadata=NATIVE), note, cache_marks=4)
    assert texts_of(projection, 0) == ["go", "note\n"]
    assert losses_of(projection) == [
        (ulid(1), "hint", "$.metadata.hints"),
        (ulid(1), "developer", "$.role"),
    ]
    ((before, after),) = projection.attachments
    assert (len(before.content), len(after.content)) == (1, 2)


def test_instruction_does_not_join_results_without_text() -> None:
    shot = call("computer", tool_id(1))
    talk = [user("go"), assistant(shot), tool(image(), answers=shot.id), developer("note")]
    projection = projected(*talk, tools_without_text=frozenset({"computer"}))
    assert roles(projection) == ["user", "assistant", "tool", "user"]
    assert (texts_of(projection, 2), texts_of(projection, 3)) == (["image"], ["note"])


def test_instruction_does_not_join_tool_message_without_result() -> None:
    no_result = replace(user("x"), role=Role.TOOL)
    projection = projected(user("go"), no_result, developer("note"))
    assert texts_of(projection, 0) == ["go", "note\n"]
