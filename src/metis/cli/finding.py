"""Finding: a session by what people write of its id."""

from metis.canonical.errors import StoreError
from metis.store import SessionRecord, Store

_ALL = 100_000


async def find_session(keep: Store, wanted: str) -> SessionRecord:
    """A session by its id or by a part of it that fits one only."""
    fitting = [each for each in await keep.sessions(_ALL) if wanted in each.id]
    if len(fitting) > 1 and all(each.id != wanted for each in fitting):
        raise StoreError(f"{wanted!r} fits {len(fitting)} sessions", hint="write more of the id")
    return fitting[0] if len(fitting) == 1 else await keep.session(wanted)
