"""Each law notices what violates it, and nothing else."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from build import assistant, call, image, text, tool, tool_id, user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, ToolDefinition
from metis.canonical.errors import InvalidRequestError
from metis.verify.edits import edits
from metis.verify.seals import conversation_with
from metis.verify.stable import stable_faults
from metis.wire.call import AdapterOptions, WireRequest

TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]
BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": TURNS}


class Changing(Adapter):
    """An adapter whose requests are changed by a test."""

    def __init__(self, kind: str) -> None:
        super().__init__(adapters.get("openai").profile)
        self._kind = kind
        self._numbers = count()

    def preview(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        options: AdapterOptions = AdapterOptions(),  # noqa: B008 - an immutable value
    ) -> WireRequest:
        number = next(self._numbers)
        request = super().preview(messages, tools, options)
        match self._kind:
            case "numbered":
                body = request.body.replace(b'"three"', b'"three %d"' % number)
            case "front":
                body = request.body.replace(b'"one"', b'"one of %d"' % len(messages))
            case "refusing":
                raise InvalidRequestError("no", provider="openai")
            case "refusing later" if number == 2:
                raise InvalidRequestError("no", provider="openai")
            case "refusing first" if number == 0:
                raise InvalidRequestError("no", provider="openai")
            case _:
                body = request.body
        return replace(request, body=body)


OTHER_BYTES = "to openai: the same request gives other bytes"
OTHER_START = "to openai: turn 2 does not begin as the one before it"


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("plain", []),
        ("refusing", []),
        ("refusing first", []),
        ("refusing later", [OTHER_BYTES]),
        ("numbered", [OTHER_BYTES]),
        ("front", [OTHER_START]),
    ],
)
def test_law_of_stable_requests(kind: str, faults: list[str]) -> None:
    assert list(stable_faults(adapters.get("anthropic"), BODY, [Changing(kind)])) == faults


def edits_of(message: Message) -> list[tuple[str, int, list[str]]]:
    return [
        (name, index, [getattr(block, "text", block.type) for block in content])
        for name, index, content in edits(message)
    ]


def test_edits_are_one_change_removal_or_addition() -> None:
    added = "added to this message"
    assert edits_of(user("a", image("aWY="))) == [
        ("a change", 0, ["a changed", "image"]),
        ("the removal", 0, ["image"]),
        ("an addition", 0, [added, "a", "image"]),
        ("the removal", 1, ["a"]),
        ("an addition", 1, ["a", added, "image"]),
        ("an addition", 2, ["a", "image", added]),
    ]
    assert edits_of(tool("x", answers=tool_id(1))) == [("a change", 0, ["tool_result"])]


def test_calls_in_a_history_have_results() -> None:
    one, two = call("f", tool_id(1)), call("g", tool_id(2))
    history = conversation_with([assistant("so", one, two), assistant(text("end"))])
    assert [str(message.role) for message in history] == [
        *("user", "assistant", "tool", "tool", "assistant", "user")
    ]
    answered = [message.metadata.parent_tool_use_id for message in history[2:4]]
    assert answered == [tool_id(1), tool_id(2)]
