"""The simulator answers for every host, with the options that metis sends."""

from pathlib import Path

import pytest

import metis
from metis import adapters
from metis.wire.call import AdapterOptions
from metis.wire.reasoning import Reasoning

pytestmark = pytest.mark.anyio
DOG = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def population(city: str) -> int:
    """Return the population of a city."""
    return len(city)


async def test_every_host_answers_with_tools_thinking_and_a_schema(tmp_path: Path) -> None:
    sent = AdapterOptions(reasoning=Reasoning("high"), max_output_tokens=4000, top_p=0.9)
    options = metis.Options(simulate=True, tools=[population], allow_unsupported=True, options=sent)
    async with metis.open(f"sqlite:///{tmp_path}/sim.db", options=options) as library:
        for name in adapters.names():
            model = f"{name}:{adapters.profile_of(name).default_model}"
            session = await library.session(model=model)
            reply = await session.ask("What is the population of Paris?")
            assert "population gave" in reply.text, name
            dog = await session.ask_json("Name a dog and its age.", DOG)
            assert isinstance(dog["name"], str), name
