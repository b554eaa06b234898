"""Thinking, as Anthropic Messages is told of it."""

from collections.abc import Mapping
from typing import Any

from metis.catalog.reasoning import Form
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

_THINKING, _OUTPUT = "thinking", "output_config"
_TYPE, _BUDGET, _EFFORT = "thinking.type", "thinking.budget_tokens", "output_config.effort"


def _decode(wire: Mapping[str, Any]) -> Spoken:
    if not (_THINKING in wire or _OUTPUT in wire):
        return SILENT
    thinking = maybe_object(wire.get(_THINKING))
    effort = effort_of(maybe_object(wire.get(_OUTPUT)).get("effort"))
    keys = frozenset({_EFFORT}) if effort else frozenset[str]()
    match thinking.get("type"):
        case "disabled" | "between_tools":
            return Spoken(Reasoning("none"), frozenset({_TYPE}))
        case "adaptive":
            return Spoken(Reasoning(effort), keys | {_TYPE})
        case "enabled":
            budget = budget_of(thinking.get("budget_tokens"))
            told = {_TYPE} if budget is None else {_TYPE, _BUDGET}
            return Spoken(Reasoning(effort, budget), keys | told)
        case _:
            return Spoken(Reasoning(effort) if effort else None, keys)


def _spell(wire: Wire, reasoning: Reasoning | None, form: Form | None) -> None:
    """Newer models weigh a word, older ones count tokens (T48)."""
    told: Wire = {"type": None, "budget_tokens": None}
    effort = None
    if reasoning is not None and reasoning.is_off:
        told["type"] = "between_tools" if form == "between" else "disabled"
    elif reasoning is not None and reasoning.budget_tokens is not None:
        told |= {"type": "enabled", "budget_tokens": reasoning.budget_tokens}
    elif reasoning is not None:
        told["type"], effort = "adaptive", reasoning.effort
    if told["type"] in (None, "disabled", "between_tools"):
        told["display"] = None
    put_inside(wire, _THINKING, told)
    put_inside(wire, _OUTPUT, {"effort": effort})


REASONING = ReasoningKeys(_decode, _spell)
