"""Claude: how its models are told to think, in whichever protocol they are asked."""

from collections.abc import Mapping
from typing import Any

from metis.catalog.reasoning import Form
from metis.wire.reasoning import Reasoning, Spoken, budget_of, effort_of, put_inside
from metis.wire.shape import Wire, maybe_object, maybe_text

THINKING, OUTPUT = "thinking", "output_config"
_EFFORT = f"{OUTPUT}.effort"
_TYPE, _BUDGET = f"{THINKING}.type", f"{THINKING}.budget_tokens"


def decode_thinking(wire: Mapping[str, Any], around: str = "", beside: str = "") -> Spoken:
    """How much the model shall think; `around` is where its keys stand in the request.

    `beside` names a place that tells the effort where these keys do not, with its word in `wire`.
    """
    thinking = maybe_object(wire.get(THINKING))
    inner = effort_of(maybe_object(wire.get(OUTPUT)).get("effort"))
    effort = inner or (effort_of(wire.get(beside)) if beside else None)
    keys = frozenset({around + _EFFORT if inner else beside}) if effort else frozenset[str]()
    kind = {around + _TYPE}
    match maybe_text(thinking.get("type")):
        case "disabled" | "between_tools":
            return Spoken(Reasoning("none"), frozenset(kind))
        case "adaptive":
            return Spoken(Reasoning(effort), keys | kind)
        case "enabled":
            budget = budget_of(thinking.get("budget_tokens"))
            told = kind if budget is None else {*kind, around + _BUDGET}
            return Spoken(Reasoning(effort, budget), keys | told)
        case _:
            return Spoken(Reasoning(effort) if effort else None, keys)


def spell_thinking(wire: Wire, reasoning: Reasoning | None, form: Form | None) -> None:
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
    put_inside(wire, THINKING, told)
    put_inside(wire, OUTPUT, {"effort": effort})
