"""Classification of losses for display: noticeable, formal, or hidden."""

import pytest
from msgspec.structs import replace

from metis.cli.chat.turn_parts import is_noticeable, reformatted_line
from metis.projection.loss import Change, Loss


def loss(kind: str, change: Change, path: str = "$.content[0]", reason: str = "so it is") -> Loss:
    return Loss(
        session_id="sess_1",
        message_id="m",
        block_type=kind,
        adapter="openai",
        reason=reason,
        change=change,
        path=path,
    )


@pytest.mark.parametrize(
    "noticeable",
    [
        loss("image", Change.DROPPED),
        loss("document", Change.ALTERED),
        loss("opaque", Change.DROPPED),
        loss(
            "tool_use", Change.ALTERED, reason="tools are not supported by the model; sent as text"
        ),
        replace(loss("tool_result", Change.ALTERED), as_text=True),
        loss("tool_result", Change.DROPPED),
        loss("text", Change.ALTERED, "$.content[0].citations"),
        loss("thinking", Change.DROPPED),
        loss("option", Change.DROPPED, "$.tools[2]"),
        loss("option", Change.ALTERED, "$.reasoning"),
        loss("of tomorrow", Change.ALTERED),
    ],
    ids=lambda each: f"{each.block_type} {each.change}",
)
def test_missing_content_is_a_noticeable_loss(noticeable: Loss) -> None:
    assert is_noticeable(noticeable)


REFORMATTED = [
    loss("tool_use", Change.ALTERED, "$.content[0].id"),
    loss("tool_result", Change.ALTERED, "$.content[0].tool_use_id"),
    loss("tool_use", Change.ALTERED, "$.content[0].name"),
    loss("message", Change.ALTERED, "$"),
    loss("message", Change.SYNTHESISED, "$"),
    loss("developer", Change.ALTERED, "$.role"),
    loss("hint", Change.DROPPED),
    loss("key", Change.DROPPED, "$.content[0].caller"),
    loss("text", Change.DROPPED, reason="the text is blank"),
    loss("thinking", Change.SYNTHESISED),
    loss("option", Change.ALTERED, "$.tools[0].name"),
]


@pytest.mark.parametrize(
    "reformatted", REFORMATTED, ids=lambda each: f"{each.block_type} {each.change}"
)
def test_changed_spelling_is_not_a_noticeable_loss(reformatted: Loss) -> None:
    assert not is_noticeable(reformatted)


def test_formal_losses_are_one_line() -> None:
    assert reformatted_line(REFORMATTED[:3]) == (
        "Reformatted without loss: 2 tool calls, 1 tool result"
    )
    assert not reformatted_line([])
