"""The usual calls of LiteLLM, and what they are with metis.

litellm.completion(model="claude-sonnet-4-6", messages=messages)              →  ask
litellm.completion(model="gpt-5", messages=messages, stream=True)             →  stream
litellm.completion(..., response_format=Person).choices[0].message.content    →  ask_json
litellm.completion(..., fallbacks=["gpt-5"], num_retries=3)                   →  Options
litellm.completion_cost(response)                                             →  reply.cost
"""

import tempfile
from dataclasses import dataclass

import metis
from metis import Options
from metis.transport import Retry


@dataclass
class Person:
    """What the model fills in."""

    name: str
    age: int


# Model names of LiteLLM such as `anthropic/claude-…` are `anthropic:claude-…` here.
options = Options(simulate=True, fallbacks={"*": ["gpt-5"]}, retry=Retry(attempts=3))
with (
    tempfile.TemporaryDirectory() as directory,
    metis.open_sync(f"sqlite:///{directory}/chats.db", options) as m,
):
    session = m.session(model="anthropic:claude-sonnet-4-6", system="Be brief.")
    reply = session.ask("say hello")
    print(reply.text, reply.cost, reply.usage)
    # The history is in the session: a next question is one line, with any model.
    for text in session.stream("count to 3", model="gpt-5"):
        print(text, end="")
    person = session.ask_json("Who is the oldest?", Person)
    print("\n", person.name, person.age)
    print([str(loss) for loss in reply.losses])  # what the provider did not get unchanged
