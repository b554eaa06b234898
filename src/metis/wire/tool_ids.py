"""Ids of tool calls on the wire: ours for theirs, theirs for ours, always the same.

A provider's id becomes a canonical one by a hash over session and id, so that the same history
gives the same ids every time it is read, in every process. The way back is remembered with the
message that holds the call; for other providers an id is derived from ours.
"""

import hashlib

_LETTERS_OF_HASH = 25


def canonical_tool_id(session_id: str, provider_id: str, occurrence: int = 0) -> str:
    """Our id for a provider's; `occurrence` tells calls apart that reuse an id in a later turn.

    It has the form of those that we mint: hexadecimal digits are letters of a ULID, too.
    """
    key = f"{session_id}\0{provider_id}\0{occurrence}".encode(errors="surrogatepass")
    return f"tu_0{hashlib.sha256(key).hexdigest()[:_LETTERS_OF_HASH].upper()}"


def derived_id(tool_use_id: str, prefix: str) -> str:
    """An id for a call that the target did not make: its prefix, and what is unique of ours."""
    return prefix + (tool_use_id[3:] if tool_use_id[:3] == "tu_" else tool_use_id)


class CallIds:
    """Our ids for the calls of one conversation, by the order in which calls and results come.

    An id that comes again is another call (T08, T09), and an empty one names nothing (T10): what
    has no id of its own is told apart by its turn, `scope`, and its position there.
    """

    def __init__(self, session_id: str, scope: str = "") -> None:
        self._session_id = session_id
        self._scope = scope
        self._calls: dict[str, list[str]] = {}
        self._answered: dict[str, int] = {}

    def enter(self, answer: str) -> None:
        """Take the ids that follow for those of one answer: hosts count anew in each (T09)."""
        self._session_id = f"{self._session_id}\0{answer}"

    def of_call(self, theirs: str, *, is_id: bool = True) -> str:
        """Our id for the next call that goes by this id or name."""
        key = theirs if theirs and is_id else f"{self._scope}\0{theirs}"
        calls = self._calls.get(key)
        if calls is None:
            calls = self._calls[key] = []
        ours = canonical_tool_id(self._session_id, key, len(calls))
        calls.append(ours)
        return ours

    def of_result(self, theirs: str, *, is_id: bool = True) -> str:
        """Our id for the call that a result answers: the oldest that waits for one, or the last."""
        key = theirs if theirs and is_id else f"{self._scope}\0{theirs}"
        calls = self._calls.get(key)
        if calls is None:
            return canonical_tool_id(self._session_id, key)
        number = self._answered.get(key, 0)
        self._answered[key] = number + 1
        return calls[number] if number < len(calls) else calls[-1]
