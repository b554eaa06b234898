"""Rules of Ollama requests that the SDK's types cannot express."""

from collections.abc import Iterator
from typing import Any

TURNS = "messages"


def faults(body: dict[str, Any]) -> Iterator[str]:
    """Return calls without results and results without calls; without ids, name and order match."""
    waiting: list[dict[str, Any]] = []
    for turn in body["messages"]:
        if turn["role"] == "tool":
            place = _answered(turn, waiting)
            if place is None:
                yield f"a result of {turn.get('tool_name')}, which is not waited for"
            else:
                waiting.pop(place)
            continue
        if waiting:
            yield f"calls {waiting} have no results"
        waiting = list(turn.get("tool_calls") or ())
    if waiting:
        yield f"calls {waiting} have no results"


def _answered(turn: dict[str, Any], waiting: list[dict[str, Any]]) -> int | None:
    wire_id, name = turn.get("tool_call_id"), turn.get("tool_name")
    for place, call in enumerate(waiting):
        if call.get("id") == wire_id if wire_id else call["function"]["name"] == (name or "?"):
            return place
    return 0 if waiting and not wire_id and not name else None
