"""Answers of a given form: every provider is asked for it, and what comes is read and checked."""

import tempfile
from typing import Any

import pytest

import metis
from metis.canonical import StopReason, TextBlock
from metis.canonical.errors import InvalidAnswerError, InvalidValueError
from metis.session import Lost, Metis, TurnEnded
from metis.wire.output_format import OutputFormat
from session.fake import Fake, say, serving
from session.helpers import options

pytestmark = pytest.mark.anyio
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "size": {"type": "integer", "minimum": 0}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "model",
    [
        "anthropic:claude-sonnet-4-6",
        "anthropic:claude-3-5-haiku-latest",  # by a tool that nobody sees
        "openai:gpt-5",
        "gemini:gemini-3.5-flash",
        "ollama:llama3.2",
        "deepseek:deepseek-reasoner",
    ],
)
async def test_each_provider_is_asked_in_its_own_way(url: str, model: str) -> None:
    async with Metis(url, metis.Options(simulate=True)) as m:
        session = await m.session(model=model)
        answer = await session.ask("describe a town as JSON", output=SCHEMA)
        assert answer is not None
        assert [type(block) for block in answer.content if block != TextBlock("")][-1] is TextBlock
        assert answer.metadata.stop_reason is StopReason.END_TURN
        if not model.startswith("deepseek"):
            value = await session.ask_json("describe another town", SCHEMA)
            assert set(value) == {"city", "size"}
            assert type(value["size"]) is int


async def test_a_value_is_what_the_answer_says(url: str) -> None:
    async with (
        serving(Fake(say('{"city": "Bergen", "size": 3}'))) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        session = await m.session()
        assert await session.ask_json("where?", SCHEMA) == {"city": "Bergen", "size": 3}
        (request,) = fake.bodies
        assert request["output_config"]["format"]["schema"]["required"] == ["city", "size"]


@pytest.mark.parametrize(
    ("words", "path", "text"),
    [
        ('{"city": "Bergen", "size": -1}', "$.size", "expected at least 0"),
        ('{"city": "Bergen"}', "$", 'missing required property "size"'),
        ("Bergen", "$", "the response is not valid JSON"),
    ],
)
async def test_an_answer_of_another_form_is_an_error_that_names_the_place(
    url: str, words: str, path: str, text: str
) -> None:
    async with (
        serving(Fake(say(words))) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        session = await m.session()
        with pytest.raises(InvalidAnswerError) as caught:
            await session.ask_json("where?", SCHEMA)
        assert caught.value.problems[0].path == path
        assert text in caught.value.problems[0].text
        # The answer is there all the same, and the conversation goes on.
        assert caught.value.message == session.messages[-1]


@pytest.mark.row("T119")
async def test_a_refusal_is_no_json_that_went_wrong(url: str) -> None:
    refused = say("I will not.", stop_reason=StopReason.REFUSAL)
    async with (
        serving(Fake(refused)) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        session = await m.session()
        with pytest.raises(InvalidAnswerError, match="the model refused to answer"):
            await session.ask_json("where?", OutputFormat())


async def test_a_schema_that_nobody_could_check_is_refused_before_anything_is_said(
    url: str,
) -> None:
    async with Metis(url, metis.Options(simulate=True)) as m:
        session = await m.session(model="anthropic:claude-sonnet-4-6")
        with pytest.raises(InvalidValueError, match="unevaluatedItems"):
            await session.ask_json("where?", {"unevaluatedItems": False})
        assert session.messages == []


async def test_a_form_holds_for_one_turn_and_its_losses_are_told(url: str) -> None:
    async with Metis(url, metis.Options(simulate=True)) as m:
        session = await m.session(model="anthropic:claude-3-5-haiku-latest")
        events = [event async for event in session.send("a town", output=SCHEMA)]
        told = [loss.path for event in events if isinstance(event, Lost) for loss in event.losses]
        assert told == ["$.output", "$.output.strict"]
        assert isinstance(events[-1], TurnEnded)
        answer = await session.ask("say all is well")
        assert answer is not None
        assert answer.content == (TextBlock("all is well"),)


def test_the_synchronous_twin_gives_the_same() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        metis.open_sync(f"sqlite:///{folder}/m.db", metis.Options(simulate=True)) as m,
    ):
        session = m.session(model="openai:gpt-5")
        assert set(session.ask_json("a town", SCHEMA)) == {"city", "size"}
        events = list(session.send("a town", output=SCHEMA))
        assert isinstance(events[-1], TurnEnded)
