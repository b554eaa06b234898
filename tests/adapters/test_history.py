"""Repeated requests: the cached encoded history never changes a request."""

import random

import pytest
from msgspec.structs import replace

from build import assistant, call, numbered, system, tool, tool_id, user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, ToolDefinition, ToolResultBlock, ToolUseBlock
from metis.canonical.tools import SideEffects
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.reasoning import Reasoning

NAMES = adapters.names()
REQUEST_OPTIONS = (
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
        call_id = tool_id(number + 1)
        messages += [
            user(f"question {number}"),
            assistant("let me see", call("look", call_id, path=str(number))),
            tool("a result", answers=call_id),
            assistant("an answer"),
        ]
    return numbered(*messages, user("and now?"))


@pytest.mark.parametrize("name", NAMES)
def test_cached_history_gives_same_request_as_new_adapter(name: str) -> None:
    draw = random.Random(name)  # noqa: S311 - a workload, no secret
    old, messages = adapters.get(name), conversation(12)
    toolbox = [definition("look"), definition("find"), definition("look.closer")]
    tools = toolbox[:1]
    for turn in range(1, 12):
        current = [*messages[: 1 + 4 * turn], messages[-1]]
        options = draw.choice(REQUEST_OPTIONS)
        if draw.random() < 0.5:
            # The same list object with other content.
            tools[:] = draw.sample(toolbox, draw.randint(1, 3))
        for request in ([*current[:-1], messages[1 + 4 * turn]], current):
            again = old.to_wire(request, tools, options)
            assert again == Adapter(old.profile).to_wire(request, tools, options)


FREE = ["anthropic", "openai", "openai-responses", "azure", "openrouter", "vllm"]
"""Providers that accept ids of many forms."""


def talk_with(*calls: str) -> list[Message]:
    response = assistant(*(call("look", each, path="a") for each in calls))
    return numbered(user("go"), response, *(tool("done", answers=each) for each in calls))


def ids_in(body: bytes, *calls: str) -> list[str]:
    """Return each id that occurs as a whole string, with repetitions."""
    return [each for each in calls for _ in range(body.decode().count(f'"{each}"'))]


@pytest.mark.row("T02", "T13")
@pytest.mark.parametrize("name", FREE)
def test_foreign_id_is_kept_where_it_is_valid(name: str) -> None:
    calls = ("toolu_01abc", "call_7", "x")
    body = adapters.get(name).to_wire(talk_with(*calls)).body
    assert ids_in(body, *calls) == [each for each in calls for _ in range(2)]


@pytest.mark.row("T02", "T13")
@pytest.mark.parametrize("name", NAMES)
def test_ids_that_would_collide_stay_distinct(name: str) -> None:
    adapter = adapters.get(name)
    ours = tool_id(7)
    prefix = adapter.profile.id_rule.prefix if adapter.profile.id_rule else "call_"
    history = talk_with(ours, prefix + ours.removeprefix("tu_"), "a b", "tu_odd")
    first = adapter.to_wire(history)
    read = adapter.from_wire_request(first.body).messages
    blocks = [block for message in read for block in message.content]
    call_ids = [block.id for block in blocks if type(block) is ToolUseBlock]
    assert len(set(call_ids)) == 4
    assert [block.tool_use_id for block in blocks if type(block) is ToolResultBlock] == call_ids
    # A second request is equal, whether or not the conversation was cached.
    assert adapter.to_wire(history) == first == Adapter(adapter.profile).to_wire(history)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("raw", ["words", 7, None, ["a"]])
def test_unrelated_provider_raw_does_not_change_request(name: str, raw: object) -> None:
    adapter = adapters.get(name)
    plain = talk_with(tool_id())
    with_raw = replace(plain[1], metadata=replace(plain[1].metadata, provider_raw={"whoever": raw}))
    assert adapter.to_wire([plain[0], with_raw, *plain[2:]]).body == adapter.to_wire(plain).body
