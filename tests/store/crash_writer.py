"""A writer process to be killed: it appends until it dies, and prints acknowledged ids.

python crash_writer.py URL
"""

import asyncio
import itertools
import sys

from msgspec.structs import replace

from build import assistant, call, tool, user
from metis.canonical import new_session_id, new_tool_use_id, new_ulid
from metis.canonical.metadata import MessageStatus
from metis.store import Store
from metis.store import open as open_store


async def talk(store: Store, report: "asyncio.Queue[str]") -> None:
    """Append a conversation with calls, results and responses that are stored as they stream."""
    session_id = new_session_id()
    await store.create_session(session_id)

    async def append(message: object) -> None:
        entry = await store.append(replace(message, id=new_ulid(), session_id=session_id))  # pyright: ignore[reportArgumentType, reportUnknownArgumentType] - a message
        await report.put(f"{session_id} {entry.id} {entry.seq}")

    for number in itertools.count():
        call_id = new_tool_use_id()
        await append(user("what is in it?"))
        await append(assistant(call("read", call_id, path="a")))
        await append(tool("42", answers=call_id))
        started = assistant("it says ") if number % 2 else assistant()  # no content yet
        answer = replace(started, id=new_ulid(), session_id=session_id)
        metadata = replace(answer.metadata, status=MessageStatus.PARTIAL)
        entry = await store.append(replace(answer, metadata=metadata))
        await report.put(f"{session_id} {entry.id} {entry.seq}")
        await store.save(replace(answer, content=assistant("it says 42").content))


async def main(url: str) -> None:
    """Append to several sessions at once, until killed."""
    report: asyncio.Queue[str] = asyncio.Queue(maxsize=1)

    async def speak() -> None:
        while True:
            sys.stdout.write(await report.get() + "\n")
            sys.stdout.flush()

    async with open_store(url) as store:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        await asyncio.gather(speak(), *(talk(store, report) for _ in range(4)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
