"""Asking again: an adapter remembers what it sent, and no request shows it."""

import random

import pytest

from build import assistant, call, numbered, system, tool, tool_id, user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, ToolDefinition
from metis.canonical.tools import SideEffects
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.reasoning import Reasoning

NAMES = adapters.names()
WISHES = (
    AdapterOptions(),
    AdapterOptions(),
    AdapterOptions(temperature=0.5),
    AdapterOptions(max_output_tokens=100, stop_sequences=("end",)),
    AdapterOptions(tool_choice=ToolChoice("required")),
    AdapterOptions(reasoning=Reasoning("low")),
    AdapterOptions(stream=True),
)


def definition(name: str) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        description="does it",
        input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
        side_effects=SideEffects.READ,
    )


def conversation(turns: int) -> list[Message]:
    messages = [system("Be brief.")]
    for number in range(turns):
        asked = tool_id(number + 1)
        messages += [
            user(f"question {number}"),
            assistant("let me see", call("look", asked, path=str(number))),
            tool("a result", answers=asked),
            assistant("an answer"),
        ]
    return numbered(*messages, user("and now?"))


@pytest.mark.parametrize("name", NAMES)
def test_a_remembered_conversation_is_sent_as_a_new_one_would_be(name: str) -> None:
    draw = random.Random(name)  # noqa: S311 - a workload, no secret
    old, messages = adapters.get(name), conversation(12)
    toolbox = [definition("look"), definition("find"), definition("look.closer")]
    tools = toolbox[:1]
    for turn in range(1, 12):
        said = [*messages[: 1 + 4 * turn], messages[-1]]
        options = draw.choice(WISHES)
        if draw.random() < 0.5:
            # The same list as before, with something else in it.
            tools[:] = draw.sample(toolbox, draw.randint(1, 3))
        for asked in ([*said[:-1], messages[1 + 4 * turn]], said):
            again = old.to_wire(asked, tools, options)
            assert again == Adapter(old.profile).to_wire(asked, tools, options)
