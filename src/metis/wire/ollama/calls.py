"""Tool calls of Ollama, to and from ours, and which result answers which call.

Arguments are an object here. Only newer servers give ids; without them a result names its tool, or
nothing at all, and then the order tells.
"""

from typing import Any, NamedTuple

from msgspec import UNSET, Raw

from metis.canonical.blocks import InvalidInput, OpaqueBlock, ToolUseBlock
from metis.canonical.value import made
from metis.streaming.arguments import read_arguments
from metis.wire.ollama.types import PROTOCOL, Call, write_json
from metis.wire.shape import Wire, maybe_object, maybe_text
from metis.wire.tool_ids import canonical_tool_id

_make_call = made(ToolUseBlock)


class Waiting(NamedTuple):
    """A call that waits for its result."""

    theirs: str
    name: str
    ours: str


class CallIds:
    """Our ids for the calls of one conversation, by the order in which calls and results come.

    A call without an id goes by its name and how often that was called before, so that the same
    history has the same ids whenever it is read (T10, T13).
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._counts: dict[str, int] = {}
        self._waiting: list[Waiting] = []
        self._last: dict[str, str] = {}

    def of_call(self, theirs: str, name: str) -> str:
        """Our id for the next call."""
        key = theirs or f"\0{name}"
        ours = self._next(key)
        self._waiting.append(Waiting(theirs, name, ours))
        self._last[key] = ours
        return ours

    def of_result(self, theirs: str, name: str) -> tuple[Waiting, bool]:
        """The call that a result answers, and whether it is the oldest that waits for one."""
        place = self._place(theirs, name)
        if place is not None:
            return self._waiting.pop(place), place == 0
        known = self._last.get(theirs) if theirs else None
        return Waiting(theirs, "", known or self._next(theirs or f"\0\0{name}")), False

    def forget(self) -> None:
        """Stop waiting for results that only their order would tell: the user has spoken since."""
        if self._waiting:
            self._waiting = [call for call in self._waiting if call.theirs]

    def _place(self, theirs: str, name: str) -> int | None:
        if theirs:
            for place, call in enumerate(self._waiting):
                if call.theirs == theirs:
                    return place
        for place, call in enumerate(self._waiting):
            # An id that no call has was made up by the client: then name and order tell.
            if not (theirs and call.theirs) and (not name or call.name == name):
                return place
        return None

    def _next(self, key: str) -> str:
        occurrence = self._counts.get(key, 0)
        self._counts[key] = occurrence + 1
        return canonical_tool_id(self._scope, key, occurrence)


def decode_call(wire: Call, ids: CallIds) -> ToolUseBlock:
    """Our block for a call of the usual form."""
    function = wire.function
    theirs = "" if wire.id is UNSET else wire.id
    return _make_call(ids.of_call(theirs, function.name), function.name, function.arguments)


def decode_odd_call(wire: Any, ids: CallIds) -> ToolUseBlock | OpaqueBlock:
    """Our block for any entry of `tool_calls`; what calls nothing stays as it came."""
    call = maybe_object(wire)
    function = maybe_object(call.get("function"))
    name, read = maybe_text(function.get("name")), _read(function.get("arguments"))
    if not name or read is None:
        return OpaqueBlock(PROTOCOL, Raw(write_json(wire)), "tool_call")
    theirs = maybe_text(call.get("id")) or ""
    return ToolUseBlock(ids.of_call(theirs, name), name, *read)


def _read(arguments: Any) -> tuple[Wire, InvalidInput | None] | None:
    if isinstance(arguments, dict):
        return maybe_object(arguments), None
    # Some clients send text where an object is due (T33).
    return read_arguments(arguments or "") if isinstance(arguments, str | None) else None
