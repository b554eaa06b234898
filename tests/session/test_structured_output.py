"""Structured output: every provider is sent the format, and responses are parsed and checked."""

import tempfile
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pydantic
import pytest
from msgspec import Meta

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
        "anthropic:claude-3-5-haiku-latest",  # by a hidden tool
        "openai:gpt-5",
        "gemini:gemini-3.5-flash",
        "ollama:llama3.2",
        "deepseek:deepseek-reasoner",
    ],
)
async def test_output_format_is_sent_in_form_of_each_provider(url: str, model: str) -> None:
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


async def test_value_is_parsed_from_response(url: str) -> None:
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
async def test_response_of_wrong_format_error_names_the_path(
    url: str, words: str, path: str, text: str
) -> None:
    async with (
        serving(Fake(say(words), say(words))) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        session = await m.session()
        with pytest.raises(InvalidAnswerError) as caught:
            await session.ask_json("where?", SCHEMA)
        assert len(fake.bodies) == 2  # the model may correct itself once
        assert caught.value.problems[0].path == path
        assert text in caught.value.problems[0].text
        # The response is stored, and the conversation continues.
        assert caught.value.message == session.messages[-1]


@dataclass
class Place:
    city: str
    size: Annotated[int, Meta(ge=0)] = 0


class Named(TypedDict):
    name: str


class Positive(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        if number < 1:
            raise ValueError("not positive")
        return number


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Place, '{"city": "Bergen", "size": 3}', Place("Bergen", 3)),
        (Place, '{"city": "Bergen"}', Place("Bergen")),
        (Named, '{"name": "Oslo"}', {"name": "Oslo"}),
        (Positive, '{"number": 2}', Positive(number=2)),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (list[Place], '{"value": [{"city": "a"}]}', [Place("a")]),
        (Literal["yes", "no"], '{"value": "no"}', "no"),
    ],
)
async def test_a_type_gives_a_value_of_it(url: str, kind: Any, text: str, value: object) -> None:
    async with (
        serving(Fake(say(text))) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        assert await (await m.session()).ask_json("where?", kind) == value
        assert len(fake.bodies) == 1


async def test_wrong_format_is_corrected_by_the_model_once(url: str) -> None:
    async with (
        serving(Fake(say('{"number": 0}'), say('{"number": 7}'))) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        assert await (await m.session()).ask_json("how many?", Positive) == Positive(number=7)
        repair = fake.requests[1].messages[-1].content[0]
        assert isinstance(repair, TextBlock)
        assert "number: Value error, not positive" in repair.text


async def test_non_data_type_is_refused_before_sending(url: str) -> None:
    async with (
        serving(Fake()) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        with pytest.raises(InvalidValueError, match=r"Fake cannot be described as JSON"):
            await (await m.session()).ask_json("where?", Fake)
        assert not fake.bodies


@pytest.mark.row("T119")
async def test_refusal_is_not_reported_as_invalid_json(url: str) -> None:
    refused = say("I will not.", stop_reason=StopReason.REFUSAL)
    async with (
        serving(Fake(refused)) as fake,
        Metis(url, options(fake, tools=None, default_model="sonnet")) as m,
    ):
        session = await m.session()
        with pytest.raises(InvalidAnswerError, match="the model refused to answer"):
            await session.ask_json("where?", OutputFormat())


async def test_uncheckable_schema_is_refused_before_sending(
    url: str,
) -> None:
    async with Metis(url, metis.Options(simulate=True)) as m:
        session = await m.session(model="anthropic:claude-sonnet-4-6")
        with pytest.raises(InvalidValueError, match="unevaluatedItems"):
            await session.ask_json("where?", {"unevaluatedItems": False})
        assert session.messages == []


async def test_output_format_applies_to_one_turn_and_its_losses_are_reported(url: str) -> None:
    async with Metis(url, metis.Options(simulate=True)) as m:
        session = await m.session(model="anthropic:claude-3-5-haiku-latest")
        events = [event async for event in session.send("a town", output=SCHEMA)]
        loss_paths = [
            loss.path for event in events if isinstance(event, Lost) for loss in event.losses
        ]
        assert loss_paths == ["$.output", "$.output.strict"]
        assert isinstance(events[-1], TurnEnded)
        answer = await session.ask("say all is well")
        assert answer is not None
        assert answer.content == (TextBlock("all is well"),)


def test_blocking_session_gives_equal_values() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        metis.open_sync(f"sqlite:///{folder}/m.db", metis.Options(simulate=True)) as m,
    ):
        session = m.session(model="openai:gpt-5")
        assert set(session.ask_json("a town", SCHEMA)) == {"city", "size"}
        events = list(session.send("a town", output=SCHEMA))
        assert isinstance(events[-1], TurnEnded)
