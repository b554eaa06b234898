"""Thinking, as the models behind Bedrock Converse are told of it: each in its maker's words."""

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
from metis.wire.shape import Wire, maybe_object, maybe_text

MORE = "additionalModelRequestFields"
"""The object in which a request speaks to a model in words that are not the protocol's."""

_THINKING, _OUTPUT, _NOVA = "thinking", "output_config", "reasoningConfig"
_WORDS: Mapping[Form | None, str] = {
    "effort": "reasoning_effort",
    "reasoning": "reasoning_config",
}
"""The keys of those makers whose models are told a word and nothing else."""
_TOP_EFFORT = "outputConfig.effort"
_NOVA_EFFORT = "maxReasoningEffort"


def _decode(wire: Mapping[str, Any]) -> Spoken:
    more = maybe_object(wire.get(MORE))
    top = effort_of(maybe_object(wire.get("outputConfig")).get("effort"))
    if not more and top is None:
        return SILENT
    for word in _WORDS.values():
        effort = effort_of(more.get(word))
        if effort is not None:
            return Spoken(Reasoning(effort), frozenset({f"{MORE}.{word}"}))
    if _NOVA in more:
        return _decode_nova(maybe_object(more[_NOVA]))
    return _decode_claude(more, top)


def _decode_nova(config: Wire) -> Spoken:
    place = f"{MORE}.{_NOVA}."
    keys = frozenset({f"{place}type", place + _NOVA_EFFORT})
    match config.get("type"):
        case "enabled":
            return Spoken(Reasoning(effort_of(config.get(_NOVA_EFFORT))), keys)
        case "disabled":
            return Spoken(Reasoning("none"), keys)
        case _:
            return SILENT


def _decode_claude(more: Wire, top: Any) -> Spoken:
    thinking, place = maybe_object(more.get(_THINKING)), f"{MORE}.{_THINKING}."
    inner = effort_of(maybe_object(more.get(_OUTPUT)).get("effort"))
    effort = inner or effort_of(top)
    keys = frozenset[str]()
    if effort:
        keys = frozenset({f"{MORE}.{_OUTPUT}.effort" if inner else _TOP_EFFORT})
    match maybe_text(thinking.get("type")):
        case "disabled" | "between_tools":
            return Spoken(Reasoning("none"), frozenset({f"{place}type"}))
        case "adaptive":
            return Spoken(Reasoning(effort), keys | {f"{place}type"})
        case "enabled":
            budget = budget_of(thinking.get("budget_tokens"))
            told = {f"{place}type"} if budget is None else {f"{place}type", f"{place}budget_tokens"}
            return Spoken(Reasoning(effort, budget), keys | told)
        case _:
            return Spoken(Reasoning(effort) if effort else None, keys)


def _spell(wire: Wire, reasoning: Reasoning | None, form: Form | None) -> None:
    """Say it in the form that the model reads; what was said before is taken out."""
    more = dict(maybe_object(wire.get(MORE)))
    for word in _WORDS.values():
        more.pop(word, None)
    more.pop(_NOVA, None)
    if "outputConfig" in wire:
        put_inside(wire, "outputConfig", {"effort": None})
    is_claude = form != "level" and form not in _WORDS
    _spell_claude(more, reasoning if is_claude else None, form)
    if reasoning is not None and form == "level":
        more[_NOVA] = _nova(reasoning)
    elif reasoning is not None and not is_claude and reasoning.effort is not None:
        more[_WORDS[form]] = reasoning.effort
    wire.pop(MORE, None)
    if more:
        wire[MORE] = more


def _nova(reasoning: Reasoning) -> Wire:
    if reasoning.is_off:
        return {"type": "disabled"}
    if reasoning.effort is None:
        return {"type": "enabled"}
    return {"type": "enabled", _NOVA_EFFORT: reasoning.effort}


def _spell_claude(more: Wire, reasoning: Reasoning | None, form: Form | None) -> None:
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
    put_inside(more, _THINKING, told)
    put_inside(more, _OUTPUT, {"effort": effort})


REASONING = ReasoningKeys(_decode, _spell)
