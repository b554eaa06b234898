"""TOOL messages: side effects, approvals and validity in a conversation."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from build import assistant, numbered, user
from metis import interchange
from metis.canonical import (
    Message,
    MessageMetadata,
    Outcome,
    OutcomeStatus,
    Role,
    SideEffects,
    TextBlock,
    decode,
    encode,
    validate_session,
)
from metis.canonical.blocks import ToolUseBlock
from metis.store.entries import MessageEntry
from metis.tools import (
    Answer,
    Confirmation,
    Dispatcher,
    ErrorClass,
    Question,
    Registry,
    Rule,
    ToolContext,
    ToolOutput,
    Verdict,
    error_class,
)
from metis.tools.tool import text_output
from tool_helpers import permissive_dispatcher, result_of, tool_call, tool_context, tool_factory

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def writes(_: Mapping[str, Any], __: ToolContext) -> ToolOutput:
    return ToolOutput(
        content=(TextBlock("written"),),
        value={"bytes": 3},
        ui={"diff": "+abc"},
        files_modified=("a.txt",),
        command="tee a.txt",
    )


def thread(call: ToolUseBlock, result: Message) -> list[Message]:
    """Return the conversation of a call and its result."""
    return [
        replace(message, session_id=result.session_id)
        for message in numbered(user("go"), assistant(call), result)
    ]


@pytest.mark.row("K-098", "K-120", "K-121")
async def test_tool_result_becomes_typed_message() -> None:
    call = tool_call("write", path="a.txt")
    (message,) = await permissive_dispatcher(tool_factory("write", writes)).run(
        [call], tool_context()
    )
    assert message.role is Role.TOOL
    assert message.metadata.parent_tool_use_id == call.id
    outcome = message.metadata.outcome
    assert type(message.metadata) is MessageMetadata
    assert type(outcome) is Outcome
    assert (outcome.status, outcome.tool_name) == (OutcomeStatus.SUCCESS, "write")
    assert (outcome.value, outcome.ui) == ({"bytes": 3}, {"diff": "+abc"})
    assert result_of(message).content == (TextBlock("written"),)
    assert decode(encode(message)) == message
    assert validate_session(thread(call, message)) == []


@pytest.mark.row("K-122")
async def test_side_effects_are_stored_in_the_message() -> None:
    call = tool_call("write", path="a.txt")
    (message,) = await permissive_dispatcher(tool_factory("write", writes)).run(
        [call], tool_context()
    )
    outcome = message.metadata.outcome
    assert outcome is not None
    done = [dict(one) for one in outcome.side_effects]
    assert done == [
        {"kind": "write", "path": "a.txt"},
        {"kind": "execute", "command": "tee a.txt"},
    ]
    stored = [
        MessageEntry(id=m.id, session_id=m.session_id, created_at=m.created_at, message=m)
        for m in thread(call, message)
    ]
    lines = interchange.dump("klaude-code", stored).data.splitlines()
    result = next(
        line["data"] for line in map(msgspec.json.decode, lines) if "Result" in line["type"]
    )
    assert result["side_effects"]


async def echo(arguments: Mapping[str, Any], _: ToolContext) -> ToolOutput:
    return text_output(str(arguments.get("text", "")))


@pytest.mark.row("GX-09")
@pytest.mark.parametrize(
    ("answer", "expected", "kind"),
    [
        (Answer(Verdict.ALLOW_ONCE), "hi", None),
        (Answer(Verdict.DENY, "Use the other file."), "Use the other file.", "user_denied"),
        (Answer(Verdict.DENY), "", "user_denied"),
        (None, "hi", None),
    ],
)
async def test_every_approval_outcome_leaves_a_valid_thread(
    answer: Answer | None, expected: str, kind: str | None
) -> None:
    """Approved, denied with a reason, denied, and without confirmation."""

    async def ask(_: Question) -> Answer:
        assert answer is not None
        return answer

    rules = dict.fromkeys(SideEffects, Rule.AUTO) if answer is None else {}
    registry = Registry(tool_factory("write", echo, SideEffects.WRITE))
    dispatcher = Dispatcher(registry, Confirmation(ask, rules=rules))
    call = tool_call("write", text="hi")
    (message,) = await dispatcher.run([call], tool_context())
    assert error_class(message) == (None if kind is None else ErrorClass(kind))
    assert result_of(message).is_error is (kind is not None)
    text = "".join(b.text for b in result_of(message).content if isinstance(b, TextBlock))
    assert expected in text
    assert text
    assert validate_session(thread(call, message)) == []
