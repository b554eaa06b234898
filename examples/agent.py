"""An agent with a tool, streaming, typed output and a model switch; the simulator answers."""

import asyncio
import tempfile
from dataclasses import dataclass
from typing import Annotated, Literal

import metis
from metis.session import ReplyStream, SyncReplyStream
from metis.tools import FunctionTool


@metis.tool
def weather(town: Annotated[str, "the name of the town"], days: int = 1) -> dict[str, str]:
    """Return the weather of a town."""
    return {"town": town, "sky": "snow" if days == 1 else "sun"}


@metis.tool(side_effects="write")
async def note(text: str, kind: Literal["idea", "task"] = "idea") -> str:
    """Write a note; such a call is confirmed first, since it changes something."""
    return f"{kind}: {text}"


@dataclass
class Forecast:
    """A type of the program; the model fills it in."""

    town: str
    degrees: int


assert isinstance(weather, FunctionTool)
assert weather("Oslo") == {"town": "Oslo", "sky": "snow"}  # still an ordinary function
options = metis.Options(simulate=True, tools=[weather, note])
with (
    tempfile.TemporaryDirectory() as directory,
    metis.open_sync(f"sqlite:///{directory}/chats.db", options) as m,
):
    session = m.session(model="sonnet")
    stream: SyncReplyStream = session.stream("What is the weather in Oslo?")
    for text in stream:
        print(text, end="")
    print("\n", stream.reply.cost, "USD,", len(stream.reply.losses), "losses")
    session.swap("gpt-5")  # another provider continues the same conversation
    forecast = session.ask_json("And tomorrow?", Forecast)
    print(forecast.town, forecast.degrees)


async def stream_text(url: str) -> None:
    """Read a stream in async code."""
    async with metis.open(url, options) as m:
        arriving: ReplyStream = (await m.session()).stream("say hello")
        print([text async for text in arriving], arriving.reply.model)


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(stream_text(f"sqlite:///{directory}/chats.db"))
