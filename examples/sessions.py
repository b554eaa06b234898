"""Send prompts, switch the model, fork and read the cost; the simulator answers."""

import asyncio
import tempfile

import metis
from metis import Metis, Options, Reply, Session, open_sync, store
from metis.session import TextDelta

OPTIONS = Options(simulate=True)


async def chat(url: str) -> None:
    """Stream two turns with two models in one session."""
    async with metis.open(url, OPTIONS) as m:
        assert isinstance(m, Metis)
        session: Session = await m.session(model="sonnet")
        async for event in session.send("say hello"):
            if isinstance(event, TextDelta):
                print(event.text, end="")
        preview = session.preview_swap("gpt-5")
        print(f"\nThe switch would drop {len(preview.dropped)} parts.")
        await session.swap("gpt-5")
        message = await session.ask("count to 3")
        assert message is not None
        copy = await session.fork()
        assert copy.id != session.id
        print(session.cost().total_usd)


def without_async(url: str) -> None:
    """Use the same API from blocking code."""
    with open_sync(url, OPTIONS) as m:
        session = m.session(model="haiku")
        assert session.ask("say done") is not None
    reply: Reply = metis.ask("say done", model="haiku", url=url, options=OPTIONS)
    assert reply.text == "done"


async def read_back(url: str) -> None:
    """Read the stored sessions."""
    async with store.open(url) as opened:
        for overview in await opened.overviews():
            print(overview.title)


with tempfile.TemporaryDirectory() as directory:
    address = f"sqlite:///{directory}/chats.db"
    asyncio.run(chat(address))
    without_async(address)
    asyncio.run(read_back(address))
assert metis.session.Session is Session
