"""One of several writer processes: 32 tasks append to own sessions and to a shared one.

Prints every acknowledged append. Stops after a number of appends per task, or after some seconds.

python many_writer.py URL SHARED_SESSION COUNT|SECONDSs
"""

import asyncio
import sys
import time

from msgspec.structs import replace

from build import user
from metis.canonical import new_session_id, new_ulid
from metis.store import Store
from metis.store import open as open_store

TASKS, SHARING = 32, 8


async def write(store: Store, session_id: str, count: int, until: float) -> None:
    """Append until the limit is reached."""
    number = 0
    while number < count and time.monotonic() < until:
        message = replace(user(str(number)), id=new_ulid(), session_id=session_id)
        entry = await store.append(message, renew_ids=True)
        sys.stdout.write(f"{session_id} {entry.id} {entry.seq}\n")
        number += 1


async def main(url: str, shared: str, limit: str) -> None:
    """Append from all tasks at once."""
    is_time = limit.endswith("s")
    count = sys.maxsize if is_time else int(limit)
    until = time.monotonic() + (float(limit[:-1]) if is_time else 10**9)
    async with open_store(url) as store:
        own_sessions = [
            (await store.create_session(new_session_id())).id for _ in range(TASKS - SHARING)
        ]
        targets = [*own_sessions, *[shared] * SHARING]
        await asyncio.gather(*(write(store, item, count, until) for item in targets))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
