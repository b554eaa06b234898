"""The fast path of the projection changes only messages that need a fix."""

import pytest

from build import assistant, call, image, text, tool, tool_id, user
from metis.canonical import ThinkingBlock
from metis.projection import Target, project
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.projection.fast import fix_messages, inspect_history

BLIND = Target(adapter="toy", issuers=frozenset({"toy"}), placeholder_signature="placeholder")


@pytest.mark.row("T56", "T57")
def test_only_messages_that_need_a_fix_change() -> None:
    tool_call = call("f", tool_id())
    talk = [
        user(text("a"), image()),
        assistant(tool_call),
        tool("ok", answers=tool_call.id),
        user("b"),
    ]
    history = inspect_history(talk, BLIND)
    assert history is not None
    assert history.fix_indexes == [0, 1]
    fixed = fix_messages(talk, history, BLIND)
    assert fixed is not None
    assert [one is other for one, other in zip(fixed.messages, talk, strict=True)] == [
        False,
        False,
        True,
        True,
    ]
    seal = ThinkingBlock("", "placeholder", format=SIGNATURE_ON_NEXT, issuer="toy")
    assert fixed.messages[1].content == (seal, tool_call)
    assert [loss.change.value for loss in fixed.losses] == ["altered", "synthesised"]
    assert project(talk, BLIND).messages == fixed.messages
