"""Rules of Chat Completions requests that the SDK's types cannot express."""

from collections.abc import Iterator
from typing import Any

TURNS = "messages"


def faults(body: dict[str, Any]) -> Iterator[str]:
    """Return calls without a result in the next messages, and results without a call."""
    waiting: list[str] = []
    for turn in body["messages"]:
        if turn["role"] == "tool":
            if turn["tool_call_id"] not in waiting:
                yield f"a result of {turn['tool_call_id']}, which is not waited for"
            else:
                waiting.remove(turn["tool_call_id"])
            continue
        if waiting:
            yield f"calls {waiting} have no results"
        waiting = [call["id"] for call in turn.get("tool_calls") or ()]
    if waiting:
        yield f"calls {waiting} have no results"
