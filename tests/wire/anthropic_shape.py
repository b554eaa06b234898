"""Rules of Anthropic Messages requests that the SDK's types cannot express."""

from collections.abc import Iterator
from typing import Any

from metis.wire.json_access import maybe_list

TURNS = "messages"


def faults(body: dict[str, Any]) -> Iterator[str]:
    """Return tool calls without a result in the next turn, and blank texts."""
    waiting: list[str] = []
    for turn in body["messages"]:
        blocks = maybe_list(turn["content"])
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if turn["role"] == "user" and sorted(results) != sorted(waiting):
            yield f"calls {waiting} are followed by results {results}"
        if turn["role"] == "user":
            waiting = []
        waiting += [b["id"] for b in blocks if b["type"] == "tool_use"]
        if any(b["type"] == "text" and not b["text"].strip() for b in blocks):
            yield "a blank text"
    if waiting:
        yield f"calls {waiting} have no results"
