"""Calls and their results: the protocol pairs them by id, or by name and order where it has none.

Ours always have an id. One that the provider gave becomes ours by a hash; one that is missing is
made from the name of the tool and the number of the call, so that the same history gives the same
ids every time it is read (T10).
"""

from metis.wire.tool_ids import canonical_tool_id

_Waiting = tuple[str, str, str | None]
"""Our id of a call that waits for its result, its name, and the provider's id."""


class CallNames:
    """Gives calls their ids, and results the ids of the calls that they answer."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._waiting: list[_Waiting] = []
        self._counts: dict[str, int] = {}
        self._given: dict[str, str] = {}
        self._is_answering = False
        self.by_id: dict[str, str] = {}
        """The names of the tools by the ids of the calls."""
        self.theirs: dict[str, str] = {}
        """The provider's ids by ours, of all calls and results so far."""

    def begin_answer(self) -> None:
        """A turn of the model begins: results that come now answer no earlier turn."""
        if not self._is_answering:
            self._waiting.clear()
        self._is_answering = True

    def end_answer(self) -> None:
        """A turn of the user begins."""
        self._is_answering = False

    def given(self) -> dict[str, str]:
        """The provider's ids by ours, of all calls and results since this was last asked."""
        given, self._given = self._given, {}
        return given

    def call(self, name: str, theirs: str | None) -> str:
        """Our id for a call; an id that is used again is another call (T09)."""
        ours = self._next(theirs or f"\0{name}")
        self._waiting.append((ours, name, theirs))
        self.by_id[ours] = name
        self._note(ours, theirs)
        return ours

    def answer(self, name: str, theirs: str | None) -> str:
        """Our id of the call that a result answers."""
        waiting = self._find(name, theirs)
        if waiting is None:
            ours = self._next(f"\0\0{theirs or name}")
        else:
            self._waiting.remove(waiting)
            ours = waiting[0]
        self._note(ours, theirs)
        return ours

    def _note(self, ours: str, theirs: str | None) -> None:
        if theirs:
            self._given[ours] = self.theirs[ours] = theirs

    def _find(self, name: str, theirs: str | None) -> _Waiting | None:
        if theirs is not None:
            for each in self._waiting:
                if each[2] == theirs:
                    return each
        for each in self._waiting:
            if each[1] == name and (theirs is None or each[2] is None):
                return each
        return None

    def _next(self, key: str) -> str:
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        return canonical_tool_id(self._scope, key, count)
