"""Rules of OpenAI Responses requests that the SDK's types cannot express."""

from collections.abc import Iterator
from typing import Any

TURNS = "input"

_CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}


def faults(body: dict[str, Any]) -> Iterator[str]:
    """Return calls without a result, results without a call, and reasoning without a next item."""
    waiting: dict[str, str] = {}
    thought = None
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind in _CALLS.values():
            if waiting.pop(item["call_id"], None) != kind:
                yield f"a {kind} of {item['call_id']}, which is not waited for"
        elif kind in _CALLS:
            waiting[item["call_id"]] = _CALLS[kind]
        elif waiting and item.get("role") != "assistant" and kind != "reasoning":
            yield f"calls {[*waiting]} have no results"
            waiting = {}
        if thought and (kind in _CALLS.values() or item.get("role", "assistant") != "assistant"):
            yield f"the thought {thought} stands alone"
        thought = (item.get("id") or "reasoning") if kind == "reasoning" else None
        if not 1 <= len(item.get("call_id", "x")) <= 64:
            yield f"the id {item['call_id']} is too long"
    if waiting:
        yield f"calls {[*waiting]} have no results"
