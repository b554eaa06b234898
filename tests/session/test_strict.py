"""What metis itself produces obeys the base specification, beside fields that it adds."""

import pytest
from msgspec.structs import replace

import metis
from build import assistant, call, provenance, tool_id
from metis import adapters
from metis.canonical import Message, new_tool_use_id, validate
from metis.canonical.profiles import SPEC_FIELDS
from metis.canonical.value import fields_of
from metis.session import Metis, Options
from session.fake import Fake, say, serving
from session.helpers import options

pytestmark = pytest.mark.anyio
STATED = {"$.metadata.response_id", "$.metadata.stop_reason"}
"""Added fields of every response; the base specification has no field for either."""


def problems(message: Message) -> list[tuple[str, str]]:
    return [(problem.rule, problem.path) for problem in validate(message, "strict")]


def base_form(message: Message) -> Message:
    """Return a message without the metadata that the base specification lacks."""
    metadata = message.metadata
    listed = SPEC_FIELDS[type(metadata)]
    added = {
        field.name: field.default for field in fields_of(type(metadata)) if field.name not in listed
    }
    return replace(message, metadata=replace(metadata, **added))


@pytest.mark.row("M-146", "M-147", "M-148")
async def test_a_response_of_the_simulator_adds_only_its_id_and_its_stop_reason(url: str) -> None:
    async with metis.open(url, Options(simulate=True)) as m:
        session = await m.session(model="sonnet")
        await session.ask("say all is well")
        prompt, response = await m.store.messages(session.id)
    assert problems(prompt) == []
    assert {path for _, path in problems(response)} == STATED
    assert problems(base_form(response)) == []


async def test_turns_with_tools_and_summaries_obey_the_base_specification(url: str) -> None:
    full = say(status=400, error="prompt is too long: 250000 tokens > 200000 maximum")
    reading = say("I'll read it.", call("read_file", new_tool_use_id(), path="README.md"))
    script = [reading, say("one"), full, say("the gist"), say("two")]
    async with serving(Fake(*script)) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        await session.ask("read it")
        await session.ask("go on")
        stored = await m.store.messages(session.id)
        summary = session.messages[0]
    added = [{path for _, path in problems(message)} for message in [*stored, summary]]
    result = {"$.metadata.outcome"}
    assert added == [set(), STATED, result, STATED, set(), STATED, {"$.metadata.origin"}]
    assert [problems(base_form(message)) for message in [*stored, summary]] == [[]] * 7


@pytest.mark.parametrize(
    "name", ["anthropic", "openai", "openai-responses", "gemini", "bedrock-converse", "ollama"]
)
def test_a_message_that_is_joined_from_stream_events_obeys_the_base_specification(
    name: str,
) -> None:
    adapter = adapters.get(name)
    served = assistant("so", call("f", tool_id(1), a=1), metadata=provenance())
    encoder, decoder = adapter.stream_encoder(), adapter.stream_decoder()
    for event in adapter.response_events(served):
        decoder.feed(encoder.encode(event))
    decoder.feed(encoder.finish())
    decoder.finish()
    joined = base_form(decoder.message)
    # A decoder does not know the route, which a session adds.
    assert problems(joined) == [("M-147", "$.metadata.routing")]
