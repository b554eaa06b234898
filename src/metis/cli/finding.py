"""Finding: a session by what people write of its id."""

from metis.canonical.errors import StoreError
from metis.store import SessionRecord, Store

LAST = "last"
_ALL = 100_000
_RECENT = 1000


async def find_session(keep: Store, wanted: str) -> SessionRecord:
    """A session by a part of its id that fits one only, else by words of its title.

    The word `last` is the one that changed last.
    """
    records = await keep.sessions(1 if wanted == LAST else _ALL)
    if wanted == LAST and records:
        return records[0]
    fitting = [each for each in records if wanted in each.id] or await _titled(keep, wanted)
    if len(fitting) > 1 and all(each.id != wanted for each in fitting):
        hint = "write more of the id; `metis sessions` lists all"
        raise StoreError(f"{wanted!r} fits {len(fitting)} sessions", hint=hint)
    return fitting[0] if len(fitting) == 1 else await keep.session(wanted)


async def _titled(keep: Store, wanted: str) -> list[SessionRecord]:
    found = await keep.overviews(_RECENT)
    return [each.session for each in found if wanted.lower() in each.title.lower()]
