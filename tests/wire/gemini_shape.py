"""Rules of Gemini requests that the SDK's types cannot express."""

from collections.abc import Iterator
from typing import Any

TURNS = "contents"


def faults(body: dict[str, Any]) -> Iterator[str]:
    """Return tool calls without results in the next turn, results out of order, and empty turns."""
    waiting: list[str] = []
    for turn in body[TURNS]:
        if not turn["parts"]:
            yield "a turn without parts"
        calls = [part["functionCall"]["name"] for part in turn["parts"] if "functionCall" in part]
        answers = [
            part["functionResponse"]["name"] for part in turn["parts"] if "functionResponse" in part
        ]
        if turn["role"] == "model":
            if waiting:
                yield f"calls {waiting} have no results"
            waiting = calls
            yield from unsigned(turn)
        else:
            if answers != waiting:
                yield f"calls {waiting} are followed by results {answers}"
            if answers and len(answers) != len(turn["parts"]):
                yield "results stand beside something else"
            waiting = []
    if waiting:
        yield f"calls {waiting} have no results"


def unsigned(turn: dict[str, Any]) -> Iterator[str]:
    """Return turns whose first tool call has no signature; current models require one."""
    calls = [part for part in turn["parts"] if "functionCall" in part]
    if calls and "thoughtSignature" not in calls[0]:
        yield "the first call of a turn has no signature"
