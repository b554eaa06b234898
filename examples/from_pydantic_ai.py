"""The usual parts of pydantic-ai, and what they are with metis.

Agent("anthropic:claude-sonnet-4-6", instructions="...")       →  m.session(model=…, system=…)
@agent.tool_plain / @agent.tool                                →  @metis.tool
RunContext.deps                                                →  a closure, or a method
Agent(..., output_type=Forecast).run_sync(prompt).output       →  session.ask_json
async with agent.run_stream(prompt) as response                →  session.stream
result.usage(), message_history=result.new_messages()          →  reply.usage, the session
raise ModelRetry("...")                                        →  raise ToolFailedError("...")
"""

import asyncio
import tempfile
from dataclasses import dataclass

import metis
from metis.tools import ToolFailedError


@dataclass
class Station:
    """What a tool needs: a dependency of the program."""

    skies: dict[str, str]

    def sky(self, town: str) -> str:
        """Return the sky over a town."""
        if town not in self.skies:
            raise ToolFailedError(f"Unknown town; known are {', '.join(self.skies)}.")
        return self.skies[town]


@dataclass
class Forecast:
    """What the model fills in."""

    town: str
    is_sunny: bool


async def main(url: str) -> None:
    """Run the agent."""
    options = metis.Options(simulate=True, tools=[Station({"Oslo": "snow"}).sky])
    async with metis.open(url, options) as m:
        session = await m.session(model="sonnet", system="You forecast the weather.")
        async for text in session.stream("What is the sky over Oslo?"):
            print(text, end="")
        forecast = await session.ask_json("And tomorrow?", Forecast)
        print("\n", forecast.town, forecast.is_sunny)


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(f"sqlite:///{directory}/chats.db"))
