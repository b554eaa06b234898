"""Rules over the messages of a session: pairs of calls and results, ids, order."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, message, numbered, provenance, result, tool, tool_id, user
from metis.canonical import (
    ContentBlock,
    Message,
    MessageMetadata,
    MessageStatus,
    Role,
    SideEffects,
    ToolDefinition,
    ToolResultBlock,
    ToolSet,
    ToolUseBlock,
    validate,
    validate_session,
)
from strategies import conversations, messages

PROFILES: list[Literal["strict", "full"]] = ["strict", "full"]
ASK, CALL, ANSWER = user("go"), assistant(call("f", tool_id(1))), tool("a", answers=tool_id(1))


def rows_and_paths(messages: list[Message], **given: Any) -> list[tuple[str, str]]:
    return [(problem.rule, problem.path) for problem in validate_session(messages, **given)]


@given(conversations())
@pytest.mark.row("M-044", "M-138", "M-140", "M-165")
def test_valid_conversation_has_no_problem(conversation: list[Message]) -> None:
    for profile in PROFILES:
        assert validate_session(conversation, profile) == []


@given(st.lists(messages(), max_size=4))
@pytest.mark.row("M-138")
def test_any_list_of_messages_can_be_checked(any_messages: list[Message]) -> None:
    problems = validate_session(any_messages)
    assert all(problem.path.startswith("$[") for problem in problems)


@given(conversations(), st.data())
@pytest.mark.row("M-044", "M-138")
def test_result_without_call_is_reported(conversation: list[Message], data: st.DataObject) -> None:
    callers = [
        place
        for place, each in enumerate(conversation)
        if any(block.type == "tool_use" for block in each.content)
    ]
    if not callers:
        return
    gone = data.draw(st.sampled_from(callers))
    rest = conversation[:gone] + conversation[gone + 1 :]
    lost = {block.id for block in conversation[gone].content if isinstance(block, ToolUseBlock)}
    assert rows_and_paths(rest) == [
        ("M-138", f"$[{place}].content[0].tool_use_id")
        for place, each in enumerate(rest)
        if each.metadata.parent_tool_use_id in lost
    ]


@pytest.mark.row("M-138")
def test_result_before_its_call_is_reported() -> None:
    assert rows_and_paths(numbered(ASK, ANSWER, CALL)) == [("M-138", "$[1].content[0].tool_use_id")]


@pytest.mark.row("M-140")
def test_second_result_of_a_call_is_reported() -> None:
    assert rows_and_paths(numbered(ASK, CALL, ANSWER, ANSWER)) == [
        ("M-140", "$[3].content[0].tool_use_id")
    ]
    assert rows_and_paths(numbered(ASK, CALL)) == []


@pytest.mark.row("M-141")
def test_a_retry_has_a_new_id() -> None:
    assert rows_and_paths(numbered(ASK, CALL, ANSWER, CALL)) == [("M-141", "$[3].content[0].id")]
    twice = assistant(call("f", tool_id(1)), call("f", tool_id(1)))
    assert rows_and_paths(numbered(ASK, twice)) == [("M-141", "$[1].content[1].id")]
    retried = assistant(call("f", tool_id(2)))
    assert rows_and_paths(numbered(ASK, CALL, ANSWER, retried)) == []


@pytest.mark.row("M-139")
def test_tool_ids_never_cross_sessions() -> None:
    elsewhere = replace(ANSWER, session_id="other")
    assert rows_and_paths(numbered(ASK, CALL, elsewhere)) == [
        ("M-139", "$[2].content[0].tool_use_id")
    ]
    borrowed = replace(CALL, session_id="other")
    assert rows_and_paths(numbered(ASK, CALL, borrowed)) == [("M-139", "$[2].content[0].id")]


@given(conversations(), conversations(), st.randoms(use_true_random=False))
@pytest.mark.row("M-139", "M-165")
def test_list_may_have_several_sessions(
    one: list[Message], two: list[Message], chance: Any
) -> None:
    other = [_moved(each) for each in two]
    mixed: list[Message] = []
    left, right = list(one), list(other)
    while left or right:
        source = left if not right or (left and chance.random() < 0.5) else right
        mixed.append(source.pop(0))
    assert validate_session(mixed) == []


def _moved(old: Message) -> Message:
    """Return the message in another session, with other tool ids."""
    content: list[ContentBlock] = []
    for block in old.content:
        match block:
            case ToolUseBlock():
                content.append(replace(block, id=_other(block.id)))
            case ToolResultBlock():
                content.append(replace(block, tool_use_id=_other(block.tool_use_id)))
            case _:
                content.append(block)
    parent = old.metadata.parent_tool_use_id
    metadata = replace(old.metadata, parent_tool_use_id=_other(parent) if parent else None)
    return replace(old, session_id="other", content=tuple(content), metadata=metadata)


def _other(tool_use_id: str) -> str:
    return tool_use_id.replace("tu_0", "tu_1")


@pytest.mark.row("M-165")
def test_ids_increase_in_the_order_of_insertion() -> None:
    one, two, three = numbered(ASK, user("b"), user("c"))
    assert rows_and_paths([one, two, three]) == []
    assert rows_and_paths([one, three, two]) == [("M-165", "$[2].id")]
    assert rows_and_paths([one, one]) == [("M-165", "$[1].id")]
    assert rows_and_paths([three, one, two]) == [("M-165", "$[1].id"), ("M-165", "$[2].id")]
    assert rows_and_paths([three, replace(one, session_id="other")]) == []


@pytest.mark.row("M-136", "M-138")
def test_a_partial_message_is_not_yet_part_of_the_session() -> None:
    partial = MessageMetadata(status=MessageStatus.PARTIAL)
    orphan = message(Role.TOOL, result("a", answers=tool_id(9)), metadata=partial)
    assert rows_and_paths(numbered(ASK, orphan)) == []


@pytest.mark.row("M-138")
def test_a_call_of_a_cancelled_message_can_be_answered() -> None:
    cancelled = assistant(
        call("f", tool_id(1)), metadata=provenance(status=MessageStatus.CANCELLED)
    )
    assert rows_and_paths(numbered(ASK, cancelled, ANSWER)) == []


@pytest.mark.row("M-138", "M-142")
def test_problems_of_each_message_have_its_index() -> None:
    tools = ToolSet([ToolDefinition("g", "", {"type": "object"}, SideEffects.NONE)])
    session = numbered(ASK, user(), CALL)
    expected = [
        (problem.rule, f"$[{place}]{problem.path[1:]}")
        for place, each in enumerate(session)
        for problem in validate(each, tools=tools)
    ]
    assert expected == [("M-123", "$[1].content"), ("M-142", "$[2].content[0].name")]
    assert rows_and_paths(session, tools=tools) == expected
    assert (
        rows_and_paths([replace(each) for each in session], profile="strict", tools=tools)
        == expected
    )
    assert rows_and_paths([]) == []
