"""Thinking, as the hosts of Chat Completions are told of it; there are three ways to say it.

OpenAI and most others take `reasoning_effort`, OpenRouter an object `reasoning`, and DeepSeek an
object `thinking` that switches it on and off, with the effort beside it.
"""

from collections.abc import Mapping
from typing import Any

from metis.catalog.reasoning import Effort, Form
from metis.wire.reasoning import (
    SILENT,
    Reasoning,
    ReasoningKeys,
    Spoken,
    budget_of,
    effort_of,
    put_inside,
)
from metis.wire.shape import Wire, maybe_object

_EFFORT, _REASONING, _THINKING = "reasoning_effort", "reasoning", "thinking"
_SWITCHES: Mapping[Any, bool] = {"enabled": True, "adaptive": True, "disabled": False}


def _decode(wire: Mapping[str, Any]) -> Spoken:
    if not (_EFFORT in wire or _REASONING in wire or _THINKING in wire):
        return SILENT
    found: dict[str, Any] = {}
    word = wire.get(_EFFORT)
    if effort_of(word) is not None or word == "default":
        found[_EFFORT] = effort_of(word)
    reasoning, thinking = maybe_object(wire.get(_REASONING)), maybe_object(wire.get(_THINKING))
    if effort_of(reasoning.get("effort")) is not None:
        found["reasoning.effort"] = effort_of(reasoning["effort"])
    budgets = {
        "reasoning.max_tokens": budget_of(reasoning.get("max_tokens")),
        "thinking.budget_tokens": budget_of(thinking.get("budget_tokens")),
    }
    found |= {key: budget for key, budget in budgets.items() if budget is not None}
    if isinstance(reasoning.get("enabled"), bool):
        found["reasoning.enabled"] = reasoning["enabled"]
    kind = thinking.get("type")
    if isinstance(kind, str) and kind in _SWITCHES:
        found["thinking.type"] = _SWITCHES[kind]
    return Spoken(_sum(found), frozenset(found)) if found else SILENT


def _sum(found: Mapping[str, Any]) -> Reasoning:
    if False in (found.get("reasoning.enabled"), found.get("thinking.type")):
        return Reasoning("none")
    effort: Effort | None = found.get(_EFFORT) or found.get("reasoning.effort")
    if effort == "none":
        return Reasoning("none")
    budget = found.get("reasoning.max_tokens") or found.get("thinking.budget_tokens")
    return Reasoning(effort, budget)


def _spell(wire: Wire, reasoning: Reasoning | None, form: Form | None) -> None:
    wire.pop(_EFFORT, None)
    put_inside(wire, _REASONING, dict.fromkeys(("effort", "max_tokens", "enabled")))
    put_inside(wire, _THINKING, dict.fromkeys(("type", "budget_tokens")))
    if reasoning is None:
        return
    match form:
        case "reasoning":
            put_inside(wire, _REASONING, _object(reasoning))
        case "thinking":
            kind = "disabled" if reasoning.is_off else "enabled"
            put_inside(wire, _THINKING, {"type": kind})
            if reasoning.effort is not None and not reasoning.is_off:
                wire[_EFFORT] = reasoning.effort
        case "default":
            wire[_EFFORT] = "none" if reasoning.is_off else "default"
        case _:
            wire[_EFFORT] = reasoning.effort or "medium"


def _object(reasoning: Reasoning) -> Wire:
    if reasoning.budget_tokens is not None:
        return {"max_tokens": reasoning.budget_tokens}
    return {"effort": reasoning.effort} if reasoning.effort else {"enabled": True}


REASONING = ReasoningKeys(_decode, _spell)
