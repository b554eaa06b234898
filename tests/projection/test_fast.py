import pytest

from build import assistant, call, image, text, tool, tool_id, user
from metis.canonical import ThinkingBlock
from metis.projection import Target, project
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.projection.fast import fix_messages, inspect_history

BLIND = Target(adapter="toy", issuers=frozenset({"toy"}), placeholder_signature="placeholder")


@pytest.mark.row("T56", "T57")
def test_only_what_has_to_be_mended_is() -> None:
    asked = call("f", tool_id())
    talk = [user(text("a"), image()), assistant(asked), tool("ok", answers=asked.id), user("b")]
    touched = fix_messages(talk, [0, 1], BLIND)
    assert touched is not None
    assert [one is other for one, other in zip(touched.messages, talk, strict=True)] == [
        False,
        False,
        True,
        True,
    ]
    seal = ThinkingBlock("", "placeholder", format=SIGNATURE_ON_NEXT, issuer="toy")
    assert touched.messages[1].content == (seal, asked)
    assert [loss.change.value for loss in touched.losses] == ["altered", "synthesised"]
    ready = inspect_history(talk, BLIND)
    assert ready is not None
    assert ready.fix_indexes == [0, 1]
    assert project(talk, BLIND).messages == touched.messages
