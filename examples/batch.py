"""Ask many questions at once: a few at a time, with retries, and a result or an error for each."""

import asyncio
import tempfile

import metis
from metis import MetisError, Options, Reply
from metis.transport import Retry

# `sim: 529 x1` makes the simulator fail once, `sim: 400` always.
QUESTIONS = ["say one", "say two sim: 529 x1", "say three", "say four sim: 400"]
AT_ONCE = 2
OPTIONS = Options(simulate=True, retry=Retry(attempts=3, first_s=0.01))


async def ask_all(url: str) -> list[Reply | MetisError]:
    """Return a reply or an error for each question, in their order."""
    slots = asyncio.Semaphore(AT_ONCE)
    async with metis.open(url, OPTIONS) as m:

        async def ask(question: str) -> Reply | MetisError:
            async with slots:
                session = await m.session(model="haiku")
                try:
                    return await session.ask(question)
                except MetisError as error:  # the other questions go on
                    return error

        return await asyncio.gather(*map(ask, QUESTIONS))


with tempfile.TemporaryDirectory() as directory:
    results = asyncio.run(ask_all(f"sqlite:///{directory}/batch.db"))
for question, result in zip(QUESTIONS, results, strict=True):
    print(f"{question!r}: {result if isinstance(result, Reply) else type(result).__name__}")
print("cost:", sum(result.cost for result in results if isinstance(result, Reply)))
assert [isinstance(result, Reply) for result in results] == [True, True, True, False]
