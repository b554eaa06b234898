"""The usual parts of LangChain, and what they are with metis.

    ChatAnthropic(model="claude-sonnet-4-6").invoke(messages)         →  session.ask
    @tool def add(a: int, b: int) -> int                              →  @metis.tool
    create_agent(model, tools=[add]).invoke(...)                      →  Options(tools=[add])
    model.with_structured_output(Total).invoke(...)                   →  session.ask_json
    ChatPromptTemplate.from_messages([("system", ...), ...])          →  system=, and an f-string
    checkpointer=InMemorySaver(), thread_id                           →  the store, session.id
    for chunk in chain.stream(...)                                    →  session.stream

To let LangChain itself talk through metis, see `docs/guides/integrations.md`.
"""

import tempfile
from typing import TypedDict

import metis


@metis.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Total(TypedDict):
    """What the model fills in."""

    total: int


with (
    tempfile.TemporaryDirectory() as directory,
    metis.open_sync(
        f"sqlite:///{directory}/chats.db", metis.Options(simulate=True, tools=[add])
    ) as m,
):
    session = m.session(model="sonnet", system="You are good at sums.")
    print(session.ask("use the tool add"))
    print(session.ask_json("What is the total?", Total)["total"])
    # A thread of LangGraph is a session: continue it by its id, in another process too.
    print(m.resume(session.id).ask("say goodbye", model="gpt-5"))
